"""Reads of a checkpoint that verify checksums, also when bytes are read again later.

A record is compared whole with the CRC-32 that torch computed from memory, before the first of its
elements is used. On the way a sum of each chunk is kept, and every later read compares the chunks
that it touches: bytes that change in between are found, and memory holds a few chunks, no more.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsforge.checkpoints.files import opened, read_at
from dsforge.checkpoints.findings import error
from dsforge.checkpoints.folder import Folder
from dsforge.checkpoints.output.new_folder import Watcher
from dsforge.checkpoints.pickles.values import StoredTensor
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.torch_files.zip_records import Record
from dsforge.checkpoints.verify.checkpoint import verify_folder
from dsforge.checkpoints.weights.bit_types import BITS
from dsforge.checkpoints.zero.atoms import Piece
from dsforge.errors import EXIT_FINDINGS, Problem, SpecError
from dsforge.findings import Finding

CHUNK_BYTES = 1024 * 1024
HINT = "`dsforge ckpt verify` lists all problems; use another checkpoint or copy it again"

Advance = Callable[[int], None]


class UnusableError(SpecError):
    """A checkpoint is damaged or not whole, as `dsforge ckpt verify` would say."""

    exit_code = EXIT_FINDINGS

    def __init__(self, path: Path, findings: Iterable[Finding]) -> None:
        problems = tuple(Problem(f.rule, f.message, f.fix, f.file) for f in findings)
        super().__init__(problems, f"{path} cannot be used; nothing was written")
        self.hint = HINT


def judge(folder: Folder) -> None:
    """Raise UnusableError where `verify`, without checksums, finds an error in a checkpoint."""
    found = verify_folder(folder._replace(pointer=None), checksums=False)
    wrong = [finding for finding in found if finding.severity == "error"]
    if wrong:
        raise UnusableError(folder.path, wrong)


class CheckedArchive(Archive):
    """A torch file that returns only bytes that match their checksums."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._sums: dict[str, list[int]] = {}  # of each chunk of a record that was checked
        self._last: tuple[str, int, bytes] = ("", 0, b"")  # the chunk that was read last

    def content(self, record: Record) -> bytes:
        """The bytes of a record. Raises UnusableError where they do not match their checksum."""
        found = super().content(record)
        if len(found) != record.bytes or zlib.crc32(found) != record.crc32:
            raise self._damaged(record)
        return found

    def check(self, name: str, advance: Advance) -> None:
        """Compare a record with its checksum, once. Raises UnusableError."""
        if name in self._sums or name not in self.records:
            return
        record, total, sums = self.records[name], 0, []
        with opened(self.path) as descriptor:
            for begin in range(0, record.bytes, CHUNK_BYTES):
                count = min(CHUNK_BYTES, record.bytes - begin)
                part = read_at(descriptor, record.begin + begin, count)
                total = zlib.crc32(part, total)
                sums.append(zlib.crc32(part))
                advance(len(part))
        if total != record.crc32:
            raise self._damaged(record)
        self._sums[name] = sums

    def elements(self, tensor: StoredTensor, begin: int, end: int) -> NDArray[Any]:
        """The bits of some elements of a tensor, compared on the way. Raises UnusableError."""
        self.check_range(tensor, begin, end)
        name, bits = self.locate(tensor).name, np.dtype(BITS[tensor.storage.dtype])
        self.check(name, lambda _: None)
        first, last = ((tensor.offset + at) * bits.itemsize for at in (begin, end))
        chunks = range(first // CHUNK_BYTES, -(-last // CHUNK_BYTES))
        whole = b"".join(self._chunk(name, number) for number in chunks)
        skipped = first - chunks.start * CHUNK_BYTES
        return np.frombuffer(whole, bits, end - begin, skipped)

    def _chunk(self, name: str, number: int) -> bytes:
        """A chunk of a record, as it was when the record was checked."""
        if self._last[:2] == (name, number):
            return self._last[2]
        record, begin = self.records[name], number * CHUNK_BYTES
        with opened(self.path) as descriptor:
            count = min(CHUNK_BYTES, record.bytes - begin)
            part = read_at(descriptor, record.begin + begin, count)
        if zlib.crc32(part) != self._sums[name][number]:
            why = "its bytes changed while they were read"
            raise UnusableError(self.path, [error("bytes-changed", self.path.name, why)])
        self._last = (name, number, part)
        return part

    def _damaged(self, record: Record) -> UnusableError:
        why = f"record {record.name}: its bytes do not match their checksum"
        if not self.has_sums:
            why = "contains no checksums; `--unchecked` reads it without checksums"
        return UnusableError(self.path, [error("bytes-changed", self.path.name, why)])


def check_pieces(pieces: Iterable[Piece], watcher: Watcher) -> None:
    """Compare the records of some pieces with their checksums. Raises UnusableError.

    Does so only for those in archives that check; plain ones are taken as they are.
    """
    records: dict[tuple[Path, str], tuple[CheckedArchive, Record]] = {}
    for archive, tensor, *_ in pieces:
        if isinstance(archive, CheckedArchive):
            record = archive.locate(tensor)
            records[archive.path, record.name] = (archive, record)
    watcher.begin("checked", sum(record.bytes for _, record in records.values()))
    for archive, record in records.values():
        archive.check(record.name, watcher.advance)
