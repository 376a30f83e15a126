"""Ranks and hosts that die: torchrun starts again by itself, and one interval is lost at most."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import hosts
import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

from dsforge.checkpoints.verify.checkpoint import verify

pytestmark = [pytest.mark.launch, pytest.mark.engine]
EVERY, STEPS = 4, 12


def torchrun(*options: str) -> list[str]:
    """Two ranks under torchrun, which starts them again once."""
    own = ["--nproc_per_node", "2", "--master_port", str(runs.free_port()), "--max-restarts", "1"]
    return [str(runs.BIN / "torchrun"), *own, *options, "-m", "dsforge.train", "train.yaml"]


def processes(rank: int, folder: Path) -> Iterator[int]:
    """The process of a rank that runs in a folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cwd").readlink() == folder:
                text = (entry / "environ").read_bytes().decode()
                if f"\0RANK={rank}\0" in f"\0{text}\0":
                    yield int(entry.name)


def in_a_step(folder: Path) -> bool:
    """Two steps after a save: nothing is being written."""
    return len(runs.figures(folder / "output", "loss")) >= EVERY + 2


def as_a_save_begins(folder: Path) -> bool:
    """The folder of the second save is there and nothing in it."""
    return (folder / f"output/checkpoints/.saving/global_step{2 * EVERY}").is_dir()


def in_a_save(folder: Path) -> bool:
    """A first file of the second save is there."""
    saving = folder / f"output/checkpoints/.saving/global_step{2 * EVERY}"
    return any(saving.glob("*.pt"))


def as_a_save_ends(folder: Path) -> bool:
    """The second checkpoint has just got its name."""
    return (folder / f"output/checkpoints/global_step{2 * EVERY}").is_dir()


def killed(run: subprocess.Popen[str], rank: int, folder: Path, due: Callable[[Path], bool]) -> int:
    """`kill -9` of a rank as soon as its moment is there; steps that were done by then."""
    end = time.monotonic() + 200
    metrics = folder / "output/metrics.jsonl"
    while not (metrics.is_file() and due(folder)):
        assert time.monotonic() < end, "the moment never came"
        assert run.poll() is None, f"the run ended with {run.returncode}"
        time.sleep(0.001)
    for pid in processes(rank, folder):
        os.kill(pid, signal.SIGKILL)
    return len(runs.figures(folder / "output", "loss"))


@pytest.fixture(scope="module")
def undisturbed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_job(folder, tiny_llama, ds_config(2), steps=STEPS, checkpoint_every=EVERY)
    runs.succeeded([*torchrun(), "--no-export"], folder)
    return runs.figures(folder / "output", "loss")


def test_a_rank_killed_in_a_save_costs_one_interval(tiny_llama: Path, tmp_path: Path) -> None:
    """The half-written checkpoint never counts; the rank that is left ends, and a start goes on."""
    write_job(tmp_path, tiny_llama, ds_config(2), steps=8, checkpoint_every=EVERY)
    both = ranks.begun(tmp_path, 2, "--no-export")
    end = time.monotonic() + runs.FIRST_STEP_S
    while not in_a_save(tmp_path):
        assert time.monotonic() < end, "no second save"
        assert both[1].exitcode is None, "the run ended first"
    both[1].kill()
    codes, _ = ranks.outcome(tmp_path, both, limit_s=60)
    left = [path.name for path in (tmp_path / "output/checkpoints").glob("global_step*")]
    text = ranks.train(tmp_path, 2, "--no-export")

    assert codes[0] == 1
    assert left == [f"global_step{EVERY}"]
    assert f"global_step{EVERY} after step {EVERY}" in text
    assert len(runs.figures(tmp_path / "output", "loss")) == 8
    assert verify(tmp_path / "output/checkpoints") == []


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("due", [in_a_step, as_a_save_begins, in_a_save, as_a_save_ends])
def test_torchrun_goes_on_by_itself_after_kill_9(
    due: Callable[[Path], bool],
    rank: int,
    undisturbed: list[float],
    tiny_llama: Path,
    tmp_path: Path,
) -> None:
    """At any moment, of any rank: the same losses in the end, at most one interval done twice."""
    write_job(tmp_path, tiny_llama, ds_config(2), steps=STEPS, checkpoint_every=EVERY)
    with (tmp_path / "log").open("w") as log:
        command = [*torchrun(), "--no-export"]
        run = subprocess.Popen(
            command, cwd=tmp_path, env=runs.environment(), text=True, stdout=log, stderr=log
        )
        done = killed(run, rank, tmp_path, due)
        code = run.wait(timeout=240)
    text = (tmp_path / "log").read_text()

    assert code == 0, text[-3000:]
    (resumed,) = re.findall(r"resumed from \S+ after step (\d+)", text)
    assert 0 <= done - int(resumed) <= EVERY
    assert runs.figures(tmp_path / "output", "loss") == undisturbed
    assert verify(tmp_path / "output/checkpoints") == []


@pytest.mark.slow
def test_sigterm_saves_within_the_grace_time(tiny_llama: Path, tmp_path: Path) -> None:
    """All ranks get a pre-emption notice at once: saved and gone in seconds, nothing lost."""
    write_job(tmp_path, tiny_llama, ds_config(3), steps=100_000)
    run = runs.started([*torchrun(), "--no-export"], tmp_path, lines=5)
    begin = time.monotonic()
    for rank in (0, 1):
        for pid in processes(rank, tmp_path):
            os.kill(pid, signal.SIGTERM)
    code = run.wait(timeout=60)
    took_s = time.monotonic() - begin
    (saved,) = (tmp_path / "output/checkpoints").glob("global_step*")

    assert code == 0
    assert took_s < 30  # what clouds give, two minutes as a rule
    assert saved.name == f"global_step{len(runs.figures(tmp_path / 'output', 'loss'))}"
    assert verify(saved) == []


@pytest.mark.slow
@pytest.mark.hosts
def test_one_of_two_hosts_is_lost(two_hosts: hosts.Hosts, tiny_llama: Path, tmp_path: Path) -> None:
    """Two ranks become one: torchrun meets again without the host, the run keeps its batch."""
    write_job(tmp_path, tiny_llama, ds_config(2), steps=STEPS, checkpoint_every=EVERY)
    first = two_hosts.addresses[0]
    meeting = ["--nnodes", "1:2", "--nproc_per_node", "1", "--max-restarts", "3", "--rdzv-id", "t"]
    meeting += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:{runs.free_port()}"]
    job = ["-m", "dsforge.train", "train.yaml", "--no-export"]
    variables = runs.environment(GLOO_SOCKET_IFNAME=hosts.INTERFACE, DEEPSPEED_TIMEOUT="1")
    agents = []
    for host in two_hosts.hosts:
        inside = ["ip", "netns", "exec", host.namespace, str(runs.BIN / "torchrun")]
        conf = f"join_timeout=60,last_call_timeout=5,is_host={host.address == first}"
        own = ["--local-addr", host.address, *meeting, "--rdzv-conf", conf, *job]
        with (tmp_path / f"{host.address}.log").open("w") as log:
            agents.append(
                subprocess.Popen(inside + own, cwd=tmp_path, env=variables, stdout=log, stderr=log)
            )
    try:
        lost = killed(agents[0], -1, tmp_path, in_a_step)
        for pid in two_hosts.hosts[1].pids():
            if pid not in two_hosts.services:
                os.kill(pid, signal.SIGKILL)
        code = agents[0].wait(timeout=300)
    finally:
        two_hosts.end_jobs()
        for agent in agents:
            agent.wait(timeout=60)
    text = (tmp_path / f"{first}.log").read_text()

    assert code == 0, text[-3000:]
    assert "saved by 2 ranks under ZeRO-2; 2 x 4 samples on each rank" in text
    assert lost - int(re.findall(r"after step (\d+)", text)[-1]) <= EVERY
    assert len(runs.figures(tmp_path / "output", "loss")) == STEPS
