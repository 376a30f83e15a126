"""The Slurm targets under a real Slurm of one node, with two ranks of `dsforge train`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
import slurm
from target_runs import generated, is_whole, slow

pytestmark = [pytest.mark.launch, pytest.mark.engine]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    """A Slurm of this module."""
    lacking = slurm.missing()
    if lacking:
        pytest.skip(lacking)
    with slurm.slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def submitted(cluster: slurm.Slurm, run: Path, script: str, *options: str) -> str:
    """The number of the job."""
    port = f"--export=ALL,MASTER_PORT={runs.free_port()},OMP_NUM_THREADS=1"
    words = ("sbatch", "--parsable", "--output", "job.log", port, *options, script)
    return cluster.run(*words, cwd=run)


@pytest.mark.parametrize("script", [*slow("launch/slurm.sbatch"), "for/slurm/job.sbatch"])
@pytest.mark.parametrize("engine", ["fsdp2", *slow("deepspeed", "ddp", "tensor", "pipeline")])
def test_torchrun_under_slurm(
    engine: str, script: str, cluster: slurm.Slurm, tiny_llama: Path, tmp_path: Path
) -> None:
    """sbatch, srun and torchrun train the whole run, on every engine of `dsforge train`."""
    run = generated(tmp_path, tiny_llama, "slurm", engine=engine)
    facts = cluster.ended(submitted(cluster, run, script))

    assert facts["JobState"] == "COMPLETED", (run / "job.log").read_text()[-3000:]
    is_whole(run, 2)


def test_deepspeed_calls_srun(cluster: slurm.Slurm, tiny_llama: Path, tmp_path: Path) -> None:
    """DeepSpeed's Slurm runner starts one task for each rank, and they are one job."""
    run = generated(tmp_path, tiny_llama, "deepspeed-slurm")
    facts = cluster.ended(submitted(cluster, run, "for/deepspeed-slurm/job.sbatch"))

    assert facts["JobState"] == "COMPLETED", (run / "job.log").read_text()[-3000:]
    is_whole(run, 2)


@pytest.mark.parametrize("engine", ["deepspeed", *slow("ddp")])
def test_a_stopped_job_is_requeued_and_resumes(
    engine: str, cluster: slurm.Slurm, tiny_llama: Path, tmp_path: Path
) -> None:
    """The signal before the end: the ranks save, the job runs again and ends with all its steps."""
    run = generated(tmp_path, tiny_llama, "slurm", steps=60, engine=engine)
    job = submitted(cluster, run, "for/slurm/job.sbatch")
    runs.wait_for_lines(run, 3, lambda: None)
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    end = time.monotonic() + 120
    while cluster.facts(job).get("Restarts") == "0":
        assert time.monotonic() < end, (run / "job.log").read_text()[-3000:]
        time.sleep(0.5)
    time.sleep(3)  # slurmd revokes the credential of the first start, by the second
    cluster.run("scontrol", "release", job)  # Slurm waits two minutes before it starts it again
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    facts = cluster.ended(job)
    log = (run / "job.log").read_text()

    assert facts["JobState"] == "COMPLETED", log[-3000:]
    assert facts["Restarts"] == "1"
    assert "stopped by a signal: the job is requeued and resumes" in log
    first, _, second = log.partition("stopped by a signal: the job is requeued and resumes")
    assert f"after step {last_step(first)}" in second  # nothing that was trained is lost
    is_whole(run, 2, 60)


def last_step(log: str) -> int:
    """The last step that a log tells of."""
    return max(int(step) for step in re.findall(r"(?m)^step (\d+)/", log))


@pytest.mark.parametrize("script", [*slow("launch/slurm.sbatch"), "for/slurm/job.sbatch"])
def test_a_cancelled_job_saves_and_does_not_come_back(
    script: str, cluster: slurm.Slurm, tiny_llama: Path, tmp_path: Path
) -> None:
    """`scancel` signals the script too, which asks for a requeue after other signals."""
    run = generated(tmp_path, tiny_llama, "slurm", steps=2000, engine="ddp")
    job = submitted(cluster, run, script)
    runs.wait_for_lines(run, 3, lambda: None)
    cluster.run("scancel", job)
    facts = cluster.ended(job)
    while "train: done" not in (log := (run / "job.log").read_text()):
        time.sleep(0.5)  # Slurm calls it cancelled while the ranks still save
    time.sleep(2)

    assert (facts["JobState"], cluster.facts(job)["Restarts"]) == ("CANCELLED", "0")
    assert f"checkpoint of step {last_step(log)} saved" in log


@pytest.mark.parametrize("engine", ["ddp", *slow("deepspeed", "fsdp2")])
def test_a_signal_to_the_ranks_ends_the_plain_script_well(
    engine: str, cluster: slurm.Slurm, tiny_llama: Path, tmp_path: Path
) -> None:
    """SIGTERM to the steps, as before the time limit: saved, exit code 0, nothing of torchrun."""
    run = generated(tmp_path, tiny_llama, steps=2000, engine=engine)
    job = submitted(cluster, run, "launch/slurm.sbatch")
    runs.wait_for_lines(run, 3, lambda: None)
    cluster.run("scancel", "--signal=TERM", job)
    facts = cluster.ended(job)
    log = (run / "job.log").read_text()

    assert (facts["JobState"], facts["ExitCode"]) == ("COMPLETED", "0:0"), log[-3000:]
    assert f"checkpoint of step {last_step(log)} saved" in log
    assert "Traceback" not in log
