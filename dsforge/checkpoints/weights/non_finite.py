"""NaN and infinity counted in the tensors of a file, in slices: memory does not grow with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsforge.checkpoints.pickles.values import StoredTensor
from dsforge.checkpoints.torch_files.archive import Archive, tensors_in
from dsforge.checkpoints.weights.bit_types import BITS

SLICE_ELEMENTS = 4 * 1024 * 1024
# bits of the exponent, and of the fraction, of types that numpy does not know
HALVES = {"bfloat16": (0x7F80, 0x007F)}
# 8 bits: the values that are NaN, those that are infinite, without the sign
EIGHTHS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "float8_e4m3fn": ((0x7F, 0xFF), ()),
    "float8_e5m2": ((0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), (0x7C, 0xFC)),
    "float8_e4m3fnuz": ((0x80,), ()),
    "float8_e5m2fnuz": ((0x80,), ()),
    "float8_e8m0fnu": ((0xFF,), ()),
}


def nonfinite(archive: Archive) -> dict[str, tuple[int, int]]:
    """NaN and infinite values of each tensor of a torch file that has any, by its name."""
    seen: set[StoredTensor] = set()
    found = {}
    for name, tensor in tensors_in(archive.value):
        if tensor in seen or not counts(tensor.storage.dtype) or not tensor.elements:
            continue
        seen.add(tensor)
        count = tensor.end - tensor.offset
        whole = StoredTensor(tensor.storage, tensor.offset, (count,), (1,))
        total = counted(archive.flat(whole), tensor.storage.dtype)
        if any(total):
            found[name] = total
    return found


def counts(dtype: str) -> bool:
    """Whether a type has NaN or infinity."""
    return dtype in EIGHTHS or dtype in HALVES or dtype.startswith(("float", "complex"))


def counted(bits: NDArray[Any], dtype: str) -> tuple[int, int]:
    """NaN and infinite values among the bits of numbers of a type."""
    nan = infinite = 0
    for begin in range(0, len(bits), SLICE_ELEMENTS):
        more = _slice(bits[begin : begin + SLICE_ELEMENTS], dtype)
        nan, infinite = nan + more[0], infinite + more[1]
    return nan, infinite


def _slice(bits: NDArray[Any], dtype: str) -> tuple[int, int]:
    if dtype in EIGHTHS:
        times = np.bincount(bits, minlength=256)
        return tuple(int(times[list(which)].sum()) for which in EIGHTHS[dtype])  # type: ignore[return-value]
    if dtype in HALVES:
        exponent, fraction = HALVES[dtype]
        odd = bits[(bits & exponent) == exponent]
        nan = int(np.count_nonzero(odd & fraction))
        return nan, len(odd) - nan
    if dtype not in BITS or bits.dtype.kind not in "fc":
        return 0, 0
    with np.errstate(all="ignore"):
        if np.isfinite(bits).all():
            return 0, 0
        return int(np.isnan(bits).sum()), int(np.isinf(bits).sum())
