"""Whole weights of a DeepSpeed engine, gathered parameter by parameter on the first rank."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dsforge.train.model.qlora import is_quantised
from dsforge.train.parallel.autotp import whole_shards


def consolidated(model: Any) -> dict[str, Any]:
    """Every parameter and stored buffer, whole, on the CPU of rank 0; empty on other ranks.

    Under QLoRA only what was trained: the frozen weights are those of the model's own files.
    """
    import deepspeed.comm

    first = deepspeed.comm.get_rank() == 0
    adapters_only = is_quantised(model)
    weights: dict[str, Any] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        with whole_shards(module):
            for name, parameter in module.named_parameters(prefix, recurse=False):
                if id(parameter) in seen or (adapters_only and not parameter.requires_grad):
                    continue  # tied to one that has its name already, or frozen
                seen.add(id(parameter))
                with _gathered(parameter):
                    if first:
                        weights[name] = parameter.detach().to("cpu", copy=True).contiguous()
    if first:
        stored = set(model.state_dict().keys())
        buffers = model.named_buffers()
        weights |= {n: b.detach().to("cpu", copy=True) for n, b in buffers if n in stored}
    return weights


def _gathered(parameter: Any) -> AbstractContextManager[Any]:
    """The context in which a parameter is whole under ZeRO-3."""
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    return GatheredParameters([parameter]) if hasattr(parameter, "ds_id") else nullcontext()
