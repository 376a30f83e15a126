"""Tensors of any checkpoint: types, headers of safetensors, NaN and inf."""
