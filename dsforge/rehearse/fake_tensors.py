"""What fake tensors need besides torch's own mode, to stand for the tensors of a GPU.

**Moves.** torch swaps fake parameters for new ones where it assigns data to real ones
(torch/nn/modules/module.py, `_apply`). That fails as soon as anything holds a weak reference to
them, and loses the attributes that DeepSpeed sets on them; and data of another device cannot be
assigned to them at all. So a model that training has in host memory first is on the device from
the start, and only counted there later.

**Checks that do not work on fake tensors** are disabled; none of them allocates memory that stays.
`assert_ints_same_as_other_ranks` (deepspeed/runtime/zero/utils.py:114) compares numbers with those
of rank 0, which does not exist here. `Tensor.record_stream` wants a stream of the device's own
library; on CUDA it only delays when the allocator may hand out a block again. `torch.compile` on
two functions of Muon imports Inductor (7 s) for every optimizer (zero/utils.py:66). Whether several
texts share a sample (transformers/masking_utils.py:750) is read from positions; with fake ones
transformers assumes that they do, and a mask of all pairs would replace flash attention. Here a
sample is one text.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dsforge.rehearse.allocations import Tracker
from dsforge.rehearse.fake_gpu import DEVICE

COMPARED_IN = ("partition_parameters", "partitioned_param_coordinator", "stage3")
COMPARISON = "assert_ints_same_as_other_ranks"
PACKED = "find_packed_sequence_indices"
Convert = Callable[[torch.Tensor], torch.Tensor]


class FakeTensors(FakeTensorMode):
    """Fake tensors that do not touch a device while they are made (`torch.tensor` would)."""

    avoid_device_init = True


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


@contextmanager
def without_sanity_checks() -> Iterator[None]:
    """Context in which ranks are not compared, streams not recorded and samples not packed."""
    modules = [importlib.import_module(f"deepspeed.runtime.zero.{name}") for name in COMPARED_IN]
    places: list[tuple[Any, str]] = [(module, COMPARISON) for module in modules]
    places.append((torch.Tensor, "record_stream"))
    places.append((importlib.import_module("transformers.masking_utils"), PACKED))
    _import_muon_uncompiled()
    before = [getattr(owner, name) for owner, name in places]
    for owner, name in places:
        setattr(owner, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for (owner, name), original in zip(places, before, strict=True):
            setattr(owner, name, original)


def _import_muon_uncompiled() -> None:
    """Import Muon's functions as they are written."""
    compiler = torch.compile
    torch.compile = lambda function=None, **_: function or (lambda inner: inner)
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        torch.compile = compiler
