"""The fine-tuning loop. Importing this package does not import torch."""
