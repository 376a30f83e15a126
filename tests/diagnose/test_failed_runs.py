"""Runs that fail say why by themselves: a launch of `bench`, a rank of `train`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import plans
import pytest
from tiny_job import ds_config, write_job, write_model

from dsforge.bench.matrix import Cell
from dsforge.bench.run import COPIED, SCRIPT, Bench, run_cell
from dsforge.reading.job import read_job

FAILING = (
    "#!/bin/sh\necho 'step 1/2 loss 2.0'\necho 'OSError: [Errno 28] No space left on device'\n"
)


def test_a_failed_launch_of_bench_names_its_cause(tmp_path: Path) -> None:
    """The log of the cell is diagnosed; the cause stands under the last lines."""
    run = tmp_path / "run"
    job = write_job(run, tmp_path / "model", ds_config(2))
    for name in (*COPIED, "deepspeed/zero2.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(f"{FAILING}exit 7\n" if name == SCRIPT else "{}\n")
    (run / SCRIPT).chmod(0o755)
    bench = Bench(run, plans.plan(), read_job(job), tmp_path / "out", steps=2, timeout_s=30)

    outcome = run_cell(bench, Cell(variant="zero2", repeat=1), lambda _line: None)

    assert "exit code 7" in outcome.error
    assert "cause: the disk is full [disk-full]" in outcome.error
    assert "line 2   OSError: [Errno 28]" in outcome.error


@pytest.mark.launch
@pytest.mark.engine
@pytest.mark.parametrize(
    "entry", [["-m", "dsforge.train"], ["-m", "dsforge", "train"]], ids=["rank", "command"]
)
def test_a_failed_run_of_train_names_its_cause(entry: list[str], tmp_path: Path) -> None:
    """The engine's own refusal: its traceback first, then what it means and the patch."""
    config = ds_config(2, gradient_accumulation_steps=4)
    config["zero_optimization"]["overlap_com"] = True
    write_job(tmp_path, write_model(tmp_path / "model"), config)

    done = subprocess.run(
        [sys.executable, *entry, "train.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 1
    before, found, after = done.stderr.partition("\ncause: ")
    assert found
    assert "Traceback" in before
    assert after.startswith("ds_config has a key that DeepSpeed does not know: `overlap_com`")
