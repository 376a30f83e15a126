"""What cannot be asked of fake tensors, passed over. None of it allocates memory that stays.

`assert_ints_same_as_other_ranks` (deepspeed/runtime/zero/utils.py:114) compares numbers with those
that rank 0 sent: here nobody sent any. `Tensor.record_stream` wants a stream of the device's own
library; on CUDA it only delays when the allocator may hand out a block again. `torch.compile` on
two functions of Muon imports inductor (7 s) at the sight of any optimizer (zero/utils.py:66).
Whether several texts share a sample (transformers/masking_utils.py:750) is read from positions;
with fake ones transformers prepares for it, and a mask of all pairs would take flash attention's
place. Here a sample is one text.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

COMPARED_IN = ("partition_parameters", "partitioned_param_coordinator", "stage3")
COMPARISON = "assert_ints_same_as_other_ranks"
PACKED = "find_packed_sequence_indices"


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
