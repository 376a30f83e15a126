"""Compiled kernels that do nothing.

DeepSpeed's own optimizers call C++ or CUDA kernels on raw pointers, and fake tensors have none. The
kernels update in place and allocate nothing (csrc/adam/multi_tensor_adam.cu, cpu_adam_impl.cpp), so
one that does nothing leaves the memory as it is. The optimizers themselves are DeepSpeed's.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Where DeepSpeed 0.19.8 binds a builder at import: module of deepspeed.ops -> name.
BOUND = {
    "adam.fused_adam": "FusedAdamBuilder",
    "adam.cpu_adam": "CPUAdamBuilder",
    "lion.fused_lion": "FusedLionBuilder",
    "lion.cpu_lion": "CPULionBuilder",
    "lamb.fused_lamb": "FusedLambBuilder",
    "adagrad.cpu_adagrad": "CPUAdagradBuilder",
}


class NoKernels:
    """An op builder whose kernels return 0."""

    name = NAME = "no_kernels"

    def load(self, verbose: bool = True) -> NoKernels:
        """The loaded op."""
        return self

    def is_compatible(self, verbose: bool = False) -> bool:
        """It needs no compiler."""
        return True

    def __getattr__(self, kernel: str) -> Any:
        return lambda *_, **__: 0


@contextmanager
def no_kernels() -> Iterator[None]:
    """Context in which new optimizers of DeepSpeed have kernels that do nothing."""
    before = {}
    for path, builder in BOUND.items():
        module = importlib.import_module(f"deepspeed.ops.{path}")
        before[module] = (builder, getattr(module, builder))
        setattr(module, builder, NoKernels)
    try:
        yield
    finally:
        for module, (builder, original) in before.items():
            setattr(module, builder, original)
