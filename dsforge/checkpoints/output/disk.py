"""File system operations that outputs rely on: flush, read from the disk itself, rename safely.

A rename decides whether an output is there. It must not replace what somebody else put there in
the meantime, which plain `rename` does with empty folders and files: so the kernel is asked not to
replace, and where a file system cannot do that, the name is reserved first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import zlib
from pathlib import Path

CHUNK_BYTES = 4 * 1024 * 1024
NO_REPLACE, EXCHANGE = 1, 2  # flags of renameat2, linux/fs.h
_THIS_FOLDER = -100  # AT_FDCWD
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def flush(path: Path) -> None:
    """Put the bytes of a file, or the entries of a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Put a folder and everything below it on the disk."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            flush(Path(root, name))
        flush(Path(root))


def drop_from_cache(path: Path) -> None:
    """Put the bytes of a file on the disk, and have the next read come from there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def crc32_on_disk(path: Path) -> int:
    """CRC-32 of a file as the disk holds it: flushed and dropped from the cache before."""
    found = 0
    drop_from_cache(path)
    with path.open("rb", buffering=0) as stream:
        while part := stream.read(CHUNK_BYTES):
            found = zlib.crc32(part, found)
    return found


def rename_new(source: Path, target: Path) -> None:
    """Rename a file or folder. Raises FileExistsError where the target is taken by anything."""
    if _renamed(source, target, NO_REPLACE):
        return
    if source.is_dir():
        target.mkdir()
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
    try:
        source.rename(target)  # onto a folder only while that is empty
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error


def exchange(one: Path, other: Path) -> bool:
    """Whether two folders swapped names in one step; False where the file system cannot."""
    return _renamed(one, other, EXCHANGE)


def _renamed(source: Path, target: Path, flag: int) -> bool:
    """Whether renameat2 did it; False where it or the flag is unknown. Raises OSError."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    names = os.fsencode(source), os.fsencode(target)
    if call(_THIS_FOLDER, names[0], _THIS_FOLDER, names[1], flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN:
        return False
    raise OSError(code, os.strerror(code), str(target))
