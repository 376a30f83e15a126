"""Hugging Face configs and ModelSpec, both ways: mappings in and out, no files, no transformers."""

from dsforge.huggingface.reader import model_from_config, read_config
from dsforge.huggingface.tiny import tiny
from dsforge.huggingface.writer import config_from_model

__all__ = ["config_from_model", "model_from_config", "read_config", "tiny"]
