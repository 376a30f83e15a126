"""Memory and step time measured on NVIDIA GPUs, beside what dsforge predicts: `python gpu.py`.

Nothing here makes a model, a ds_config or a training step of its own: all three are dsforge's, so
that what is measured is what its users run.
"""
