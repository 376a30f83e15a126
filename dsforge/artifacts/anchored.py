"""Anchored: a folder that is held open, and what is in it, reached without following a link.

Between a check of a name and its use somebody may put a link in its place. So every step from the
folder down is an open relative to the one before it, which refuses links, and every operation is
relative to the last of them: it cannot end outside, whoever renames what meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from dsforge.artifacts.owner import check_owner
from dsforge.errors import DsforgeError

MOST_BYTES = 16 << 20  # of one file; a plan has 200 KB
MOST_FILES = 2_000
ANOTHER = "choose another --out"
REMOVE = "remove it or choose another --out"

COPY = ".dsforge-copy"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Anchored:
    """An open folder; names are relative to it, with forward slashes.

    Raises DsforgeError where a link, or something that is no file, is in the way.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    def state(self, name: str) -> os.stat_result | None:
        """What the name is, a link as itself; none where it does not exist."""
        with self.parent(name) as (folder, last):
            return None if folder is None else _state(folder, last)

    def content(self, name: str) -> bytes | None:
        """Bytes of a file; none where it does not exist."""
        with self.parent(name) as (folder, last):
            if folder is None or _state(folder, last) is None:
                return None
            self.check_file(name)
            descriptor = os.open(last, _READ, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as stream:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise DsforgeError(f"{self.path / name} is not a file", REMOVE)
                data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise DsforgeError(f"{self.path / name} is larger than {MOST_BYTES >> 20} MiB", REMOVE)
        return data

    def check_file(self, name: str) -> None:
        """Raise DsforgeError where something that is no regular file has the name."""
        found = self.state(name)
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise DsforgeError(f"{self.path / name} is a symbolic link", REMOVE)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise DsforgeError(f"{self.path / name} is not a file", REMOVE)

    def write(self, name: str, content: bytes, mode: int) -> None:
        """A new file; its mode is there before its content. Raises OSError where it exists."""
        with self.parent(name, make=True) as (folder, last):
            descriptor = os.open(last, _NEW, mode, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)

    def move(self, name: str, other: Anchored) -> None:
        """Put a file in place of the one with the same name in another folder, at once."""
        with self.parent(name) as (source, last), other.parent(name, make=True) as (target, _):
            try:
                os.replace(last, last, src_dir_fd=source, dst_dir_fd=target)
            except OSError as error:
                if error.errno != errno.EXDEV or target is None or source is None:
                    raise
                _carry(source, last, target)  # something is mounted on the folder of the file

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        with self.parent(name) as (folder, last):
            if folder is not None and _state(folder, last) is not None:
                os.unlink(last, dir_fd=folder)

    def narrow(self, name: str) -> None:
        """Take a file from everybody but its owner."""
        with self.parent(name) as (folder, last):
            found = None if folder is None else _state(folder, last)
            if found is not None and stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
                descriptor = os.open(last, _READ, dir_fd=folder)
                try:
                    os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~0o077)
                finally:
                    os.close(descriptor)

    def files(self) -> list[str]:
        """Names of all files below, in order. Raises DsforgeError where there is anything else."""
        found: list[str] = []
        for where, _, names, descriptor in os.fwalk(".", dir_fd=self.descriptor):
            inner = PurePosixPath(where)
            found += [str(inner / name) for name in names]
            for name in names:
                state = _state(descriptor, name)
                if state is None or not stat.S_ISREG(state.st_mode):
                    place = self.path / inner / name
                    raise DsforgeError(f"{place} is a symbolic link or no file", REMOVE)
            if len(found) > MOST_FILES:
                raise DsforgeError(f"{self.path} has more than {MOST_FILES} files", REMOVE)
        return sorted(found)

    @contextmanager
    def inner(self, name: str) -> Iterator[Anchored | None]:
        """A folder directly in this one, of the same kind of owner; none where it is not there."""
        if _state(self.descriptor, name) is None:
            yield None
            return
        descriptor = _opened(name, self.descriptor, self.path / name)
        try:
            check_owner(descriptor, self.path / name)
            yield Anchored(self.path / name, descriptor)
        finally:
            os.close(descriptor)

    def drop(self, name: str) -> None:
        """Remove a folder in this one with all files in it, and nothing that is no file."""
        with self.inner(name) as folder:
            if folder is None:
                return
            folder.files()
        shutil.rmtree(name, dir_fd=self.descriptor)

    def make(self, name: str) -> None:
        """A new folder in this one. Raises OSError where anything has the name."""
        os.mkdir(name, dir_fd=self.descriptor)

    def rename(self, name: str, new: str) -> None:
        """Give a folder in this one another name."""
        os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    @contextmanager
    def parent(self, name: str, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
        """The open folder that a name is in, and its last part; none where there is no folder."""
        *folders, last = PurePosixPath(name).parts
        place = self.path
        opened = [os.dup(self.descriptor)]
        try:
            for part in folders:
                place = place / part
                deeper = _deeper(part, opened[-1], place, make=make)
                if deeper is None:
                    yield None, last
                    return
                opened.append(deeper)
            yield opened[-1], last
        finally:
            for folder in opened:
                os.close(folder)


@contextmanager
def anchored(path: Path) -> Iterator[Anchored]:
    """The folder to ourselves; the lock ends with the process, however it ends."""
    descriptor = os.open(path, _FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Anchored(path, descriptor)
    except BlockingIOError as error:
        raise DsforgeError(f"another dsforge gen is writing {path}", "wait for it") from error
    finally:
        os.close(descriptor)


def _deeper(part: str, folder: int, place: Path, *, make: bool) -> int | None:
    """The open folder with a name in another one; none where there is none and none is made."""
    if _state(folder, part) is None:
        if not make:
            return None
        os.mkdir(part, dir_fd=folder)
    return _opened(part, folder, place)


def _opened(name: str, folder: int, place: Path) -> int:
    """A folder in another one, opened. Raises DsforgeError where it is a link or no folder."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        found = _state(folder, name)
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise DsforgeError(f"{place} is a symbolic link", REMOVE) from error
        raise DsforgeError(f"{place} is not a folder", REMOVE) from error


def _carry(source: int, name: str, target: int) -> None:
    """Move a file to a folder of another file system: a copy there takes its place at once."""
    copy = f".{name}{COPY}"
    with os.fdopen(os.open(name, _READ, dir_fd=source), "rb") as stream:
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        with suppress(FileNotFoundError):  # of a move that was cut short
            os.unlink(copy, dir_fd=target)
        with os.fdopen(os.open(copy, _NEW, mode, dir_fd=target), "wb") as writer:
            shutil.copyfileobj(stream, writer)
            writer.flush()
            os.fsync(writer.fileno())
    os.replace(copy, name, src_dir_fd=target, dst_dir_fd=target)
    os.unlink(name, dir_fd=source)


def _state(folder: int, name: str) -> os.stat_result | None:
    """What a name in an open folder is, a link as itself; none where it does not exist."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
