"""Confine: work on what others wrote, done in a process of its own that can be ended.

A template is a program. Its loops cannot be counted beforehand, one expression can ask for ten
gigabytes, and deep nesting can end an interpreter. So it runs in a fork that has little memory and
little time, may write, start and connect to nothing, and answers with bytes through a pipe.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

_PART = 1 << 16
_PAGE = resource.getpagesize()
_REACHING = (
    *("subprocess.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "pty."),
    *("socket.", "ctypes.", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link"),
    *("os.symlink", "os.truncate", "os.chmod", "os.chown", "os.kill", "os.putenv", "shutil."),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Limits(NamedTuple):
    """What confined work may use."""

    seconds: float
    memory_bytes: int  # beyond what this process has
    answer_bytes: int


class EndedError(Exception):
    """Confined work that came to no answer; the message says why, as the end of a sentence."""


def confined(work: Callable[[], bytes], limits: Limits) -> bytes:
    """What the work answers. Raises EndedError where it ran into a limit or died."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy has threads; the child none
        child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing, limits)
    os.close(writing)
    try:
        return _answer(reading, child, limits)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _answer(reading: int, child: int, limits: Limits) -> bytes:
    """All that the child writes until it ends."""
    deadline = time.monotonic() + limits.seconds
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    answer = bytearray()
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        part = os.read(reading, _PART)
        if not part:
            _check_end(child)
            return bytes(answer)
        answer += part
        if len(answer) > limits.answer_bytes:
            raise EndedError(f"makes more than {limits.answer_bytes >> 20} MiB of text")
    raise EndedError(f"takes more than {limits.seconds:g} s")


def _check_end(child: int) -> None:
    """Raise EndedError where the child did not end by itself."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise EndedError(f"ends the process that it runs in ({name})")
    if status:
        raise EndedError("exceeds its memory limit")


def _work(work: Callable[[], bytes], writing: int, limits: Limits) -> NoReturn:
    """In the child: the work within the limits; never returns."""
    code = 1
    try:
        _limit(limits)
        sys.addaudithook(_refuse)
        answer = memoryview(work())
        while answer:
            answer = answer[os.write(writing, answer) :]
        code = 0
    finally:
        os._exit(code)


def _limit(limits: Limits) -> None:
    """Bound memory, processor time and files of this process."""
    with open("/proc/self/statm", encoding="ascii") as stream:  # noqa: PTH123 (pathlib is slower)
        present = int(stream.read().split()[0]) * _PAGE
    seconds = int(limits.seconds) + 1
    for what, most in (
        (resource.RLIMIT_AS, present + limits.memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # a lower limit is there already
            resource.setrlimit(what, (most, most))


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: what would reach outside raises PermissionError."""
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
    if writes or event.startswith(_REACHING):
        raise PermissionError(f"{event} is not allowed in templates")
