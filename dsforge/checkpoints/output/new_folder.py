"""New folders that are complete or absent; files of others are never touched.

All writing happens in a folder of our own beside the output, with a random name. A file in it is
locked while its writer lives, so a later run can tell what a killed one left from what another
still writes. The output gets its name by one rename, after everything is on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dsforge.checkpoints.output.disk import crc32_on_disk, exchange, flush, flush_tree, rename_new
from dsforge.errors import DsforgeError
from dsforge.units import size

Say = Callable[[str], None]


class Watcher(NamedTuple):
    """Receives remarks and progress in bytes of work that may take long."""

    say: Say = lambda _: None
    begin: Callable[[str, int], None] = lambda *_: None
    advance: Callable[[int], None] = lambda _: None


SILENT = Watcher()

PREFIX = ".dsforge-unfinished-"
WRITER = "writer"  # the file that is locked, in a folder of that name
CONTENT = "content"
MARK = b"dsforge writes here, and removes this folder when it is done\n"
ANOTHER = "choose a folder that does not exist"
MARGIN_BYTES = 64 * 1024  # for folders and small files, beside the bytes that are known
HINTS = {
    errno.ENOSPC: "free space on its disk, or write to another one",
    errno.EDQUOT: "your quota is used up: free space, or write to another disk",
    errno.EROFS: "its disk is read-only: write to another one",
    errno.EACCES: "write to a folder with write permission, or change the permissions",
    errno.EPERM: "write to a folder with write permission, or change the permissions",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`), or write to another disk",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOTDIR: "a file exists at the path of a folder: choose another path",
    errno.ELOOP: "a link in the path points to itself: choose another path",
}


def check_new(out: Path) -> Path:
    """The absolute path of an output that does not exist yet. Raises DsforgeError."""
    with explained(out):
        if out.name in ("", ".."):
            raise DsforgeError(f"{out} exists", ANOTHER)
        for path in (out.parent, *out.parent.parents):
            if path.is_symlink() and not path.exists():
                raise DsforgeError(f"cannot write {out}: {path} is a dangling link", ANOTHER)
        place = Path(os.path.realpath(out.parent)) / out.name
        try:
            status = place.lstat()
        except FileNotFoundError:
            return place
    if stat.S_ISLNK(status.st_mode):
        raise DsforgeError(f"{out} is a link; dsforge does not write through links", ANOTHER)
    raise DsforgeError(f"{out} exists", ANOTHER)


@contextmanager
def new_folder(out: Path, say: Say, *, needed_bytes: int = 0) -> Iterator[Path]:
    """A folder to write into, renamed to `out` on success; removed on failure.

    Raises DsforgeError where `out` exists, its disk has no room for `needed_bytes`, or anything
    cannot be written. `say` is told of what an earlier run left behind and was removed.
    """
    place = check_new(out)
    with explained(out), _parents(place.parent), workplace(place.parent, say) as own:
        check_room(out, place.parent, needed_bytes)
        content = own / CONTENT
        content.mkdir()
        yield content
        flush_tree(content)
        try:
            rename_new(content, place)
        except FileExistsError as error:
            message = f"{out} was created by another process in the meantime; it was not touched"
            raise DsforgeError(message, ANOTHER) from error
        flush(place.parent)


@contextmanager
def replaced_folder(folder: Path, say: Say, *, needed_bytes: int = 0) -> Iterator[Path]:
    """A folder to write into, which replaces `folder` on success.

    The earlier one stands until then, and is removed after. Raises DsforgeError where anything
    but a folder is in the place, or where it cannot be written.
    """
    with explained(folder), workplace(folder.parent, say) as own:
        check_room(folder, own, needed_bytes)
        content = own / CONTENT
        content.mkdir()
        yield content
        flush_tree(content)
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise DsforgeError(f"{folder} is not a folder of an earlier run", "move it away")
        if not folder.exists() or not exchange(content, folder):
            if folder.exists():
                folder.rename(own / "earlier")
            rename_new(content, folder)
        flush(folder.parent)


@contextmanager
def workplace(parent: Path, say: Say) -> Iterator[Path]:
    """A folder of our own in another, removed at the end; what killed runs left goes first."""
    sweep(parent, say)
    own, lock = _locked_new_folder(parent)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


@contextmanager
def explained(out: Path) -> Iterator[None]:
    """A context in which an OSError becomes a DsforgeError with the way out."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        hint = HINTS.get(error.errno or 0, "choose another path")
        raise DsforgeError(f"cannot write {out}: {why}", hint) from error


def write_file(path: Path, content: bytes) -> None:
    """Write a new file and read it back from the disk. Raises OSError, DsforgeError."""
    with path.open("xb") as stream:
        stream.write(content)
    check_written(path, zlib.crc32(content))


def check_written(path: Path, crc32: int) -> None:
    """Compare a file on the disk with the checksum of what was written. Raises DsforgeError."""
    if crc32_on_disk(path) != crc32:
        message = f"{path.name} has other content than was written to it"
        raise DsforgeError(message, "the disk may be faulty: write to another one")


def check_outside(out: Path, *folders: Path | None) -> None:
    """Raise DsforgeError where an output lies in a folder that is only to be read."""
    place = check_new(out)
    for folder in folders:
        if folder is not None and place.is_relative_to(os.path.realpath(folder)):
            raise DsforgeError(
                f"{out} is inside {folder}, which must not be changed", "choose another folder"
            )


def check_room(out: Path, folder: Path, needed_bytes: int) -> None:
    """Raise DsforgeError where the disk of a folder has no room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed_bytes + MARGIN_BYTES > free:
        message = f"{out} requires {size(needed_bytes)}, but {size(free)} are free on its disk"
        raise DsforgeError(message, HINTS[errno.ENOSPC])


@contextmanager
def _parents(folder: Path) -> Iterator[None]:
    """The folder, created if need be; what was created goes again where the body fails."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):  # not there, or not empty any more
                path.rmdir()
        raise


def _locked_new_folder(parent: Path) -> tuple[Path, int]:
    """A new folder of our own, and the descriptor that holds its lock."""
    while True:
        own = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            lock = os.open(own / WRITER, flags, 0o600)
        except FileNotFoundError:  # another run took it for an abandoned one
            continue
        except BaseException:
            with suppress(OSError):
                own.rmdir()
            raise
        with suppress(OSError):  # a file system without locks: then nobody sweeps it
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            with suppress(OSError):  # a full disk: an empty mark is known, too
                os.write(lock, MARK)
            return own, lock
        os.close(lock)


def sweep(parent: Path, say: Say) -> None:
    """Remove what killed runs of ours left unfinished in a folder; never what still lives."""
    for path in sorted(parent.glob(f"{PREFIX}*")):
        try:
            if _remove_abandoned(path):
                say(f"removed {path}, an unfinished result of an earlier run")
        except OSError as error:
            say(f"{path} was left unfinished by an earlier run; remove it ({error.strerror})")


def _remove_abandoned(path: Path) -> bool:
    """Whether a folder was ours, abandoned, and is removed. Raises OSError where it cannot be."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    try:
        lock = os.open(path / WRITER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:  # killed before its first file
        with suppress(OSError):
            path.rmdir()
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.read(lock, len(MARK) + 1) not in (MARK, b""):
            return False
        shutil.rmtree(path)
    except BlockingIOError:  # its writer lives
        return False
    finally:
        os.close(lock)
    return True
