"""Runs that cannot go on end with a cause and a way back, on real ranks."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.process import BaseProcess
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
    both = _begun(tiny_llama, tmp_path, checkpoint_every=50)
    runs.wait_for_lines(tmp_path, 53, lambda: both[0].exitcode)
    os.kill(both[frozen].pid or 0, signal.SIGSTOP)
    said, took_s = _end(tmp_path, both, frozen)

    assert took_s < 50
    assert "error: step " in said
    who = "no heartbeat from rank 1" if frozen else "the first rank, which hosts"
    assert who in said
    assert "step.py" in (tmp_path / f"output/hang/rank{1 - frozen}.txt").read_text()


@pytest.mark.parametrize(
    "frozen", [1, pytest.param(0, marks=pytest.mark.slow)], ids=["rank-1", "rank-0"]
)
def test_a_rank_that_is_frozen_in_a_save_ends_the_run(
    frozen: int, tiny_llama: Path, tmp_path: Path
) -> None:
    """Long before the other's collective gives up, and the checkpoint before is named."""
    both = _begun(tiny_llama, tmp_path, checkpoint_every=2)
    runs.wait_for_lines(tmp_path, 3, lambda: both[0].exitcode)
    _freeze_in_save(tmp_path, both[frozen])
    said, took_s = _end(tmp_path, both, frozen)

    assert took_s < 80
    assert "error: the checkpoint or validation after step " in said
    assert "no heartbeat from rank 1" in said or "the first rank, which hosts" in said
    assert "checkpoints/writer.py" in (tmp_path / f"output/hang/rank{1 - frozen}.txt").read_text()


def test_a_slow_save_is_not_ended(tiny_llama: Path, tmp_path: Path) -> None:
    """Ranks that live may write for longer than a step may take: nothing is lost by waiting."""
    both = _begun(tiny_llama, tmp_path, checkpoint_every=2, steps=40)
    runs.wait_for_lines(tmp_path, 3, lambda: both[0].exitcode)
    _freeze_in_save(tmp_path, both[1])
    time.sleep(3 * LIMIT_S)
    os.kill(both[1].pid or 0, signal.SIGCONT)
    codes, said = ranks.outcome(tmp_path, both)

    assert codes == [0, 0], said


def _begun(model: Path, folder: Path, **more: object) -> list[BaseProcess]:
    write_job(folder, model, ds_config(2), **{"steps": 100_000, "hang_after_s": LIMIT_S, **more})
    return ranks.begun(folder, 2)


def _end(folder: Path, both: list[BaseProcess], frozen: int) -> tuple[str, float]:
    """What the living rank said at its end, and how long it took to get there."""
    begin = time.monotonic()
    (code,), said = ranks.outcome(folder, [both[1 - frozen]], limit_s=100)
    took_s = time.monotonic() - begin
    both[frozen].kill()
    both[frozen].join()

    assert code == 1, said
    assert "did not end within 4 s" in said
    assert "the last intact checkpoint is" in said
    return said, took_s


def _freeze_in_save(folder: Path, rank: BaseProcess) -> None:
    """Stop a rank while a checkpoint is written that the other one cannot end without it."""
    unfinished, end = folder / "output/checkpoints/.saving", time.monotonic() + 60
    while time.monotonic() < end:
        if unfinished.exists():
            os.kill(rank.pid or 0, signal.SIGSTOP)
            time.sleep(0.5)
            if unfinished.exists():
                return
            os.kill(rank.pid or 0, signal.SIGCONT)
        time.sleep(0.0005)
    pytest.fail("no save was met")


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
    assert "the last intact checkpoint is" in said
    assert "global_step1" in said
    assert "Traceback" not in said
