"""Ends a run that cannot continue: the loss became NaN or inf, or ranks stopped responding.

One rank that stops (a process that is frozen, a host that is gone, a collective that others do not
enter) leaves all others waiting, for hours and silently. So each rank has a thread that checks
whether its step ends in time. If not, every rank that is alive writes where it stands, the ranks
that do not answer are named, and the run ends with the checkpoint to go on from. The thread works
while the rank waits in a collective; faulthandler's own, which needs no interpreter, stands behind.

A checkpoint or a validation may rightly take far longer than a step (a slow disk, many samples): it
is ended only where a rank gives no sign of life; what lives and waits is left to torch's timeouts.
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
from dsforge.train.parallel.ranks import Place
from dsforge.units import seconds

MIN_STEP_LIMIT_S = 600.0  # as long as ranks wait for each other anywhere else
STEP_LIMIT_FACTOR = 20  # times the slowest step so far: the limit of a step
HEARTBEAT_S = 2.0
HEARTBEAT_LIMIT_S = 10.0  # without a beat: longer than any pause of a busy host
HEARTBEAT_LIMIT_IN_SAVE_S = 25.0  # pickling a large state can hold the interpreter for seconds
ANSWER_S = (
    4 * HEARTBEAT_S
)  # for what is asked of the pulse to be noticed, and its answer to be heard
BACKSTOP_S = 60.0  # after which faulthandler ends a rank whose interpreter is stuck too
DONE = b"done"  # the last beat of a rank that leaves
LATE_RANKS_KEY = "late"  # counts the ranks that found a step late
FIRST_IS_GONE = "the first rank, which hosts the job's key-value store, does not respond"
SCALE_FLOOR = "loss scale already at minimum"  # DeepSpeed's words, in `loss_scaler.py`


class NotFiniteError(DsforgeError):
    """The loss or the gradient norm became NaN or inf."""


def record_flights() -> None:
    """Let torch remember the last collectives of each rank, before any process group exists."""
    newer = tuple(int(part) for part in version("torch").split(".")[:2]) >= (2, 9)
    name = "TORCH_FR_BUFFER_SIZE" if newer else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    os.environ.setdefault(name, "2000")


class RollCall:
    """Reads the heartbeat counts twice, `silence_s` apart: a rank without progress is silent.

    Beats are counted, not dated: clocks of hosts may differ by more than a silence.
    """

    def __init__(self, world_size: int, silence_s: float) -> None:
        self.silence_s, self.ended = silence_s, Event()
        self.silent: tuple[str, ...] | None = None  # not known yet
        self._ranks = [str(rank) for rank in range(world_size)]
        self._first: dict[str, bytes] = {}
        self._begin = 0.0

    def hear(self, store: Any) -> None:
        """Read the heartbeats of all ranks; `ended` is set after the second reading."""
        if not self._first:
            self._first, self._begin = self._beats(store), time.monotonic()
        elif time.monotonic() - self._begin > self.silence_s and not self.ended.is_set():
            now = self._beats(store)
            self.silent = tuple(
                rank for rank in self._ranks if now[rank] == self._first[rank] != DONE
            )
            self.ended.set()

    def _beats(self, store: Any) -> dict[str, bytes]:
        if store.check(self._ranks):
            return dict(zip(self._ranks, store.multi_get(self._ranks), strict=True))
        return {rank: store.get(rank) if store.check([rank]) else b"" for rank in self._ranks}


class Pulse:
    """Sends the heartbeats of this rank and finds out which ranks send theirs.

    Its own thread talks, as the first rank, which holds the store, may be the one that is gone.
    """

    def __init__(self, place: Place, over: Event) -> None:
        self.place, self.over = place, over
        self.late, self.asked, self.answered = Event(), Event(), Event()
        self.answer: str | None = FIRST_IS_GONE
        self._verdict = RollCall(place.world_size, HEARTBEAT_LIMIT_S)  # of the run that ends
        self._roll: RollCall | None = None  # of one that is only asked about
        self._beats, self._counted = 0, False

    def start(self) -> None:
        """Beat from now on; all ranks are there."""
        if self.place.world_size == 1:
            self.answer = "this is the only rank, and it does not wait for another one"
            self.answered.set()
            return
        Thread(target=self._beat, args=(_own_store(),), name="pulse", daemon=True).start()

    def all_live(self) -> bool:
        """Whether every rank beat in the last HEARTBEAT_LIMIT_IN_SAVE_S, for which this waits."""
        if self.place.world_size == 1:
            return True
        roll = self._roll = RollCall(self.place.world_size, HEARTBEAT_LIMIT_IN_SAVE_S)
        roll.ended.wait(HEARTBEAT_LIMIT_IN_SAVE_S + ANSWER_S)
        self._roll = None
        return roll.silent == ()

    def _beat(self, store: Any) -> None:
        while not self.over.wait(HEARTBEAT_S):
            with suppress(Exception):  # the store is gone with the first rank
                self._beats += 1
                store.set(str(self.place.rank), str(self._beats))
                if store.check([LATE_RANKS_KEY]):
                    self.late.set()
                if self.asked.is_set() and not self.answered.is_set():
                    self._find_answer(store)
                elif roll := self._roll:
                    roll.hear(store)
        with suppress(Exception):
            store.set(str(self.place.rank), DONE.decode())

    def _find_answer(self, store: Any) -> None:
        """On the rank that asks first, and long enough after for the silent ones to show."""
        if not self._counted:
            self._counted = True
            if store.add(LATE_RANKS_KEY, 1) > 1:
                self.answer = None  # another rank speaks
                self.answered.set()
                return
        self._verdict.hear(store)
        if self._verdict.ended.is_set():
            silent = self._verdict.silent
            self.answer = "all ranks are alive, but wait in different collectives"
            if silent:
                who = f"rank{'s' if len(silent) > 1 else ''} {', '.join(silent)}"
                self.answer = f"no heartbeat from {who}: the process is frozen, or its host is down"
            self.answered.set()


class Watchdog:
    """Context that watches the steps of this rank.

    `limit_s` is the time limit of a step; None: STEP_LIMIT_FACTOR times the slowest so far, and at
    least MIN_STEP_LIMIT_S. Reports are written to `folder`, a file for each rank.
    """

    def __init__(
        self, folder: Path, place: Place, limit_s: float | None, newest: Callable[[], Path | None]
    ) -> None:
        self.folder, self.place, self.newest = folder, place, newest
        self._limit_s, self._slowest_s = limit_s, 0.0
        self._what, self._end, self._patient = "", float("inf"), False
        self._over = Event()
        self._pulse = Pulse(place, self._over)

    def __enter__(self) -> Self:
        self._pulse.start()
        Thread(target=self._check_progress, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def limit_s(self) -> float:
        """Time limit of the next step, in seconds."""
        if self._limit_s is not None:
            return self._limit_s
        return max(MIN_STEP_LIMIT_S, STEP_LIMIT_FACTOR * self._slowest_s)

    @contextmanager
    def beside_steps(self, what: str) -> Iterator[None]:
        """Look after a checkpoint or a validation: only a rank without a sign of life ends it."""
        self._what, self._patient, self._end = what, True, time.monotonic() + self.limit_s
        try:
            yield
        finally:
            self._end, self._patient = float("inf"), False

    @contextmanager
    def over(self, what: str) -> Iterator[None]:
        """Watch one step. Raises DsforgeError where the loss became NaN or inf."""
        begin, limit = time.monotonic(), self.limit_s
        self._what, self._end = what, begin + limit
        faulthandler.dump_traceback_later(limit + BACKSTOP_S, exit=True)
        try:
            yield
        except NotFiniteError as error:
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
        return f"the last intact checkpoint is {newest}" if newest else "there is no checkpoint yet"

    def _check_progress(self) -> None:
        """Write where this rank stands once any rank is late; end it where it is late itself."""
        written = False
        while not self._over.wait(HEARTBEAT_S / 2):
            if self._pulse.late.is_set() and not written:
                self._write_stacks()
                written = True
            end = self._end
            if time.monotonic() > end and not (self._patient and self._goes_on(end)):
                self._end_run()

    def _goes_on(self, end: float) -> bool:
        """Whether all ranks live, or what was late is over; what still waits has as long again."""
        live = self._pulse.all_live()
        if self._end != end:
            return True
        if live:
            self._end = time.monotonic() + self.limit_s
        return live

    def _end_run(self) -> None:
        """Say what is known and leave; nothing that waits in a collective can be asked to."""
        self._write_stacks()
        self._pulse.asked.set()
        self._pulse.answered.wait(HEARTBEAT_LIMIT_S + ANSWER_S)
        if self._pulse.answer is None:
            time.sleep(
                HEARTBEAT_LIMIT_S + ANSWER_S
            )  # another rank speaks; its launcher ends this one
            os._exit(EXIT_USER)
        lines = (
            f"error: {self._what} did not end within {seconds(self.limit_s)}",
            f"  - {self._pulse.answer}",
            f"  stacks of every rank: {self.folder}; {self._way_back()}",
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
