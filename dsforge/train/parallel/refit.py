"""The same global batch on another number of ranks: what a resumed run must keep.

The learning rate, the schedule and the order of the data all count in global batches. So when the
ranks change, the accumulation changes, and where that does not suffice the micro batch.
"""

from __future__ import annotations

import os
from typing import Any

from dsforge.constraints import divisors, listed
from dsforge.errors import Problem, SpecError

MICRO, TOTAL, ACCUMULATION = (
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
)


def refitted(settings: dict[str, Any], global_batch_size: int, replicas: int) -> dict[str, Any]:
    """A DeepSpeed config that gives a global batch on so many data-parallel replicas.

    The micro batch never grows; the config stays as it is where it gives that batch already.
    Raises SpecError where the samples cannot be shared out evenly.
    """
    micro, steps = settings.get(MICRO), settings.get(ACCUMULATION)
    if not isinstance(micro, int) or micro < 1:
        return settings  # what is wrong with it is said by whoever reads it
    if isinstance(steps, int) and micro * steps * replicas == global_batch_size:
        return settings
    if global_batch_size % replicas:
        legal = listed(divisors(global_batch_size))
        message = f"a global batch of {global_batch_size} cannot be shared by {replicas} replicas"
        raise SpecError((Problem("batch-resume", message, f"resume on {legal} of them"),))
    each = global_batch_size // replicas
    fitting = max(size for size in divisors(each) if size <= micro)
    sizes = {TOTAL: global_batch_size, MICRO: fitting, ACCUMULATION: each // fitting}
    return {**settings, **sizes}


def batch_of_restart(settings: dict[str, Any]) -> int | None:
    """The global batch that a run keeps which torchrun has started again, on the ranks left."""
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    total = settings.get(TOTAL)
    return total if again and isinstance(total, int) else None
