"""The header of a safetensors file, read as strictly as the safetensors library reads it.

A length, a JSON header, the bytes of the tensors one behind the other in the order of their
offsets: no hole, no overlap, nothing behind. The library's own limits hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from dsforge.checkpoints.files import opened, parse_json, read_at, size_of
from dsforge.errors import DsforgeError

MAX_HEADER_BYTES = 100_000_000  # the limit of the library
MAX_TENSORS = 1_000_000
MAX_NUMBER = 2**64 - 1
# safetensors' name of a type -> torch's, and the bits of an element
TYPES = {
    "F64": ("float64", 64),
    "F32": ("float32", 32),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I64": ("int64", 64),
    "I32": ("int32", 32),
    "I16": ("int16", 16),
    "I8": ("int8", 8),
    "U64": ("uint64", 64),
    "U32": ("uint32", 32),
    "U16": ("uint16", 16),
    "U8": ("uint8", 8),
    "BOOL": ("bool", 8),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F4": ("float4_e2m1fn_x2", 4),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
}


class Entry(NamedTuple):
    """A tensor of a safetensors file: torch's name of its type, its shape, where its bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_entries(file: Path) -> list[Entry]:
    """The tensors of a safetensors file in the order of their bytes. Raises DsforgeError."""
    entries, begin, size = read_header(file)
    at = 0
    for entry in entries:
        if entry.begin != at:
            what = "overlaps another tensor" if entry.begin < at else "has a gap before it"
            raise DsforgeError(f"{file.name}: `{entry.name[:80]}` {what}", "write the file again")
        at = entry.end
    if begin + at != size:
        message = f"{file.name} has {size:,} bytes, its header describes {begin + at:,}"
        raise DsforgeError(message, "the file was truncated or extended")
    return [e._replace(begin=begin + e.begin, end=begin + e.end) for e in entries]


def read_metadata(file: Path) -> dict[str, str]:
    """The texts that a safetensors file carries beside its tensors. Raises DsforgeError."""
    header, _, _ = _header(file)
    return _texts(file, header.pop("__metadata__", None))


def _texts(file: Path, metadata: Any) -> dict[str, str]:
    """Metadata as the library takes it: texts by name, or none."""
    plain = metadata is None or isinstance(metadata, dict)
    if not plain or not all(isinstance(text, str) for text in (metadata or {}).values()):
        raise DsforgeError(f"{file.name}: its metadata values are not strings")
    return metadata or {}


def read_header(file: Path) -> tuple[list[Entry], int, int]:
    """The tensors that a header describes, where their bytes begin, and the size of the file.

    Offsets count from where the bytes begin; whether the file has them is not looked at. Raises
    DsforgeError.
    """
    header, begin, size = _header(file)
    _texts(file, header.pop("__metadata__", None))
    if len(header) > MAX_TENSORS:
        raise DsforgeError(f"{file.name} contains more than {MAX_TENSORS:,} tensors")
    entries = [_entry(file, *item) for item in header.items()]
    return sorted(entries, key=lambda entry: (entry.begin, entry.end)), begin, size


def _header(file: Path) -> tuple[dict[str, Any], int, int]:
    """The header, where the bytes begin, and the size of the file. Raises DsforgeError."""
    with opened(file) as descriptor:
        size = size_of(descriptor)
        length = int.from_bytes(read_at(descriptor, 0, 8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):  # noqa: PLR2004 - of the length
            message = (
                f"{file.name} is not a complete safetensors file: a header of {length:,} bytes"
            )
            raise DsforgeError(message, "the file was truncated, or has another format")
        content = read_at(descriptor, 8, length)
    if content[:1] != b"{":
        raise DsforgeError(f"{file.name} is not a complete safetensors file: not a JSON object")
    return parse_json(file.name, content), 8 + length, size


def _entry(file: Path, name: str, entry: Any) -> Entry:
    """A tensor as the header describes it. Raises DsforgeError."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise DsforgeError(f"{file.name}: the entry of `{name[:80]}` is invalid")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    known = TYPES.get(dtype) if isinstance(dtype, str) else None
    if known is None:
        shown = dtype[:40] if isinstance(dtype, str) else type(dtype).__name__
        raise DsforgeError(f"{file.name}: `{name[:80]}` is of an unknown type, {shown}")
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):  # noqa: PLR2004
        raise DsforgeError(f"{file.name}: the entry of `{name[:80]}` is invalid")
    (begin, end), bits = offsets, _bits(shape, known[1])
    if end < begin or bits != 8 * (end - begin):
        shown = " x ".join(map(str, shape[:8]))
        message = (
            f"`{name[:80]}` has {end - begin:,} bytes, which does not match its shape ({shown})"
        )
        raise DsforgeError(f"{file.name}: {message}")
    return Entry(name, known[0], tuple(shape), begin, end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value <= MAX_NUMBER for value in values
    )


def _bits(shape: list[int], each: int) -> int:
    """Bits of a tensor; -1 where they do not fit in 64 bits, as in the library."""
    total = 1
    for size in (*shape, each):
        total *= size
        if total > MAX_NUMBER:
            return -1
    return total
