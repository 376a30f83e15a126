"""A line of life: what the first rank is doing, whenever nothing was shown for some seconds.

Imports, loading, builds of C++ ops and long steps are silent in the libraries that do them. A
thread says what is under way and for how long, so that nobody takes a slow start for a hang.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

IMPORTING = "starting: importing torch, DeepSpeed and transformers"
SILENCE_S = 5.0  # an import may then hold the interpreter for some more
LOOK_S = 0.5


class Heartbeat:
    """Says what is under way while nothing else is shown. `say` shows a line."""

    def __init__(self, *, shown: bool, say: Callable[[str], None] | None = None) -> None:
        self._say = say or _to_stderr
        self._what, self._begun = "", 0.0
        self._spoken = time.monotonic()
        self._over = Event()
        if shown:
            Thread(target=self._watch, name="heartbeat", daemon=True).start()

    def doing(self, what: str) -> None:
        """Name what is under way from now on; an empty text means that nothing is."""
        self._what, self._begun = what, time.monotonic()

    def spoke(self) -> None:
        """Something was shown."""
        self._spoken = time.monotonic()

    def end(self) -> None:
        """Say nothing any more."""
        self._over.set()

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Name what is under way while inside."""
        before = self._what
        self.doing(what)
        try:
            yield
        finally:
            self.doing(before)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            now = time.monotonic()
            if self._what and now - self._spoken >= SILENCE_S:
                self._spoken = now
                self._say(f"{self._what}, {now - self._begun:.0f} s")


def _to_stderr(line: str) -> None:
    """Show a line before there is a screen."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
