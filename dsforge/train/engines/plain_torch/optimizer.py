"""Optimizers of torch for sharded and whole parameters, and the norm of their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsforge.job import TorchSettings


def made_optimizer(settings: TorchSettings, parameters: Iterable[Any]) -> Any:
    """The optimizer of the trained parameters; under zero1 each rank keeps the state of a part."""
    import torch

    classes = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    values: dict[str, Any] = {
        "lr": settings.learning_rate,
        "weight_decay": settings.weight_decay,
    }
    if settings.optimizer == "sgd":
        values["momentum"] = settings.momentum
    else:
        values |= {"betas": settings.betas, "eps": settings.eps}
    kind = classes[settings.optimizer]
    if settings.strategy != "zero1":
        return kind([{"params": group} for group in by_mesh(parameters)], **values)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer([*parameters], kind, **values)


def by_mesh(tensors: Iterable[Any]) -> list[list[Any]]:
    """Tensors in groups of one device mesh each: one operation takes no two meshes."""
    groups: dict[Any, list[Any]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values())


def clipped_norm(parameters: Iterable[Any], limit: float, stages: Any = None) -> Any:
    """The norm of all gradients over all ranks, after which none exceeds `limit`; 0: no limit.

    `stages` is the process group of the pipeline stages, none where there is one stage.
    """
    import torch
    import torch.distributed
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    trained = [parameter for parameter in parameters if parameter.grad is not None]
    groups = by_mesh(trained)
    norms = [get_total_norm([p.grad for p in group]) for group in groups]
    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(whole)) if whole else torch.zeros(())
    if stages is not None:
        squared = total**2
        torch.distributed.all_reduce(squared, group=stages)
        total = squared.sqrt()
    for group in groups if limit else ():
        clip_grads_with_norm_(group, limit, total)
    return total


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer that holds the states of this rank: ZeroRedundancyOptimizer has one inside."""
    return getattr(optimizer, "optim", optimizer)
