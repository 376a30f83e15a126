"""Parts that several programs have: a ds_config, FSDP, adapters, the keys of transformers."""
