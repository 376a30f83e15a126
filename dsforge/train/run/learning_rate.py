"""Learning rate schedules: warm-up, then cosine, linear or constant. Pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

from dsforge.job import TrainJob


def rate_factor(job: TrainJob, total_steps: int) -> Callable[[int], float]:
    """A function from the step, counted from 0, to its share of the peak learning rate.

    Warm-up is linear and reaches the peak with its last step, so no step has rate 0. The decay
    ends at `minimum_learning_rate_ratio` with the last step.
    """
    warmup = min(job.warmup_steps, total_steps)
    floor = job.minimum_learning_rate_ratio
    decay_steps = max(1, total_steps - warmup - 1)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if job.schedule == "constant":
            return 1.0
        done = min(1.0, (step - warmup) / decay_steps)
        share = 1.0 - done if job.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return floor + (1.0 - floor) * share

    return factor
