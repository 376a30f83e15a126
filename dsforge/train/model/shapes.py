"""The tensors that a model has by its configuration: what a checkpoint of it must hold."""

from __future__ import annotations

from pathlib import Path


def model_shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of a model folder or config.json, tied ones once.

    The model is built without memory for its weights. Raises DsforgeError where it cannot be.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from dsforge.errors import DsforgeError, first_line
    from dsforge.train.model.build import model_source

    source = model_source(model, Path.cwd())
    try:
        config = AutoConfig.from_pretrained(source.name, **source.options)
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        first = first_line(error)
        raise DsforgeError(f"no model can be built from {model}: {first}") from error
    return {name: tuple(p.shape) for name, p in network.named_parameters()}
