"""Progress of work that takes long, on stderr: nothing in the first seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsforge.checkpoints.output.new_folder import Watcher

QUIET_S = 3.0  # work that takes no longer is not reported
TERMINAL_S, LOG_S = 0.5, 5.0  # between two reports on a terminal, and in a log


@dataclass(slots=True)
class Progress:
    """Bytes done of a phase of the work, and when that was last shown."""

    what: str = ""
    done: int = 0
    total: int = 0
    shown: bool = False
    next_s: float = 0.0

    def begin(self, what: str, total: int) -> None:
        """Start to count the bytes of a phase."""
        self.what, self.done, self.total = what, 0, total
        self.next_s = self.next_s or time.monotonic() + QUIET_S

    def advance(self, count: int) -> None:
        """Count bytes; show them where it is time."""
        from dsforge.units import size

        self.done += count
        now = time.monotonic()
        if now < self.next_s or not self.total:
            return
        terminal = sys.stderr.isatty()
        line = f"{self.what}: {size(self.done)} of {size(self.total)}"
        begin, end = ("\r\033[K", "") if terminal else ("", "\n")
        with suppress(OSError):  # a log whose disk is full must not end the work
            print(f"{begin}{line}", end=end, file=sys.stderr, flush=True)
        self.shown = terminal
        self.next_s = now + (TERMINAL_S if terminal else LOG_S)

    def end_line(self) -> None:
        """Remove the line that is shown on a terminal."""
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self.shown = False


@contextmanager
def watching() -> Iterator[Watcher]:
    """What shows progress, and remarks, on stderr."""
    from dsforge.checkpoints.output.new_folder import Watcher
    from dsforge.cli.show import note

    progress = Progress()

    def say(message: str) -> None:
        progress.end_line()
        with suppress(OSError):
            note(message)

    try:
        yield Watcher(say, progress.begin, progress.advance)
    finally:
        progress.end_line()
