"""Relays what a launch prints: all of it into a log, what a person needs to the screen.

Launchers and libraries announce themselves on every rank: start-up lines, notices of deprecation,
progress bars of files. They go to the log alone. What is not recognised as such is shown, and
nothing is dropped from the log.
"""

from __future__ import annotations

import os
import platform
import re
import select
import threading
import time
from contextlib import suppress
from pathlib import Path

STDOUT, STDERR = 1, 2
LOGS = "logs"  # folder in the output of a run
KEPT = 10  # newest logs of launches
MOST_BYTES = 1 << 30  # of a log; what comes then is shown and not kept
PART = 1 << 16
QUIET_S = 0.5  # after which a line without its end is passed on as well
LAST_S = 2.0  # for what is still in the pipe when all processes have ended
LONGEST = 1 << 20  # bytes of a line that are waited for
SHOW_ALL = "DSFORGE_VERBOSE"  # variable that has everything shown

_NOISE = re.compile(
    rb"""
    \[\d{4}-\d\d-\d\d\s[\d:,]+\]\s\[INFO\]           # DeepSpeed, on every rank
    | ^[^'"]*:\ (Future|Deprecation|PendingDeprecation)Warning:\s
    | ^\s+warnings\.warn\(
    | ^\[?transformers\]?\ Loading\ a\ GGUF\ checkpoint
    | ^(Failed\ to\ load\ \w+\ \w+\ from\ kernels-community)
    | ^(Loading\ extension\ module|Using\ \S+\ as\ PyTorch\ extensions\ root)
    | ^(Emitting\ ninja\ build\ file|Building\ extension\ module|ninja:\ no\ work\ to\ do)
    | ^(Allowing\ ninja\ to\ set|Detected\ CUDA\ files,\ patching|Time\ to\ load\ \w+\ op:)
    | ^(DeepSpeed\ )?deepspeed\.ops\.\S+\ built\ successfully
    | ^Setting\ ds_accelerator\ to
    | \d%\|.*\|\s*\d+/\d+\s\[                          # a bar of tqdm
    """,
    re.VERBOSE,
)


def is_noise(line: bytes) -> bool:
    """Whether a line is an announcement that every launch makes."""
    return _NOISE.search(line) is not None


class Relay:
    """One log for both streams of a launch, and the lines of each that are shown."""

    def __init__(self, log: Path | None) -> None:
        self._log = None if log is None else _opened(log)
        self._kept = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._shown = time.monotonic()
        self._shows_all = bool(os.environ.get(SHOW_ALL))

    def pipe(self, screen: int) -> int:
        """The end of a pipe to write to; what is written is relayed to the descriptor `screen`."""
        reader, writer = os.pipe()
        thread = threading.Thread(target=self._relay, args=(reader, screen), daemon=True)
        self._threads.append(thread)
        thread.start()
        return writer

    @property
    def silent_s(self) -> float:
        """Seconds since a line was shown."""
        return time.monotonic() - self._shown

    def say(self, line: str) -> None:
        """Show a line of the launch itself."""
        self._show(f"{line}\n".encode(), STDERR)

    def end(self) -> None:
        """Relay what is left; a process that outlived the launch is not waited for."""
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * LAST_S)
        if self._log is not None:
            with suppress(OSError):
                os.close(self._log)

    def _relay(self, reader: int, screen: int) -> None:
        """Read a pipe to its end."""
        line, last = b"", time.monotonic()
        while True:
            ready = select.select([reader], [], [], QUIET_S)[0]
            part = os.read(reader, PART) if ready else b""
            if ready and not part:
                break
            if not part:
                if self._ended.is_set() and time.monotonic() - last > LAST_S:
                    break
                self._show(line, screen)
                line = b""
                continue
            last = time.monotonic()
            self._keep(part)
            *lines, line = (line + part).replace(b"\r\n", b"\n").split(b"\n")
            self._show(b"".join(each + b"\n" for each in map(_last_state, lines)), screen)
            if len(line) > LONGEST:
                self._show(line, screen)
                line = b""
        self._show(line, screen)
        os.close(reader)

    def _keep(self, part: bytes) -> None:
        """Write a part to the log, while it is not too long and the disk takes it."""
        with self._lock:
            if self._log is None or self._kept > MOST_BYTES:
                return
            self._kept += len(part)
            with suppress(OSError):
                os.write(self._log, part)

    def _show(self, text: bytes, screen: int) -> None:
        """Show those lines of a text that are no noise."""
        shown = text
        if not self._shows_all:
            shown = b"".join(line for line in text.splitlines(keepends=True) if not is_noise(line))
        if shown:
            self._shown = time.monotonic()
        with suppress(OSError):  # nobody reads it any more
            while shown:
                shown = shown[os.write(screen, shown) :]


def new_log(output: Path) -> Path | None:
    """A new log in the output folder of a run; none where it cannot be written."""
    folder = output / LOGS
    host = re.sub(r"[^A-Za-z0-9-]", "_", platform.node())[:60]  # each may have a launch of its own
    name = time.strftime(f"launch-%Y%m%d-%H%M%S-{host}.log")
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("launch-*.log"))[: -(KEPT - 1)]:
            old.unlink()
        return folder / name
    return None


def _last_state(line: bytes) -> bytes:
    """What a terminal would show of a line that was written over with carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2] if b"\r" in line else line


def _opened(log: Path) -> int | None:
    """The descriptor of a new log; none where the disk refuses it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        return os.open(log, flags, 0o666)
    return None
