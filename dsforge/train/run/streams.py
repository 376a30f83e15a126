"""Output streams that never end a rank: output that has lost its reader is discarded.

A terminal that was closed, a pipe whose reader has gone, a log on a full disk: the next line that
anything prints, a library's included, would raise in the middle of a step or a save. So stdout and
stderr are given a lowest layer that turns to /dev/null at the first failure, and closed ones are
opened there before another file can take their number.
"""

from __future__ import annotations

import io
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDOUT, STDERR = 1, 2
_REPLACED: list[TextIO] = []  # kept: one that is collected would close the descriptor
_LOST: set[int] = set()  # descriptors that were muted as nobody read them any more
SLOW_READER_WAIT_S = 1.0  # for a reader that is slow, of a stream that does not wait for it


class LastingOutput(io.FileIO):
    """A descriptor that takes everything; after a failed write, without keeping it."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or drop what can no longer be written; the number of bytes that are done with."""
        try:
            written = super().write(data)
            if written is None:  # a stream that does not wait
                select.select([], [self], [], SLOW_READER_WAIT_S)
                written = super().write(data)
        except OSError:
            _LOST.add(self.fileno())
            mute(self.fileno())
            written = None
        return memoryview(data).nbytes if written is None else written


def keep_writable() -> None:
    """Have stdout and stderr of this process take all that is written, whatever becomes of them."""
    for descriptor in (0, STDOUT, STDERR):
        _open_if_closed(descriptor)
    sys.stdout = _reopened(sys.stdout, STDOUT)
    sys.stderr = _reopened(sys.stderr, STDERR)


def mute(descriptor: int) -> None:
    """Point a descriptor at nothing."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, descriptor)
        os.close(nothing)


def mute_if_nobody_listens() -> None:
    """Point stdout and stderr at nothing where their other end is gone."""
    for descriptor in (STDOUT, STDERR):
        if _nobody_listens(descriptor):
            _LOST.add(descriptor)
            mute(descriptor)


def is_unheard() -> bool:
    """Whether stdout or stderr has lost its reader."""
    return bool(_LOST) or any(map(_nobody_listens, (STDOUT, STDERR)))


def _nobody_listens(descriptor: int) -> bool:
    poll = select.poll()
    with suppress(OSError):
        poll.register(descriptor, 0)
        return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))
    return False


def _open_if_closed(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing != descriptor:
            os.dup2(nothing, descriptor)
            os.close(nothing)


def _reopened(stream: TextIO | None, descriptor: int) -> TextIO:
    """A text stream onto a descriptor as the given one is; the given one where it is elsewhere."""
    if stream is not None:
        if not _is_on(stream, descriptor):  # a test's
            return stream
        _REPLACED.append(stream)
    return io.TextIOWrapper(
        io.BufferedWriter(LastingOutput(descriptor, "w", closefd=False)),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=descriptor == STDERR or os.isatty(descriptor),
    )


def _is_on(stream: TextIO, descriptor: int) -> bool:
    """Whether a stream writes to a descriptor; what it holds yet goes out."""
    try:
        if stream.fileno() != descriptor:
            return False
    except (OSError, ValueError):
        return False
    with suppress(OSError):
        stream.flush()
    return True
