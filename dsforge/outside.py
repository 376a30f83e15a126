"""Outside: the one way to open a file that dsforge did not write itself, and to read its JSON.

A path may name anything: a pipe that nobody writes to, a terminal, an endless device, a folder, a
file of a terabyte. So a file is opened without waiting, is told by what was opened and not by its
name, is bounded in bytes, and a pipe in seconds too. Pipes that somebody fills are read: people
write `--hostfile <(...)` and `/dev/stdin`. `train` reads its data and `diagnose` its logs part by
part, through `opened`; everybody else gets the whole text.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import select
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

MIB = 1 << 20
WAIT_S = 6.0  # for a pipe, before it is given up
IMPATIENT_S = 1.0  # for the next pipe, right after one was given up
MAX_DIGITS = 400  # the largest float has 309
MAX_REPEATED = 10  # keys that one message names
NULL_DEVICE = os.makedev(1, 3)
_PART = 1 << 16
# When a pipe was given up last: five of them must not take five times as long.
_given_up = -math.inf
# The only folders whose files may be opened, as real paths; none: all of the file system.
_folders: tuple[str, ...] = ()


class UnreadableError(ValueError):
    """A file that cannot be read, in words that follow its name; `rule` says which kind of reason.

    `line` is where the fault is, 0 where it has no line.
    """

    def __init__(self, rule: str, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.rule, self.reason, self.line = rule, reason, line


def read_text(path: Path, most_bytes: int, *, pipes: bool = True) -> str:
    """The whole text of a file. Raises UnreadableError; where `pipes` is off, for a pipe too."""
    return decoded(read_bytes(path, most_bytes, pipes=pipes))


def read_bytes(path: Path, most_bytes: int, *, pipes: bool = True) -> bytes:
    """The whole content of a file. Raises UnreadableError where it is larger than `most_bytes`."""
    with opened(path, pipes=pipes) as stream:
        if isinstance(stream, _Pipe):
            stream.deadline = time.monotonic() + stream.patience_s
        parts, size = [], 0
        while size <= most_bytes and (part := _part(stream, most_bytes + 1 - size)):
            parts.append(part)
            size += len(part)
    if size > most_bytes:
        large, unit = (most_bytes >> 20, "MiB") if most_bytes >= MIB else (most_bytes >> 10, "KiB")
        raise UnreadableError("file-too-large", f"is larger than {large} {unit}")
    return b"".join(parts)


def decoded(data: bytes) -> str:
    """The text in bytes. Raises UnreadableError, with the line, where they are not UTF-8 text."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnreadableError("file-not-text", "is not UTF-8 text but UTF-16: save it as UTF-8", 1)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UnreadableError("file-not-text", "is not UTF-8 text", line) from None


@contextmanager
def opened(path: Path, *, pipes: bool = True) -> Iterator[io.RawIOBase]:
    """A file to be read part by part; a pipe may fall silent for seconds, not for ever.

    Raises UnreadableError for what is neither a regular file nor a pipe, and where reading fails.
    """
    with _open(path) as descriptor:
        yield _stream(descriptor, pipes=pipes)


@contextmanager
def opened_file(path: Path) -> Iterator[int]:
    """The descriptor of a regular file, for what is read here and there. Raises UnreadableError."""
    with _open(path) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableError("file-unreadable", "is not a regular file")
        yield descriptor


def allow_only(*folders: Path) -> None:
    """Let this process open files below these folders alone; without folders, everywhere.

    It holds for whatever is opened here, so also for paths that a file names, and for links.
    """
    global _folders  # noqa: PLW0603 (what a process may read is a property of the process)
    _folders = tuple(os.path.realpath(folder) for folder in folders)


def is_allowed(path: Path) -> bool:
    """Whether `allow_only` lets a file be opened, wherever its links lead."""
    real = os.path.realpath(path)
    return not _folders or any(os.path.commonpath((real, f)) == f for f in _folders)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    """The descriptor of whatever has a name, opened without waiting. Raises UnreadableError."""
    if _folders and not is_allowed(path):
        raise UnreadableError("file-outside", "is outside the folder that may be read")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UnreadableError("file-unreadable", f"cannot be read: {_os_reason(error)}") from None
    try:
        if _folders and not is_allowed(Path(f"/proc/self/fd/{descriptor}")):
            raise UnreadableError("file-outside", "is outside the folder that may be read")
        yield descriptor
    except OSError as error:
        raise UnreadableError("file-unreadable", f"cannot be read: {_os_reason(error)}") from None
    finally:
        os.close(descriptor)


def _stream(descriptor: int, *, pipes: bool) -> io.RawIOBase:
    """What was opened, if it can be read without harm. Raises UnreadableError."""
    state = os.fstat(descriptor)
    kind = stat.S_IFMT(state.st_mode)
    if kind == stat.S_IFDIR:
        raise UnreadableError("file-is-a-folder", "is a folder; name the file in it")
    if kind == stat.S_IFREG or (kind == stat.S_IFCHR and state.st_rdev == NULL_DEVICE):
        return io.FileIO(descriptor, closefd=False)
    if kind == stat.S_IFIFO and pipes:
        return _Pipe(descriptor)
    what = "a pipe" if kind == stat.S_IFIFO else "a device"
    raise UnreadableError("file-unreadable", f"cannot be read: it is {what}, not a regular file")


class _Pipe(io.RawIOBase):
    """A pipe that is given up once it has been silent too long, or after its deadline."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        lately = time.monotonic() - _given_up < WAIT_S
        self.patience_s = IMPATIENT_S if lately else WAIT_S
        self.deadline = math.inf

    def readable(self) -> bool:
        """Yes: that is all it is for."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Bytes that have come; 0 at the end. Raises UnreadableError where none come."""
        global _given_up  # noqa: PLW0603 (one process has one patience)
        left_s = min(self.patience_s, self.deadline - time.monotonic())
        if left_s <= 0 or not self._poll.poll(left_s * 1000):
            _given_up = time.monotonic()
            reason = f"cannot be read: a pipe without data for {self.patience_s:g} s"
            raise UnreadableError("file-unreadable", reason)
        part = os.read(self._descriptor, len(buffer))
        buffer[: len(part)] = part
        return len(part)


def _part(stream: io.RawIOBase, most_bytes: int) -> bytes:
    """The next bytes; none at the end. A file that would make us wait raises OSError."""
    part = stream.read(min(most_bytes, MIB if isinstance(stream, io.FileIO) else _PART))
    if part is None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return part


def _os_reason(error: OSError | ValueError) -> str:
    """The reason in the words of the system."""
    if getattr(error, "errno", None) == errno.ENXIO:
        return "it is a socket or a device, not a regular file"
    return getattr(error, "strerror", None) or str(error)


def json_value(text: str, *, unique: bool = False) -> Any:
    """The value of JSON text, every number of it finite. Raises UnreadableError.

    With `unique`, keys that occur twice and halves of characters are refused, too, and -0 is no
    whole number: readers of JSON differ in what they make of them.
    """
    if not unique:
        return _loaded(text, None, _short)
    repeated: list[str] = []
    value = _loaded(text, partial(_whole_characters, repeated), _unsigned_zero)
    if repeated:
        keys = ", ".join(repr(key[:80]) for key in repeated[:MAX_REPEATED])
        occur = f"keys {keys} occur" if len(repeated) > 1 else f"key {keys} occurs"
        raise UnreadableError("json", f"is not JSON: the {occur} more than once")
    return value


def json_with_repeated(text: str) -> tuple[Any, list[str]]:
    """The value of JSON text, and all keys that one of its objects has more than once.

    The innermost objects come first; of a repeated key the last value counts. Raises
    UnreadableError.
    """
    repeated: list[str] = []
    return _loaded(text, partial(_object, repeated), _short), repeated


_Pairs = list[tuple[str, Any]]


def _loaded(
    text: str,
    made_object: Callable[[_Pairs], dict[str, Any]] | None,
    whole: Callable[[str], int | float],
) -> Any:
    """The value of JSON text, whose objects and whole numbers are made like this."""
    try:
        return json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=whole,
            object_pairs_hook=made_object,
        )
    except RecursionError:
        raise UnreadableError("json-depth", "is not JSON: nested too deeply") from None
    except ValueError as error:
        reason, line = getattr(error, "msg", str(error)), getattr(error, "lineno", 0)
        raise UnreadableError("json", f"is not JSON: {reason}", line) from None


def _object(repeated: list[str], pairs: _Pairs) -> dict[str, Any]:
    """An object; `repeated` takes the keys that it has more than once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated += sorted(key for key, count in counts.items() if count > 1)
    return found


def _whole_characters(repeated: list[str], pairs: _Pairs) -> dict[str, Any]:
    """An object without halves of characters. Raises ValueError."""
    found = _object(repeated, pairs)
    for texts in (found.keys(), found.values()):
        for text in texts:
            if isinstance(text, str):
                text.encode()
    return found


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return value


def _short(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"{digits[:40]}... is too large for a number")
    return int(digits)


def _unsigned_zero(digits: str) -> int | float:
    """A whole number; -0 is none."""
    return _short(digits) if digits != "-0" else -0.0
