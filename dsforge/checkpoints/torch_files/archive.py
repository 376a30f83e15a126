"""A torch file: a zip archive with one pickle and one record for each storage.

Every record carries the checksum that torch computed from memory while it wrote. Reading all of
them against those sums finds truncated and flipped bytes without knowing what they mean.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsforge.checkpoints.files import opened, read_at
from dsforge.checkpoints.findings import listed
from dsforge.checkpoints.pickles.allowed_names import NO_LOAD, check_called, is_known
from dsforge.checkpoints.pickles.reader import Pickled, PickleError, read_pickle
from dsforge.checkpoints.pickles.values import StoredTensor
from dsforge.checkpoints.torch_files.zip_records import Record, read_records
from dsforge.checkpoints.weights.bit_types import BITS, ITEM_BYTES
from dsforge.errors import DsforgeError, UntrustedError

NESTED = (dict, list, tuple)  # what may hold a tensor, or be one
SUM_BYTES = 1024 * 1024  # summed at a time: small enough for the processor's cache
MAX_PICKLE_BYTES = 128 * 1024 * 1024


class Archive:
    """One torch file, open for reading. Raises DsforgeError where it is none.

    `records` are all its records by name: `data.pkl`, `data/0`, `byteorder`, ...
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: Mapping[str, Record] = read_records(path)

    @cached_property
    def pickled(self) -> Pickled:
        """The values in it and the names that it would import. Raises DsforgeError."""
        record = self.records["data.pkl"]
        if record.bytes > MAX_PICKLE_BYTES:
            raise DsforgeError(f"{self.path.name}: a pickle of {record.bytes:,} bytes")
        content = self.content(record)
        try:
            return read_pickle(content)
        except PickleError as error:
            unknown = sorted(name for name in error.names if not is_known(name))
            if unknown:
                message = f"{self.path.name} names {listed(unknown)} and cannot be read: {error}"
                raise UntrustedError(message, NO_LOAD) from error
            raise DsforgeError(f"{self.path.name} cannot be read: {error}") from error

    @cached_property
    def value(self) -> Any:
        """The values in it. Raises UntrustedError where loading it would run code."""
        check_called(self.pickled, self.path.name)
        return self.pickled.value

    def content(self, record: Record) -> bytes:
        """The bytes of a record."""
        with opened(self.path) as descriptor:
            return read_at(descriptor, record.begin, record.bytes)

    @property
    def has_sums(self) -> bool:
        """Whether it holds checksums: torch can be told to write none, which are zeros then."""
        return any(record.crc32 for record in self.records.values())

    def damage(self) -> Iterator[str]:
        """What is wrong with its bytes: one line for each record that fails its checksum."""
        with opened(self.path) as descriptor:
            for record in self.records.values():
                if crc32_of(descriptor, record) != record.crc32:
                    yield f"record {record.name}: its bytes do not match their checksum"

    def lacking(self) -> Iterator[str]:
        """Storages that its tensors need and that it does not hold whole."""
        storages = {}
        for name, tensor in tensors_in(self.value):
            storages[tensor.storage.key, tensor.storage.dtype] = tensor.storage
            if tensor.end > tensor.storage.elements:
                yield f"`{name}` exceeds its storage"
        for storage in storages.values():
            record = self.records.get(f"data/{storage.key}")
            needed = storage.elements * ITEM_BYTES[storage.dtype]
            if record is None:
                yield f"storage {storage.key} is missing"
            elif record.bytes != needed:
                yield f"storage {storage.key} has {record.bytes} bytes, its tensors need {needed}"

    def locate(self, tensor: StoredTensor) -> Record:
        """The record of a tensor's storage.

        Raises DsforgeError where the tensor is not laid out in order or reaches out of the record.
        """
        if not tensor.is_contiguous:
            raise DsforgeError(f"{self.path.name} contains a tensor that is not contiguous")
        record = self.records.get(f"data/{tensor.storage.key}")
        end_bytes = (tensor.offset + tensor.elements) * ITEM_BYTES[tensor.storage.dtype]
        if record is None or end_bytes > record.bytes:
            raise DsforgeError(f"{self.path.name} does not contain storage {tensor.storage.key}")
        return record

    def flat(self, tensor: StoredTensor) -> NDArray[Any]:
        """All elements of a tensor in order, as the bits of their type, mapped from the file.

        Raises DsforgeError as `locate` does.
        """
        record = self.locate(tensor)
        bits = np.dtype(BITS[tensor.storage.dtype])
        if tensor.elements == 0:
            return np.empty(0, bits)
        begin = record.begin + tensor.offset * bits.itemsize
        return np.memmap(self.path, bits, "r", begin, (tensor.elements,))

    def elements(self, tensor: StoredTensor, begin: int, end: int) -> NDArray[Any]:
        """The bits of elements `begin` to `end` of a tensor. Raises DsforgeError as `locate`."""
        self.check_range(tensor, begin, end)
        return self.flat(tensor)[begin:end]

    def check_range(self, tensor: StoredTensor, begin: int, end: int) -> None:
        """Raise DsforgeError where a tensor does not have elements `begin` to `end`."""
        if not 0 <= begin <= end <= tensor.elements:
            message = f"a tensor of {tensor.elements} elements; {begin} to {end} are needed"
            raise DsforgeError(f"{self.path.name} contains {message}")


def crc32_of(descriptor: int, record: Record) -> int:
    """The checksum (CRC-32) of the bytes of a record, read from an open file."""
    total, at, end = 0, record.begin, record.begin + record.bytes
    room = memoryview(bytearray(min(SUM_BYTES, record.bytes)))
    while at < end and (count := os.preadv(descriptor, [room[: end - at]], at)):
        total, at = zlib.crc32(room[:count], total), at + count
    return total


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor in nested values, with the way to it: `module.lm_head.weight`."""
    if isinstance(value, StoredTensor):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, NESTED):
                yield from tensors_in(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            if isinstance(inner, NESTED):
                yield from tensors_in(inner, f"{path}[{number}]")
