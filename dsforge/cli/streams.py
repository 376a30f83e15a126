"""Streams: stdout and stderr that take every text, whatever the shell has made of them.

A closed stream, an encoding without our characters, a full disk or a reader that has gone must not
end a command in a traceback: what cannot be shown is shown as far as it can be.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

from dsforge.errors import EXIT_USER, DsforgeError

# What a write to an output says when the disk behind it is full; it names no file.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def steady() -> None:
    """Make both streams take any text; one that is closed leads nowhere."""
    sys.stdout = _replacing_errors(sys.stdout)
    sys.stderr = _replacing_errors(sys.stderr)


def _replacing_errors(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 (to the end)
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:  # a test's stand-in has none
        reconfigure(errors="backslashreplace")
    return stream


def flush() -> None:
    """Write out what is left. Raises DsforgeError where the output has no room."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`: the reader has seen enough
        silence(sys.stdout)
        sys.exit(EXIT_USER)
    except OSError as error:
        silence(sys.stdout)
        raise DsforgeError(f"the output cannot be written: {error.strerror}") from error


def silence(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: the interpreter flushes it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
