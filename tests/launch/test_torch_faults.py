"""Ranks of plain torch that die under torchrun: it starts again, on as many ranks as are left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from test_faults_ranks import EVERY, STEPS, in_a_step, killed, torchrun
from torch_jobs import write_torch_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]
CLOSE = 2e-4  # of a loss of about 5: other ranks add in another order, in fp32


def job(folder: Path, model: Path, strategy: str, **torch: Any) -> None:
    """A run of 12 steps with a checkpoint every fourth one."""
    settings = {"strategy": strategy, **torch}
    write_torch_job(folder, model, settings, steps=STEPS, checkpoint_every=EVERY)


@pytest.fixture(scope="module")
def undisturbed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job(folder, tiny_llama, "fsdp2")
    ranks.train(folder, 2, "--no-export")
    return runs.figures(folder / "output", "loss")


@pytest.mark.parametrize("strategy", ["fsdp2", pytest.param("zero1", marks=pytest.mark.slow)])
def test_torchrun_goes_on_by_itself_after_kill_9(
    strategy: str, undisturbed: list[float], tiny_llama: Path, tmp_path: Path
) -> None:
    """The ranks start again and resume from the newest checkpoint; at most one interval is lost."""
    job(tmp_path, tiny_llama, strategy)
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(
            [*torchrun(), "--no-export"],
            cwd=tmp_path,
            env=runs.environment(),
            text=True,
            stdout=log,
            stderr=log,
        )
        done = killed(run, 1, tmp_path, in_a_step)
        code = run.wait(timeout=240)
    text = (tmp_path / "log").read_text()

    assert code == 0, text[-3000:]
    (resumed,) = re.findall(r"resumed from \S+ after step (\d+)", text)
    assert 0 <= done - int(resumed) <= EVERY
    assert runs.figures(tmp_path / "output", "loss") == pytest.approx(undisturbed, abs=CLOSE)


def agent(folder: Path, name: str, port: int) -> subprocess.Popen[str]:
    """One torchrun of an elastic job of one or two nodes, here on one machine."""
    own = ["--nnodes", "1:2", "--nproc_per_node", "1", "--max-restarts", "3", "--rdzv-id", "t"]
    own += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    own += ["--rdzv-conf", f"join_timeout=60,last_call_timeout=5,is_host={name == 'first'}"]
    words = [*own, "--local-addr", "127.0.0.1", "-m", "dsforge.train", "train.yaml", "--no-export"]
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [str(runs.BIN / "torchrun"), *words],
            cwd=folder,
            env=runs.environment(),
            text=True,
            stdout=log,
            stderr=log,
        )


@pytest.mark.slow
def test_a_node_is_lost_and_the_rest_go_on(
    undisturbed: list[float], tiny_llama: Path, tmp_path: Path
) -> None:
    """Two nodes become one: the global batch, the schedule and the order of the data stay."""
    job(tmp_path, tiny_llama, "fsdp2")
    port = runs.free_port()
    first, second = (agent(tmp_path, name, port) for name in ("first", "second"))
    try:
        killed(first, -1, tmp_path, in_a_step)
        second.send_signal(signal.SIGKILL)
        for rank in (0, 1):
            kill_child_of(second.pid, rank)
        code = first.wait(timeout=240)
    finally:
        for one in (first, second):
            one.kill()
            one.wait(timeout=60)
    text = (tmp_path / "first.log").read_text()

    assert code == 0, text[-3000:]
    assert "saved by 2 ranks under fsdp2; 2 x 4 samples on each rank" in text
    assert runs.figures(tmp_path / "output", "loss") == pytest.approx(undisturbed, abs=CLOSE)


def kill_child_of(parent: int, rank: int) -> None:
    """End the ranks that a process has started; they have its id in their environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text()
            text = (entry / "environ").read_bytes().decode()
        except OSError:
            continue
        own = int(status.rpartition(")")[2].split()[1])
        if own == parent and f"\0RANK={rank}\0" in f"\0{text}\0":
            os.kill(int(entry.name), signal.SIGKILL)


def test_ranks_that_cannot_share_the_batch_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    """Eight samples on three ranks: one line names the numbers of ranks that can."""
    job(tmp_path, tiny_llama, "ddp")
    codes, text = ranks.ended(tmp_path, 3)

    assert codes == [1, 1, 1]
    assert "a global batch of 8 cannot be divided among 3 replicas" in text
    assert "start 1, 2, 4 or 8 ranks" in text
    assert "Traceback" not in text
