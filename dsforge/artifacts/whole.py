"""Whole: one text file, there as a whole or as it was before, and never through a link."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dsforge.errors import DsforgeError

_LONGEST_NAME = 100  # letters of it in that of the temporary file
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN, _PRIVATE, _PERMISSIONS = 0o666, 0o600, 0o7777  # the first less the umask


def write_whole(
    path: Path,
    text: str,
    check: Callable[[], None] = lambda: None,
    *,
    over_links: bool = False,
) -> None:
    """Put a text in place of a file at once, with the mode and the owner of an old one.

    `check` is called when all but the last rename is done. Raises DsforgeError where a link or
    anything but a file has the name, and OSError from the disk; then nothing has changed. With
    `over_links` a link is replaced itself; none is ever followed.
    """
    old = None if over_links and path.is_symlink() else replaced(path)
    temporary = path.with_name(f".{path.name[:_LONGEST_NAME]}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, _NEW, _PLAIN if old is None else _PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(descriptor)
            if old is not None:
                _take_on(descriptor, old)
        check()
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def make_folder(folder: Path, hint: str, name: str = "") -> None:
    """Make a folder, with those above it; `name` is what the message calls it.

    Raises DsforgeError where that cannot be done.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{name or folder} cannot be created: {error.strerror}"
        raise DsforgeError(message, hint) from error


def replaced(path: Path) -> os.stat_result | None:
    """The file that a new one would replace; none where there is none.

    Raises DsforgeError where a link or anything but a file has the name.
    """
    try:
        old = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:  # a file where a folder is meant, a name that is too long
        raise DsforgeError(f"{path} cannot be written: {error.strerror}") from error
    if stat.S_ISLNK(old.st_mode):
        message = f"{path} is a symbolic link to {os.path.realpath(path)}"
        raise DsforgeError(message, "name that file itself")
    if not stat.S_ISREG(old.st_mode):
        raise DsforgeError(f"{path} is not a regular file", "name a file, or a new name")
    return old


def _take_on(descriptor: int, old: os.stat_result) -> None:
    """Give an open file the owner and the mode of an old one."""
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.fstat(descriptor).st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & _PERMISSIONS)
