"""Learning rate schedules: warm-up, decay, floor."""

from __future__ import annotations

from typing import Any

import pytest

from dsforge.job import TrainJob
from dsforge.train.run.learning_rate import rate_factor


def job(**values: Any) -> TrainJob:
    """A job with a schedule."""
    base = {"model": "m", "deepspeed_config": "d", "data": {"train": "t"}, "sequence_length": 8}
    return TrainJob.model_validate({**base, **values})


def curve(steps: int, **values: Any) -> list[float]:
    """Shares of the peak at every step."""
    return [rate_factor(job(**values), steps)(step) for step in range(steps)]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_warm_up_rises_in_equal_parts_to_the_peak(schedule: str) -> None:
    """No step has rate 0, the last one of the warm-up has the peak."""
    rates = curve(20, schedule=schedule, warmup_steps=4)

    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert max(rates) == 1.0


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_decay_ends_at_the_floor_with_the_last_step(schedule: str) -> None:
    """The rate never rises after the warm-up, and its last value is the ratio asked for."""
    rates = curve(50, schedule=schedule, warmup_steps=5, minimum_learning_rate_ratio=0.1)

    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_the_middle_of_a_cosine_is_half_way() -> None:
    """Without warm-up and floor: 1 at the beginning, 1/2 in the middle, 0 at the end."""
    rates = curve(11, schedule="cosine", minimum_learning_rate_ratio=0.0)

    assert (rates[0], rates[5], rates[10]) == pytest.approx((1.0, 0.5, 0.0))


def test_a_line_falls_by_equal_parts() -> None:
    """The linear schedule from the peak to 0."""
    rates = curve(5, schedule="linear", minimum_learning_rate_ratio=0.0)

    assert rates == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_constant_stays_at_the_peak() -> None:
    """No decay, whatever the floor."""
    assert curve(5, schedule="constant", minimum_learning_rate_ratio=0.0) == [1.0] * 5


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_runs_have_a_rate(steps: int) -> None:
    """A warm-up longer than the run is cut, and no step divides by zero."""
    assert all(0 < rate <= 1 for rate in curve(steps, warmup_steps=3))
    assert all(0 < rate <= 1 for rate in curve(steps))
