"""What ends a run that cannot go on: numbers that are lost, and ranks that no longer answer.

One rank that stops (a process that is frozen, a host that is gone, a collective that others do not
enter) leaves all others waiting, for hours and without a word. So each rank has a thread that looks
whether its step ends in time. If not, every rank that is alive writes where it stands, the ranks
that do not answer are named, and the run ends with the checkpoint to go on from. The thread works
while the rank waits in a collective; faulthandler's own, which needs no interpreter, stands behind.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from dsforge.errors import EXIT_USER, DsforgeError
from dsforge.train.ranks import Place
from dsforge.units import seconds

LEAST_S = 600.0  # as long as ranks wait for each other anywhere else
PATIENCE = 20  # a step may take so many times the slowest one
BEAT_S = 2.0
SILENT_S = 10.0  # without a beat: longer than any pause of a busy host
BACKSTOP_S = 60.0  # after which faulthandler ends a rank whose interpreter is stuck too
LATE = "late"  # counts the ranks that found a step late
FIRST_IS_GONE = "the first rank, which holds the job's key-value store, does not answer"
SCALE_FLOOR = "loss scale already at minimum"  # DeepSpeed's words, in `loss_scaler.py`


class LostNumbersError(DsforgeError):
    """A loss or gradient that is no number any more."""


def record_flights() -> None:
    """Let torch remember the last collectives of each rank, before any process group exists."""
    newer = tuple(int(part) for part in version("torch").split(".")[:2]) >= (2, 9)
    name = "TORCH_FR_BUFFER_SIZE" if newer else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    os.environ.setdefault(name, "2000")


class Pulse:
    """Tells the other ranks that this one lives, and hears which of them do.

    Its own thread talks, as the first rank, which holds the store, may be the one that is gone.
    """

    def __init__(self, place: Place, over: Event) -> None:
        self.place, self.over = place, over
        self.late, self.asked, self.answered = Event(), Event(), Event()
        self.answer: str | None = FIRST_IS_GONE
        self._asked_at = 0.0

    def start(self) -> None:
        """Beat from now on; all ranks are there."""
        if self.place.world_size == 1:
            self.answer = "this rank is alone, and waits for something else"
            self.answered.set()
            return
        Thread(target=self._beat, args=(_own_store(),), name="pulse", daemon=True).start()

    def _beat(self, store: Any) -> None:
        while not self.over.wait(BEAT_S):
            with suppress(Exception):  # the store is gone with the first rank
                store.set(str(self.place.rank), str(time.time()))
                if store.check([LATE]):
                    self.late.set()
                if self.asked.is_set() and not self.answered.is_set():
                    self._find_answer(store)

    def _find_answer(self, store: Any) -> None:
        """On the rank that asks first, and long enough after for the silent ones to show."""
        if not self._asked_at:
            self._asked_at = time.monotonic()
            if store.add(LATE, 1) > 1:
                self.answer = None  # another rank speaks
                self.answered.set()
        elif time.monotonic() - self._asked_at > SILENT_S:
            ranks = [str(rank) for rank in range(self.place.world_size)]
            beats = {r: float(store.get(r)) if store.check([r]) else 0.0 for r in ranks}
            silent = [r for r, at in beats.items() if time.time() - at > SILENT_S]
            self.answer = "all ranks live, and wait for each other in different places"
            if silent:
                who = f"rank{'s' if len(silent) > 1 else ''} {', '.join(silent)}"
                self.answer = f"no sign of life from {who}: frozen, or its host is gone"
            self.answered.set()


class Watchdog:
    """Looks after the steps of this rank while it is entered.

    `limit_s` is the longest that a step may take; none: PATIENCE times the slowest so far, and at
    least LEAST_S. What is found lies in `folder`, a file for each rank.
    """

    def __init__(
        self, folder: Path, place: Place, limit_s: float | None, newest: Callable[[], Path | None]
    ) -> None:
        self.folder, self.place, self.newest = folder, place, newest
        self._limit_s, self._slowest_s = limit_s, 0.0
        self._what, self._end = "", float("inf")
        self._over = Event()
        self._pulse = Pulse(place, self._over)

    def __enter__(self) -> Self:
        self._pulse.start()
        Thread(target=self._look, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def limit_s(self) -> float:
        """Seconds that the next step may take."""
        if self._limit_s is not None:
            return self._limit_s
        return max(LEAST_S, PATIENCE * self._slowest_s)

    @contextmanager
    def over(self, what: str) -> Iterator[None]:
        """Look after one step. Raises DsforgeError, with the way back, where numbers are lost."""
        begin, limit = time.monotonic(), self.limit_s
        self._what, self._end = what, begin + limit
        faulthandler.dump_traceback_later(limit + BACKSTOP_S, exit=True)
        try:
            yield
        except LostNumbersError as error:
            raise DsforgeError(error.message, f"{error.hint}; {self._way_back()}") from error
        except Exception as error:
            if SCALE_FLOOR not in str(error):
                raise
            message = f"{what}: fp16 gradients overflow even at the smallest loss scale"
            hint = f"use bf16, or lower the learning rate; {self._way_back()}"
            raise DsforgeError(message, hint) from error
        finally:
            self._end = float("inf")
            faulthandler.cancel_dump_traceback_later()
        self._slowest_s = max(self._slowest_s, time.monotonic() - begin)

    def _way_back(self) -> str:
        newest = self.newest()
        return f"the last good checkpoint is {newest}" if newest else "there is no checkpoint yet"

    def _look(self) -> None:
        """Write where this rank stands once any rank is late; end it where it is late itself."""
        written = False
        while not self._over.wait(BEAT_S / 2):
            if self._pulse.late.is_set() and not written:
                self._write_stacks()
                written = True
            if time.monotonic() > self._end:
                self._end_run()

    def _end_run(self) -> None:
        """Say what is known and leave; nothing that waits in a collective can be asked to."""
        self._write_stacks()
        self._pulse.asked.set()
        self._pulse.answered.wait(SILENT_S + 4 * BEAT_S)
        if self._pulse.answer is None:
            time.sleep(SILENT_S + 4 * BEAT_S)  # another rank speaks; its launcher ends this one
            os._exit(EXIT_USER)
        lines = (
            f"error: {self._what} did not end within {seconds(self.limit_s)}",
            f"  - {self._pulse.answer}",
            f"  where each rank stands: {self.folder}; {self._way_back()}",
        )
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
        os._exit(EXIT_USER)

    def _write_stacks(self) -> None:
        """Where each thread of this rank stands, and the last collectives where torch knows."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"rank{self.place.rank}.txt"
        path.unlink(missing_ok=True)  # it could be a link to anything
        with path.open("x", encoding="utf-8") as stream:
            stream.write(f"{self._what}, rank {self.place.rank}\n")
            stream.flush()
            faulthandler.dump_traceback(stream, all_threads=True)
        with suppress(Exception):  # only where NCCL is the back end
            from torch._C._distributed_c10d import _dump_nccl_trace_json

            path = self.folder / f"collectives_rank{self.place.rank}.json"
            path.write_bytes(_dump_nccl_trace_json())


def _own_store() -> Any:
    """A connection of its own to the job's key-value store: the other may be waited on."""
    from torch.distributed import PrefixStore, TCPStore

    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
    )
    return PrefixStore(f"watch/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
