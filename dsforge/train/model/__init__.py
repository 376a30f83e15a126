"""The model that is trained: loading, adapters, quantization, compilation, loss, generation."""
