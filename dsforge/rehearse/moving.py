"""How the weights of a model move, told to fake tensors that cannot.

torch swaps fake parameters for new ones where it assigns data to real ones (torch/nn/modules/
module.py, `_apply`), which fails as soon as anything refers to them weakly and loses what DeepSpeed
notes on them. And data of another device cannot be assigned to them at all. So a model that
training has in host memory first is on the device from the start, and only counted there later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dsforge.rehearse.allocations import Tracker
from dsforge.rehearse.fake_gpu import DEVICE

Convert = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def moving_in_place(tracker: Tracker) -> Iterator[None]:
    """Context in which `.to`, `.half`, `.bfloat16` of a module assign each tensor its new data."""
    before = torch.nn.Module._apply  # noqa: SLF001 - what these methods have in common

    def apply(
        module: torch.nn.Module,
        convert: Callable[[torch.Tensor], torch.Tensor],
        recurse: bool = True,
    ) -> Any:
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data = _converted(tensor, convert, tracker)
        return module

    torch.nn.Module._apply = apply  # noqa: SLF001
    try:
        yield
    finally:
        torch.nn.Module._apply = before  # noqa: SLF001


def _converted(tensor: torch.Tensor, convert: Convert, tracker: Tracker) -> torch.Tensor:
    """The new data; a copy where it leaves host memory, nothing where it goes to "meta"."""
    found = convert(tensor.data)
    if found.device.type == "meta":
        return torch.empty(0, dtype=tensor.dtype, device=DEVICE)
    return found.clone() if tracker.on_host(found) else found
