"""A torch file: a zip archive with one pickle and one record for each storage.

Every record carries the check sum that torch computed from memory while it wrote. Reading all of
them against those sums finds truncated and flipped bytes without knowing what they mean.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsforge.ckpt.pickled import Pickled, PickleError, StoredTensor, read_pickle
from dsforge.errors import DsforgeError

CHUNK_BYTES = 16 * 1024 * 1024
LOCAL_HEADER_BYTES = 30  # before the name of a record, as the zip format lays it out
MAX_PICKLE_BYTES = 512 * 1024 * 1024
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
    "uint8": "<u1",
    "bool": "<u1",
}


class Archive:
    """One torch file, open for reading. Raises DsforgeError where it is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                begins = file.read(4)
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise DsforgeError(f"{path.name} {_why_not(path, begins_of(path))}") from error
        self._records = {info.filename: info for info in self._zip.infolist()}
        pickles = [name for name in self._records if name.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1 or begins[:2] != b"PK":
            raise DsforgeError(f"{path.name} is a zip archive, but not one that torch wrote")
        self._root = pickles[0].removesuffix("data.pkl")

    @cached_property
    def pickled(self) -> Pickled:
        """The values in it and the names that it would import. Raises DsforgeError."""
        info = self._records[f"{self._root}data.pkl"]
        if info.file_size > MAX_PICKLE_BYTES:
            raise DsforgeError(f"{self.path.name}: a pickle of {info.file_size:,} bytes")
        try:
            return read_pickle(self._zip.read(info))
        except (PickleError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
            raise DsforgeError(f"{self.path.name} cannot be read: {error}") from error

    @property
    def value(self) -> Any:
        """The values in it."""
        return self.pickled.value

    def damage(self) -> Iterator[str]:
        """What is wrong with its bytes: one line for each record that fails its check sum."""
        for name, info in self._records.items():
            try:
                with self._zip.open(info) as record:
                    while record.read(CHUNK_BYTES):
                        pass
            except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError) as error:
                yield f"record {name.removeprefix(self._root)}: {error}"

    def lacking(self) -> Iterator[str]:
        """Storages that its tensors need and that it does not hold whole."""
        for key, storage in {t.storage.key: t.storage for _, t in tensors_in(self.value)}.items():
            info = self._records.get(f"{self._root}data/{key}")
            needed = storage.elements * item_bytes(storage.dtype)
            if info is None:
                yield f"storage {key} is not there"
            elif info.file_size != needed:
                yield f"storage {key} has {info.file_size} bytes, its tensors need {needed}"

    def flat(self, tensor: StoredTensor) -> NDArray[Any]:
        """All elements of a tensor in order, as the bits of their type, mapped from the file.

        Raises DsforgeError where the tensor is not laid out in order or reaches out of the file.
        """
        if not tensor.is_contiguous:
            raise DsforgeError(f"{self.path.name} holds a tensor that is not laid out in order")
        info = self._records.get(f"{self._root}data/{tensor.storage.key}")
        bits = np.dtype(BITS[tensor.storage.dtype])
        end_bytes = (tensor.offset + tensor.elements) * bits.itemsize
        if info is None or info.compress_type != zipfile.ZIP_STORED or end_bytes > info.file_size:
            raise DsforgeError(f"{self.path.name} does not hold storage {tensor.storage.key}")
        if tensor.elements == 0:
            return np.empty(0, bits)
        begin = self._begin_bytes(info) + tensor.offset * bits.itemsize
        return np.memmap(self.path, bits, "r", begin, (tensor.elements,))

    def _begin_bytes(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of a record begin: behind its local header, name and padding."""
        with self.path.open("rb") as file:
            file.seek(info.header_offset)
            header = file.read(LOCAL_HEADER_BYTES)
        lengths = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        return info.header_offset + LOCAL_HEADER_BYTES + sum(lengths)


def item_bytes(dtype: str) -> int:
    """Bytes of one element; 1 for a type that is not known."""
    return np.dtype(BITS[dtype]).itemsize if dtype in BITS else 1


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor in nested values, with the way to it: `module.lm_head.weight`."""
    if isinstance(value, StoredTensor):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors_in(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from tensors_in(inner, f"{path}[{number}]")


def begins_of(path: Path) -> bytes:
    """The first bytes of a file; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError:
        return b""


def _why_not(path: Path, begins: bytes) -> str:
    """Why a file is no torch archive."""
    if not path.is_file():
        return "is not there"
    if path.stat().st_size == 0:
        return "is empty: 0 bytes"
    if begins[:2] == b"PK":
        return f"is cut off: its end is missing ({path.stat().st_size:,} bytes are there)"
    if begins[:1] == b"\x80":
        return "is in the format before torch 1.6; load and save it once with a newer torch"
    return "is not a torch file"
