"""Handling of SIGTERM, SIGINT and SIGHUP in a rank, and of the end of its launcher.

In training the step is finished, a checkpoint saved, and the run ends. Before the first step and
in the export there is nothing to save: the rank ends at once. A thread acts on signals, because
the main thread may wait in a library for minutes (a build, a rendezvous, a collective) and Python
runs no handler meanwhile. The same thread looks after the launcher: a rank whose launcher was
killed is told by nobody, and would train on alone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from math import inf
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Self

from dsforge.train.run.process_tree import came_by_login, end_children, launchers, lives, orphaned
from dsforge.train.run.streams import is_unheard, mute_if_nobody_listens

LOOK_S = 1.0
ORPHAN_S = 600.0  # for step and save without a launcher; other ranks may never answer again
KILLED_BY = 128  # and the number of the signal: the exit code as shells count it
STOPPED = KILLED_BY + signal.SIGINT
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Phase(Enum):
    """Phase of a rank; the value completes the message about a stop in it."""

    START = "before the first step"
    TRAINING = "immediately; steps after the last checkpoint are lost"
    EXPORT = "during the export; the last checkpoint is saved, start again to write the weights"


class Attendant:
    """Context that handles signals and the end of the launcher.

    `signal_number` is the first signal in training, 0 while there is none; SIGTERM stands for the
    end of the launcher, which `is_orphaned` tells of. A second SIGINT ends the rank at once.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self.phase = Phase.START
        self.is_orphaned = False
        self._interrupts = 0
        self._turn = Lock()
        self._leavings: list[Callable[[], None]] = []
        self._over = Event()
        self._before: dict[int, Any] = {}
        self._end_by = inf
        self._reader = self._writer = -1
        self._launchers = launchers()
        self._by_login = came_by_login(self._launchers)

    def __enter__(self) -> Self:
        """Begin to listen. Only the main thread of a process can."""
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        for number in HANDLED:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, _leave_to_thread)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        Thread(target=self._listen, name="attendant", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        signal.set_wakeup_fd(-1)
        for number, action in self._before.items():
            signal.signal(number, action)

    def enter(self, phase: Phase) -> None:
        """Go on to another phase; a stop that was asked for meanwhile ends the export at once."""
        with self._turn:
            self.phase = phase
            asked = self.signal_number
        if asked and phase is Phase.EXPORT:
            self._end(asked)

    def on_leaving(self, act: Callable[[], None]) -> None:
        """Have something done before this rank ends at once."""
        self._leavings.append(act)

    def _listen(self) -> None:
        """Wait for signals, and look after the launcher in between."""
        if orphaned():
            self._launcher_ended()
        while not self._over.is_set():
            ready, _, _ = select.select([self._reader], [], [], LOOK_S)
            for number in os.read(self._reader, 64) if ready else b"":
                if number in HANDLED:
                    self._on_signal(number)
            if self._launchers and not all(map(lives, self._launchers)):
                self._launcher_ended()
            if self._launchers and self._by_login and is_unheard():
                self._launcher_ended()
            if monotonic() > self._end_by:
                self._end(signal.SIGTERM)

    def _launcher_ended(self) -> None:
        self._launchers = ()
        self.is_orphaned = True
        self._end_by = monotonic() + ORPHAN_S
        mute_if_nobody_listens()
        _print_line("the launcher of this rank has ended; the rank stops")
        self._on_signal(signal.SIGTERM)

    def _on_signal(self, number: int) -> None:
        """Remember a signal in training, end at once elsewhere."""
        if number == signal.SIGHUP:
            mute_if_nobody_listens()
        with self._turn:
            self._interrupts += number == signal.SIGINT
            waits = self.phase is Phase.TRAINING and self._interrupts <= 1
            if waits:
                self.signal_number = self.signal_number or number
        if not waits:
            self._end(number)

    def _end(self, number: int) -> None:
        """Leave at once, whatever the main thread waits for."""
        _print_line(f"stopped by {signal.Signals(number).name} {self.phase.value}")
        for act in self._leavings:
            with suppress(Exception):
                act()
        end_children()
        os._exit(KILLED_BY + number)


def _leave_to_thread(number: int, frame: object) -> None:
    """The handler of each signal: its number went into the pipe of the thread already."""


def _print_line(line: str) -> None:
    """Tell the person at the first rank; what else was written goes out first."""
    if os.environ.get("RANK", "0") != "0":
        return
    with suppress(OSError, ValueError):
        sys.stderr.flush()
        os.write(2, f"{line}\n".encode())
