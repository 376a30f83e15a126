"""Tensor parallelism through DeepSpeed's AutoTP: its groups, its settings, and whole weights.

AutoTP replaces linear layers of the Hugging Face model by their shards inside `initialize`. Neither
`deepspeed.initialize` nor its config know the data-parallel size of such a run unless they are
given the groups, so the groups are made here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsforge.layout import Layout


def tensor_groups(layout: Layout) -> Any:
    """DeepSpeed's module of process groups, set up for a layout; all ranks must call it."""
    from deepspeed.utils import groups

    groups._init_tp_mesh_device(layout.tensor_parallel_size)  # noqa: SLF001 - as the engine does
    return groups


def tensor_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The config with logits of the whole vocabulary: the loss picks the tokens of answers.

    Left alone, AutoTP splits the vocabulary of models with tied embeddings and replaces the loss.
    """
    block = {**settings["tensor_parallel"], "vocab_parallel_lm_head": False}
    return {**settings, "tensor_parallel": block}


@contextmanager
def whole_shards(module: Any) -> Iterator[None]:
    """Parameters of one module as they were before AutoTP cut them; all ranks must enter.

    The shards are put back as they were, not cut again: ZeRO's flat buffers hold those.
    """
    parameters = list(module.parameters(recurse=False))
    if not any(hasattr(parameter, "gather_params") for parameter in parameters):
        yield
        return
    shards = [parameter.data for parameter in parameters]
    module.gather_params(parameters)
    try:
        yield
    finally:
        for parameter, shard in zip(parameters, shards, strict=True):
            parameter.data = shard
