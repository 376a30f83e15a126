"""Traffic: bytes that this rank sends, counted where the engine calls collectives.

A byte is counted by the payload that any ring algorithm sends, whatever the transport really does:
with n ranks in the group and S bytes of the whole tensor, S (n-1)/n for a gather, scatter,
reduce, broadcast or all-to-all, twice that for an all-reduce, and S for a send. Thakur et al. 2005.
`estimate.comm` predicts by the same rule. Collectives of whole objects (set-up) are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

# method of the back end -> (times, argument that holds the whole tensor or, below, the part of it)
WHOLE = {
    "all_reduce": 2,
    "inference_all_reduce": 2,
    "all_reduce_coalesced": 2,
    "reduce": 1,
    "broadcast": 1,
    "all_to_all_single": 1,
}
FIRST_IS_WHOLE = {
    "all_gather_into_tensor": 1,
    "all_gather_single": 1,
    "all_gather_base": 1,
    "all_gather": 1,
}
SECOND_IS_WHOLE = {"reduce_scatter_tensor": 1, "reduce_scatter_single": 1, "reduce_scatter": 1}


class Traffic:
    """A running count of sent bytes."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._inside = False

    def watch(self, back_end: Any) -> None:
        """Count from now on: wraps the collectives of what the engine calls, in place."""
        for name, times in {**WHOLE, **FIRST_IS_WHOLE, **SECOND_IS_WHOLE}.items():
            if hasattr(back_end, name):
                place = 1 if name in SECOND_IS_WHOLE else 0
                setattr(back_end, name, self._counted(getattr(back_end, name), place, times))
        if hasattr(back_end, "all_gather_coalesced"):
            counted = self._counted(back_end.all_gather_coalesced, 0, 1)
            back_end.all_gather_coalesced = counted

    def watch_functional(self, module: Any) -> None:
        """Count the all-reduces of torch's functional collectives, which DTensors call."""
        module.all_reduce = self._counted(module.all_reduce, 0, 2)

    def _counted(self, method: Callable[..., Any], place: int, times: int) -> Callable[..., Any]:
        @wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # one method may call another
                return method(*args, **kwargs)
            ranks = _group_size(kwargs.get("group", args[2] if len(args) > 2 else None))  # noqa: PLR2004
            tensors = args[place] if len(args) > place else list(kwargs.values())[place]
            self.sent_bytes += round(times * _size_bytes(tensors) * (ranks - 1) / ranks)
            self._inside = True
            try:
                return method(*args, **kwargs)
            finally:
                self._inside = False

        return counted


def _group_size(group: Any) -> int:
    """Ranks of a process group, of a dimension of a device mesh, or of all."""
    import torch.distributed

    if isinstance(group, tuple):
        mesh, dimension = group
        return int(mesh.size(dimension))
    is_group = group is None or hasattr(group, "rank")
    return int(torch.distributed.get_world_size(group if is_group else None))


def _size_bytes(tensors: Any) -> int:
    """Bytes of a tensor or of several."""
    if isinstance(tensors, (list, tuple)):
        return sum(_size_bytes(tensor) for tensor in tensors)
    return int(tensors.numel() * tensors.element_size())
