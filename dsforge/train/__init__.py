"""The fine-tuning loop. Importing this package is light; torch comes with `train.loop`."""
