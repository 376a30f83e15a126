"""Runs that cannot go on end with a cause and a way back, on real ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]
LIMIT_S = 4.0  # of a step; one takes 0.2 s


@pytest.mark.parametrize(
    "frozen", [1, pytest.param(0, marks=pytest.mark.slow)], ids=["rank-1", "rank-0"]
)
def test_a_frozen_rank_ends_the_run_and_is_named(
    frozen: int, tiny_llama: Path, tmp_path: Path
) -> None:
    """Within the limit; where each living rank stands is on the disk, the checkpoint is named."""
    more = {"steps": 100_000, "checkpoint_every": 2, "hang_after_s": LIMIT_S}
    write_job(tmp_path, tiny_llama, ds_config(2), **more)
    both = ranks.begun(tmp_path, 2)
    runs.wait_for_lines(tmp_path, 3, lambda: both[0].exitcode)
    os.kill(both[frozen].pid or 0, signal.SIGSTOP)
    begin = time.monotonic()
    (code,), said = ranks.outcome(tmp_path, [both[1 - frozen]], limit_s=60)
    took_s = time.monotonic() - begin
    both[frozen].kill()
    both[frozen].join()
    stacks = (tmp_path / f"output/hang/rank{1 - frozen}.txt").read_text()

    assert code == 1
    assert took_s < 50
    assert "did not end within 4 s" in said
    who = "no sign of life from rank 1" if frozen else "the first rank, which holds"
    assert who in said
    assert "the last good checkpoint is" in said
    assert "step.py" in stacks


def test_the_last_good_checkpoint_is_named_where_numbers_are_lost(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """A loss that is no number after a checkpoint: the message says where to go on from."""
    config = ds_config(0, gradient_accumulation_steps=4)
    config["optimizer"] = {"type": "SGD", "params": {"lr": 1e30}}
    del config["gradient_clipping"]
    write_job(tmp_path, tiny_llama, config, steps=6, warmup_steps=0, checkpoint_every=1)
    codes, said = ranks.ended(tmp_path, 1)

    assert codes == [1]
    assert "error: the loss of step 2 is nan" in said
    assert "the last good checkpoint is" in said
    assert "global_step1" in said
    assert "Traceback" not in said
