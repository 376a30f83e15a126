"""Whole weights: sent from the first rank before they are sharded, gathered there afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def gathered(model: Any, pipeline: Any = None) -> dict[str, Any]:
    """Every parameter and stored buffer, whole, on the CPU of rank 0; empty on other ranks.

    All ranks call it; `pipeline` is that of a stage, none where each rank has all parameters.
    """
    import torch.distributed

    first = torch.distributed.get_rank() == 0
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        whole = whole_tensor(parameter.detach())
        if first or pipeline:
            found[name] = whole.to("cpu", copy=True).contiguous()
    if pipeline:
        found = _of_all_stages(found, pipeline.group)
    if first:
        stored = set(model.state_dict().keys())
        buffers = model.named_buffers()
        found |= {n: b.detach().to("cpu", copy=True) for n, b in buffers if n in stored}
    return found


def _of_all_stages(own: dict[str, Any], group: Any) -> dict[str, Any]:
    """The whole weights of every stage on the first rank, one tensor after the other."""
    import torch
    import torch.distributed as dist

    ranks, device = dist.get_process_group_ranks(group), _sending_device()
    shapes: list[Any] = [None] * len(ranks)
    listed = [(name, tuple(t.shape), t.dtype) for name, t in own.items()]
    dist.all_gather_object(shapes, listed, group=group)
    found = dict(own)
    for source, names in zip(ranks, shapes, strict=True):
        for name, shape, kind in names if source != ranks[0] else ():
            if dist.get_rank() == source:
                dist.send(own[name].to(device), ranks[0], group=group)
            elif dist.get_rank() == ranks[0]:
                received = torch.empty(shape, dtype=kind, device=device)
                dist.recv(received, source, group=group)
                found[name] = received.cpu()
    return found if dist.get_rank() == 0 else {}


def _sending_device() -> str:
    """Where tensors must be that ranks send."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def whole_tensor(tensor: Any) -> Any:
    """A tensor with the parts of all ranks; those that are not sharded are whole already."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def send_weights(module: Any, device: Any, *, without: Sequence[Any] = ()) -> None:
    """Put the weights and buffers of a module, which the first rank has, on a device of all ranks.

    Parts `without` stay as they are; tied weights stay tied. All ranks call it.
    """
    import torch

    sent: dict[int, Any] = {}
    passed_over = {id(part) for other in without for part in other.modules()}
    for part in (part for part in module.modules() if id(part) not in passed_over):
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) not in sent:
                values = _sent(parameter.detach(), device)
                made = torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
                sent[id(parameter)] = sent[id(made)] = made
            setattr(part, name, sent[id(parameter)])
        for name, buffer in part.named_buffers(recurse=False):
            if id(buffer) not in sent:
                sent[id(buffer)] = _sent(buffer, device)
            setattr(part, name, sent[id(buffer)])


def _sent(tensor: Any, device: Any) -> Any:
    """The first rank's values of a tensor on every rank."""
    import torch
    import torch.distributed

    first = torch.distributed.get_rank() == 0
    values = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if first:
        values.copy_(tensor)
    torch.distributed.broadcast(values, 0)
    return values
