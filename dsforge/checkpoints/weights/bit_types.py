"""Conversion between floating-point types as bits: numpy has no bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsforge.errors import DsforgeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOATS = ("float32", "bfloat16", "float16", "float64")
# torch's name of a type -> the numpy type that holds its bits
BITS = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "<i1",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint16": "<u2",
    "uint8": "<u1",
    "bool": "<u1",
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e8m0fnu"), "<u1"),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn_x2"), "<u1"),  # x2: in pairs
    "complex32": "<u4",
    "complex64": "<c8",
    "complex128": "<c16",
    "quint8": "<u1",
    "qint8": "<i1",
    "qint32": "<i4",
}
ITEM_BYTES = {name: int(bits[2:]) for name, bits in BITS.items()}


def as_type(bits: NDArray[Any], have: str, want: str) -> NDArray[Any]:
    """The same numbers in another type, rounded to the nearest, ties to even, as torch rounds.

    Raises DsforgeError between types that are no floating-point numbers.
    """
    if have == want:
        return bits
    if have not in FLOATS or want not in FLOATS:
        raise DsforgeError(f"{have} cannot be converted to {want}")
    return _from_wide(_wide(bits, have), want)


def _wide(bits: NDArray[Any], have: str) -> NDArray[Any]:
    """At least 32 bits of the same numbers."""
    import numpy as np

    if have == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32) if have == "float16" else bits


def _from_wide(numbers: NDArray[Any], want: str) -> NDArray[Any]:
    import numpy as np

    if want != "bfloat16":
        with np.errstate(over="ignore"):  # beyond fp16 is infinite, as in torch
            return numbers.astype(np.dtype(want))
    bits = numbers.astype(np.float32).view(np.uint32)
    rounded = (bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16
    quiet = (bits >> 16) | np.uint32(0x40)  # a NaN stays one whatever its lower bits
    return np.where(np.isnan(bits.view(np.float32)), quiet, rounded).astype(np.uint16)
