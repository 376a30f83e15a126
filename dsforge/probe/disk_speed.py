"""Disk: a bounded measurement of sequential writing and reading, on request only."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from dsforge.probe.node_facts import DiskFact

BLOCK_BYTES = 8 << 20
FILE_BYTES = 256 << 20
LONGEST_S = 8.0  # per direction; a slow disk is judged by what it managed


def measured(disk: DiskFact) -> DiskFact:
    """The disk with its rates; unchanged where the file cannot be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=Path(disk.mount), prefix=".dsforge-") as file:
            write = _write_bytes_per_s(file.fileno())
            read = _read_bytes_per_s(file.fileno())
    except OSError:
        return disk
    return disk.model_copy(update={"read_bytes_per_s": read, "write_bytes_per_s": write})


def _write_bytes_per_s(descriptor: int) -> float:
    """Bytes/s of writing until the data is on the disk."""
    block = os.urandom(BLOCK_BYTES)  # zeros would be compressed away by some disks
    start, written = time.perf_counter(), 0
    while written < FILE_BYTES and time.perf_counter() - start < LONGEST_S:
        written += os.write(descriptor, block)
        os.fdatasync(descriptor)
    return written / (time.perf_counter() - start)


def _read_bytes_per_s(descriptor: int) -> float:
    """Bytes/s of reading, after the kernel was asked to forget the file."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(descriptor, 0, os.SEEK_SET)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < LONGEST_S:
        data = os.read(descriptor, BLOCK_BYTES)
        if not data:
            break
        done += len(data)
    return done / (time.perf_counter() - start)
