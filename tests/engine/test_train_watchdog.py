"""The watchdog without ranks: what it makes of DeepSpeed's errors, how long it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsforge.errors import DsforgeError
from dsforge.train.parallel.ranks import Place
from dsforge.train.run.watchdog import (
    MIN_STEP_LIMIT_S,
    STEP_LIMIT_FACTOR,
    NotFiniteError,
    Watchdog,
)

pytestmark = pytest.mark.engine
CHECKPOINT = Path("/run/checkpoints/global_step7")


def watchdog(tmp_path: Path, limit_s: float | None = None) -> Watchdog:
    """A watchdog of a run of one rank with a checkpoint."""
    return Watchdog(tmp_path, Place(0, 0, 1), limit_s, lambda: CHECKPOINT)


def test_the_floor_of_the_loss_scale_is_explained(tmp_path: Path) -> None:
    """DeepSpeed's own scaler gives up; the message says why, and where to go on from."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    scaler = DynamicLossScaler(
        init_scale=1.0,
        scale_window=1000,
        min_scale=1.0,
        delayed_shift=1,
        consecutive_hysteresis=False,
        raise_error_at_min_scale=True,
    )
    with pytest.raises(DsforgeError) as raised, watchdog(tmp_path).over("step 8"):
        scaler.update_scale(True)

    assert "fp16 gradients overflow even at the smallest loss scale" in raised.value.message
    assert f"the last intact checkpoint is {CHECKPOINT}" in raised.value.hint


def test_lost_numbers_name_the_checkpoint(tmp_path: Path) -> None:
    """The error keeps its words and gains the way back."""
    with pytest.raises(DsforgeError) as raised, watchdog(tmp_path).over("step 8"):
        raise NotFiniteError("the loss of step 8 is nan", "use bf16")

    assert raised.value.message == "the loss of step 8 is nan"
    assert raised.value.hint == f"use bf16; the last intact checkpoint is {CHECKPOINT}"


def test_other_errors_pass(tmp_path: Path) -> None:
    """What the watchdog does not know keeps its traceback."""
    with pytest.raises(KeyError), watchdog(tmp_path).over("step 8"):
        raise KeyError("name")


def test_the_limit_follows_the_slowest_step(tmp_path: Path) -> None:
    """At least ten minutes, twenty times the slowest step, or what the job says."""
    dog = watchdog(tmp_path)
    first = dog.limit_s
    dog._slowest_s = 100.0

    assert (first, dog.limit_s) == (MIN_STEP_LIMIT_S, 100.0 * STEP_LIMIT_FACTOR)
    assert watchdog(tmp_path, 15.0).limit_s == 15.0
