"""Runs that cannot go on end with a cause and a way back, on real ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import runs
from tiny_job import ds_config, write_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]


def process_of(rank: int, folder: Path) -> int:
    """The process that trains as this rank in a folder."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            here = (path / "cwd").readlink() == folder
            words = (path / "environ").read_bytes().split(b"\0") if here else []
        except OSError:
            continue
        if f"RANK={rank}".encode() in words:
            return int(path.name)
    raise AssertionError(f"no rank {rank} in {folder}")


@pytest.mark.parametrize(
    "frozen", [1, pytest.param(0, marks=pytest.mark.slow)], ids=["rank-1", "rank-0"]
)
def test_a_frozen_rank_ends_the_run_and_is_named(
    frozen: int, tiny_llama: Path, tmp_path: Path
) -> None:
    """Within the limit; where each living rank stands is on the disk, the checkpoint is named."""
    config = ds_config(2)
    more = {"steps": 100_000, "checkpoint_every": 2, "hang_after_s": 15}
    write_job(tmp_path, tiny_llama, config, **more)
    log = tmp_path / "log.txt"
    with log.open("w") as stream:
        run = runs.started(runs.deepspeed("train.yaml"), tmp_path, lines=3, log=stream)
        process = process_of(frozen, tmp_path)
        os.kill(process, signal.SIGSTOP)
        try:
            code = run.wait(timeout=150)
        finally:
            os.kill(process, signal.SIGKILL)
    said = log.read_text()
    living = 1 - frozen
    stacks = (tmp_path / f"output/hang/rank{living}.txt").read_text()

    assert code != 0
    assert "did not end within 15 s" in said
    who = "no sign of life from rank 1" if frozen else "the first rank, which holds"
    assert who in said
    assert "the last good checkpoint is" in said
    assert "step.py" in stacks


def test_the_last_good_checkpoint_is_named_where_numbers_are_lost(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """A loss that is no number after a checkpoint: the message says where to go on from."""
    config = ds_config(0, gradient_accumulation_steps=4)
    write_job(tmp_path, tiny_llama, config, steps=2)
    runs.succeeded(runs.alone("train.yaml", "--no-export"), tmp_path)
    config["optimizer"] = {"type": "SGD", "params": {"lr": 1e30}}
    del config["gradient_clipping"]
    write_job(tmp_path, tiny_llama, config, steps=6, warmup_steps=0)
    done = runs.finished(
        runs.alone("train.yaml", "--resume", "never", "--output", "other"), tmp_path
    )

    assert done.returncode == 1
    assert "error: the loss of step 2 is nan" in done.stderr
    assert "there is no checkpoint yet" in done.stderr
    assert "Traceback" not in done.stderr
