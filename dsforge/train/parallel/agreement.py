"""Agreement of ranks: sums, comparisons, and work that one rank does while the others wait.

A failure that only one rank sees must end the others too, soon and without a second message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from dsforge.errors import DsforgeError

DONE, FAILED = "done", "failed"
MAX_WAIT_DAYS = 7
ON_CPU = ("gloo", "mpi")  # back ends that reduce tensors in host memory

Result = TypeVar("Result")
_turns = itertools.count()


def on_first_rank(act: Callable[[], Result]) -> Result | None:
    """The result of `act` on the first rank, none on the others. All ranks must call it.

    The others wait at the job's key-value store for as long as it takes: in a collective they would
    give up at the time limit of the process group while a large file is still being written. They
    end at once where the first rank fails or dies. Raises DsforgeError on them then.
    """
    import torch.distributed
    from torch.distributed.distributed_c10d import _get_default_store

    store, key = _get_default_store(), f"dsforge/first/{next(_turns)}"
    if torch.distributed.get_rank() == 0:
        outcome = FAILED
        try:
            result = act()
            outcome = DONE
        finally:
            _publish(store, key, outcome)
        return result
    try:
        store.wait([key], timedelta(days=MAX_WAIT_DAYS))
        outcome = store.get(key).decode()
    except torch.distributed.DistError:  # the store ended with the first rank
        outcome = FAILED
    if outcome != DONE:
        raise DsforgeError("the first rank failed", "see its own message")
    return None


def _publish(store: Any, key: str, outcome: str) -> None:
    """Put the outcome where the other ranks wait. Raises DsforgeError where that place is gone."""
    import torch.distributed

    try:
        store.set(key, outcome)
    except torch.distributed.DistError as error:
        message = "the job's key-value store is not available: torchrun, which hosts it, has ended"
        raise DsforgeError(
            message, "start again: the run resumes from the last checkpoint"
        ) from error


def check_agreement(value: int, what: str, hint: str) -> None:
    """Compare a number across ranks. Raises DsforgeError, on all of them, where it differs."""
    highest, lowest = largest(float(value), float(-value))
    if highest != -lowest:
        found = f"from {-lowest:.0f} to {highest:.0f}"
        raise DsforgeError(f"ranks do not agree on {what} ({found})", hint)


def summed(*values: float) -> list[float]:
    """Each value summed over all ranks, in double precision where the device has it."""
    return _reduced(values, "SUM")


def largest(*values: float) -> list[float]:
    """The largest of each value over all ranks."""
    return _reduced(values, "MAX")


def _reduced(values: tuple[float, ...], operation: str) -> list[float]:
    import torch
    import torch.distributed

    found = torch.accelerator.current_accelerator()
    on_cpu = found is None or torch.distributed.get_backend() in ON_CPU
    tensor = torch.tensor(values, dtype=torch.float64, device="cpu" if on_cpu else found)
    torch.distributed.all_reduce(tensor, op=getattr(torch.distributed.ReduceOp, operation))
    return [float(value) for value in tensor.tolist()]
