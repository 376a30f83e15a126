"""Files of weights that are not DeepSpeed's: safetensors and torch's `.bin`, alone or in a folder.

safetensors is read by hand: a length, a JSON header, the bytes. So a file can be judged, and one of
any size be written tensor by tensor, without torch.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsforge.ckpt.archive import Archive, tensors_in
from dsforge.errors import DsforgeError

MAX_HEADER_BYTES = 100 * 1024 * 1024  # the limit of the safetensors library itself
# safetensors' name of a type -> torch's
TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
NAMES = {torch: own for own, torch in TYPES.items()}
ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
ITEM_BYTES |= {"int16": 2, "int8": 1, "uint8": 1, "bool": 1}


class Weight(NamedTuple):
    """A tensor in a file of weights, as the file describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return int(np.prod(self.shape, dtype=np.int64))


def weight_files(folder: Path) -> list[Path]:
    """The files of weights in a folder: safetensors where there are any, else torch's."""
    for pattern in ("*.safetensors", "*.bin"):
        found = sorted(p for p in folder.glob(pattern) if p.name != "training_args.bin")
        if found:
            return found
    return []


def weights_of(file: Path) -> list[Weight]:
    """The tensors in a file of weights. Raises DsforgeError where it is cut off or none."""
    if file.suffix == ".safetensors":
        return _from_safetensors(file)
    value = Archive(file).value
    return [Weight(n, t.shape, t.storage.dtype, file) for n, t in tensors_in(value)]


def _from_safetensors(file: Path) -> list[Weight]:
    header, begin = read_header(file)
    size = file.stat().st_size
    found, end = [], 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            first, last = entry["data_offsets"]
            shape, dtype = (
                tuple(map(int, entry["shape"])),
                TYPES.get(entry["dtype"], entry["dtype"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DsforgeError(f"{file.name}: the entry of `{name}` is broken") from error
        weight = Weight(name, shape, dtype, file)
        if dtype in ITEM_BYTES and last - first != weight.elements * ITEM_BYTES[dtype]:
            raise DsforgeError(f"{file.name}: `{name}` has {last - first} bytes for shape {shape}")
        found.append(weight)
        end = max(end, last)
    if begin + end != size:
        message = f"{file.name} has {size:,} bytes, its header speaks of {begin + end:,}"
        raise DsforgeError(message, "it was cut off, or something was appended")
    return found


def read_header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file and where the bytes begin. Raises DsforgeError."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, MAX_HEADER_BYTES)))
    except (OSError, ValueError, RecursionError) as error:
        raise DsforgeError(f"{file.name} is not a whole safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise DsforgeError(f"{file.name} is not a whole safetensors file: no JSON object")
    return header, 8 + length


def write_safetensors(
    file: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    parts: Iterable[Iterator[NDArray[Any]]],
) -> int:
    """The check sum (CRC-32) of the file written: `parts` gives the bits of each tensor, in order.

    `tensors` maps names to torch's name of a type and a shape. Memory holds one part at a time.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES[dtype]
        entry = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        header[name] = entry
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    begins = len(text).to_bytes(8, "little") + text
    sums = zlib.crc32(begins)
    with file.open("wb") as stream:
        stream.write(begins)
        for bits in parts:
            for part in bits:
                raw = np.ascontiguousarray(part).view(np.uint8).data
                sums = zlib.crc32(raw, sums)
                stream.write(raw)
        stream.flush()
        os.fsync(stream.fileno())
        if stream.tell() != len(begins) + at:
            raise DsforgeError(f"{file.name} holds other bytes than its header says")
    return sums
