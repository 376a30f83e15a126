"""Python objects rebuilt from the values that the checkpoint reader describes, without unpickling.

A universal checkpoint carries settings along: step counts, the schedule, the loss scaler. They are
built here from the values that were read, and only of types that DeepSpeed itself needs; whatever
else a file names is not imported, so nothing in it can run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from dsforge.checkpoints.pickles.keys import STAGES
from dsforge.checkpoints.pickles.values import Foreign, Name, StoredTensor
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.errors import DsforgeError

SCALERS = "deepspeed.runtime.fp16.loss_scaler."
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")


class UnknownTypeError(DsforgeError):
    """A value is of a type that is not built."""


def revived(value: Any, archive: Archive) -> Any:
    """The live form of a value that was read from an archive. Raises UnknownTypeError."""
    try:
        return _Reviver(archive).of(value)
    except RecursionError as error:
        raise UnknownTypeError("it is nested too deeply") from error
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UnknownTypeError(f"it cannot be built: {str(error)[:80]}") from error


class _Reviver:
    """Builds each described object once, however often it is referred to."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.known: dict[int, tuple[Any, Any]] = {}  # the described one too: ids must not be reused

    def of(self, value: Any) -> Any:
        """The live form of a value."""
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if id(value) not in self.known:
            self.known[id(value)] = (value, self._built(value))
        return self.known[id(value)][1]

    def _built(self, value: Any) -> Any:
        if isinstance(value, StoredTensor):
            return tensor_of(self.archive, value)
        if isinstance(value, dict):
            return {self.of(key): self.of(inner) for key, inner in value.items()}
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(self.of(inner) for inner in value)
        if isinstance(value, Name):
            return _named(value.path)
        if isinstance(value, Foreign):
            return self._object(value)
        raise UnknownTypeError(f"it contains a {type(value).__name__}")

    def _object(self, value: Foreign) -> Any:
        """An object of the few classes that are needed."""
        arguments = [self.of(one) for one in value.arguments]
        if value.path == STAGES and len(arguments) == 1:
            return _stage(lambda kind: kind(arguments[0]))
        scaler = value.path.removeprefix(SCALERS)
        state = self.of(value.state) if isinstance(value.state, dict) else {}
        if value.path.startswith(SCALERS) and scaler in ("LossScaler", "DynamicLossScaler"):
            from deepspeed.runtime.fp16 import loss_scaler

            kind = getattr(loss_scaler, scaler)
            built = kind.__new__(kind)
            vars(built).update(state)
            return built
        if value.path == "argparse.Namespace" and all(isinstance(key, str) for key in state):
            return argparse.Namespace(**state)
        raise UnknownTypeError(f"it contains a {value.path}")


def tensor_of(archive: Archive, stored: StoredTensor) -> Any:
    """A tensor with the values that an archive holds of it. Raises DsforgeError."""
    import torch

    if not stored.is_contiguous:
        raise UnknownTypeError("it contains a tensor that is not contiguous")
    dtype = getattr(torch, stored.storage.dtype, None)
    bits = archive.elements(stored, 0, stored.elements)
    if stored.elements == 0:
        return torch.empty(stored.shape, dtype=dtype)
    flat = torch.from_numpy(np.array(bits).view(np.uint8))
    return flat.view(dtype).reshape(stored.shape)


def _named(path: str) -> Any:
    """A type of numbers, or a ZeRO stage."""
    import torch

    head, _, name = path.rpartition(".")
    if head == "torch" and name in DTYPES:
        return getattr(torch, name)
    if head == STAGES:
        return _stage(lambda kind: kind[name])
    raise UnknownTypeError(f"it refers to {path}")


def _stage(choose: Callable[[Any], Any]) -> Any:
    from deepspeed.runtime.zero.config import ZeroStageEnum

    try:
        return choose(ZeroStageEnum)
    except (KeyError, ValueError) as error:
        raise UnknownTypeError("it contains an unknown ZeRO stage") from error
