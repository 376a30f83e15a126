"""A signal while files are written: a checkpoint is finished first, the final weights are not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

from dsforge.checkpoints.verify.checkpoint import verify

pytestmark = [pytest.mark.launch, pytest.mark.engine]
LIMIT_S = 120
TERM = signal.SIGTERM


def signalled_while(is_so: Callable[[], bool], both: list[BaseProcess]) -> None:
    """Send SIGTERM to both ranks while something is so: the first is held there meanwhile."""
    first, end = both[0].pid or 0, time.monotonic() + LIMIT_S
    while True:
        assert time.monotonic() < end
        assert both[0].exitcode is None
        if is_so():
            os.kill(first, signal.SIGSTOP)
            if is_so():
                break
            os.kill(first, signal.SIGCONT)
        time.sleep(0.001)
    for rank in both:
        os.kill(rank.pid or 0, TERM)
    os.kill(first, signal.SIGCONT)


def test_in_a_save_it_is_remembered(tiny_llama: Path, tmp_path: Path) -> None:
    """The checkpoint that was being written is whole, as is that of the step after it."""
    more = {"steps": 100_000, "checkpoint_every": 3, "keep_checkpoints": 9}
    write_job(tmp_path, tiny_llama, ds_config(2), **more)
    saved = tmp_path / "output/checkpoints"
    both = ranks.begun(tmp_path, 2)
    signalled_while(lambda: any(saved.glob(".saving/global_step*")), both)
    codes, said = ranks.outcome(tmp_path, both)
    steps = len(runs.figures(tmp_path / "output", "loss"))

    assert codes == [0, 0]
    assert f"stopped by a signal; checkpoint of step {steps} saved" in said
    assert {path.name for path in saved.glob("global_step*")} == {
        f"global_step{step}" for step in {*range(3, steps + 1, 3), steps}
    }
    assert verify(saved) == []
    assert not (saved / ".saving").exists()


def test_in_the_export_the_same_start_writes_the_weights(tiny_llama: Path, tmp_path: Path) -> None:
    """No half model is left under its name, the last checkpoint is, and nothing once it is done."""
    write_job(tmp_path, tiny_llama, ds_config(2), steps=2)
    output = tmp_path / "output"
    both = ranks.begun(tmp_path, 2)
    signalled_while(lambda: any(output.glob(".dsforge-unfinished-*/content")), both)
    codes, said = ranks.outcome(tmp_path, both)

    assert codes == [128 + TERM] * 2
    assert "stopped by SIGTERM during the export; the last checkpoint is saved" in said
    assert not (output / "model").exists()
    assert verify(output / "checkpoints") == []
    ranks.train(tmp_path, 2)
    assert (output / "model/config.json").exists()
    assert not list(output.glob(".dsforge-unfinished-*"))
