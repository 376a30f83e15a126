"""Clock: seconds of repeated work that all ranks do at the same time, agreed between them."""

from __future__ import annotations

import time
from collections.abc import Callable

from dsforge.train.parallel.agreement import largest

ROUNDS = 3  # the best one counts: others use the machine too
ROUND_S = 0.15
MOST_REPEATS = 200


class Clock:
    """The time that is left, and how long work takes on the slowest rank."""

    def __init__(self, budget_s: float) -> None:
        self._begin = time.monotonic()
        self._budget_s = budget_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the ranks had come together."""
        return time.monotonic() - self._begin

    def has_time(self) -> bool:
        """Whether something new may begin; the same answer on every rank."""
        return largest(self.elapsed_s)[0] < self._budget_s

    def own_s(self, work: Callable[[], object]) -> float:
        """Seconds of the work on this rank, while every other rank does the same."""
        once_s = largest(_seconds(work, 1))[0]  # and it warms up
        repeats = max(1, min(MOST_REPEATS, round(ROUND_S / max(once_s, 1e-9))))
        rounds = 1 if once_s > ROUND_S else ROUNDS
        return min(_seconds(work, repeats) for _ in range(rounds))

    def slowest_s(self, work: Callable[[], object]) -> float:
        """Seconds of the work on the slowest rank."""
        return largest(self.own_s(work))[0]


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """Seconds of one repeat."""
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator()
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    device.synchronize()
    return (time.perf_counter() - begin) / repeats
