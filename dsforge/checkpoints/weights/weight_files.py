"""Files of weights that are not DeepSpeed's: safetensors and torch's `.bin`, alone or in a folder.

safetensors is read by hand: a length, a JSON header, the bytes. So a file can be judged, and one of
any size be written tensor by tensor, without torch.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsforge.checkpoints.torch_files.archive import Archive, tensors_in
from dsforge.checkpoints.weights.bit_types import BITS, ITEM_BYTES
from dsforge.checkpoints.weights.non_finite import counted, counts
from dsforge.checkpoints.weights.safetensors_header import TYPES, read_entries
from dsforge.errors import DsforgeError

NAMES = {torch: own for own, (torch, _) in TYPES.items()}


class Weight(NamedTuple):
    """A tensor in a file of weights, as the file describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)


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
        return [Weight(e.name, e.shape, e.dtype, file) for e in read_entries(file)]
    return weights_in(Archive(file))


def weights_in(archive: Archive) -> list[Weight]:
    """The tensors in a torch file. Raises DsforgeError."""
    stored = tensors_in(archive.value)
    return [Weight(n, t.shape, t.storage.dtype, archive.path) for n, t in stored]


def nonfinite_weights(file: Path) -> dict[str, tuple[int, int]]:
    """NaN and infinite values of each tensor of a safetensors file that has any, by its name."""
    found = {}
    for entry in read_entries(file):
        if entry.end > entry.begin and entry.dtype in BITS and counts(entry.dtype):
            elements = math.prod(entry.shape)
            bits = np.memmap(file, BITS[entry.dtype], "r", entry.begin, (elements,))
            total = counted(bits, entry.dtype)
            if any(total):
                found[entry.name] = total
    return found


def write_safetensors(
    file: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    parts: Iterable[Iterator[NDArray[Any]]],
) -> int:
    """The checksum (CRC-32) of the file written: `parts` gives the bits of each tensor, in order.

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
            raise DsforgeError(f"{file.name} does not match its header")
    return sums
