"""`dsforge submit`, `status`, `logs` and `cancel` with real runs: here, over ssh, under Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hosts
import pytest
import runs
import slurm
from target_runs import generated, is_whole

import dsforge
from dsforge.errors import DsforgeError
from dsforge.jobs import follower
from dsforge.train.run.process_tree import words_of

pytestmark = [pytest.mark.launch, pytest.mark.engine]

LIMIT_S = 240.0


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port of its own for each run, and one thread a rank."""
    monkeypatch.setenv("MASTER_PORT", str(runs.free_port()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    """A Slurm of this module."""
    lacking = slurm.missing()
    if lacking:
        pytest.skip(lacking)
    with slurm.slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def waited(run: Path, wanted: Callable[[dsforge.StatusDocument], bool]) -> dsforge.StatusDocument:
    """The first status that is as wanted."""
    end = time.monotonic() + LIMIT_S
    while not wanted(found := dsforge.status(run)):
        assert time.monotonic() < end, (found, "".join(dsforge.logs(run))[-3000:])
        time.sleep(0.3)
    return found


def ended(run: Path) -> dsforge.StatusDocument:
    """The status of a run that has ended."""
    return waited(run, lambda found: found.state not in {"queued", "running"})


def ranks(run: Path) -> list[int]:
    """The training ranks of a run on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and "dsforge.train" in words_of(int(entry.name)):
            try:
                inside = (entry / "cwd").readlink() == run
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if inside and b"LOCAL_RANK=" in environment:
                found.append(int(entry.name))
    return found


def test_a_run_survives_the_one_who_started_it(tiny_llama: Path, tmp_path: Path) -> None:
    """The command and its whole session end; the run goes on to its last step."""
    run = generated(tmp_path, tiny_llama)
    words = [sys.executable, "-m", "dsforge", "submit", str(run), "--json"]
    shell = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True, env=runs.environment()
    )
    said = json.loads(shell.communicate(timeout=60)[0])
    assert shell.returncode == 0
    with pytest.raises(DsforgeError, match="running already"):
        dsforge.submit(run)
    with suppress(ProcessLookupError):  # all of its session has ended
        os.killpg(shell.pid, signal.SIGHUP)
    found = ended(run)

    assert said["begins"] == "from the first step"
    assert (found.state, found.step, found.steps) == ("finished", 6, 6)
    assert "step 6/6" in "".join(dsforge.logs(run, follow=True))
    is_whole(run, 2)


def test_a_cancelled_run_saves_and_resumes(tiny_llama: Path, tmp_path: Path) -> None:
    """SIGTERM reaches the ranks; `resume` goes on where they saved."""
    run = generated(tmp_path, tiny_llama, steps=400)
    dsforge.submit(run)
    waited(run, lambda found: (found.step or 0) >= 3)
    dsforge.cancel(run)
    found = ended(run)
    assert found.state == "cancelled"
    assert (found.step or 0) < 400
    with pytest.raises(DsforgeError, match="checkpoints of an earlier start"):
        dsforge.submit(run)
    job = run / "train.yaml"
    job.write_text(job.read_text().replace("steps: 400", f"steps: {found.step + 3}"))
    begun = dsforge.submit(run, resume=True)
    last = ended(run)

    assert begun.begins == f"from the checkpoint of step {found.step}"
    assert (last.state, last.step) == ("finished", found.step + 3)


@pytest.mark.slow
def test_a_killed_rank_is_cured_by_a_restart(tiny_llama: Path, tmp_path: Path) -> None:
    """With `retries` the run resumes by itself; the losses are those of one run."""
    run = generated(tmp_path, tiny_llama, steps=80)
    dsforge.submit(run, retries=2)
    waited(run, lambda found: (found.step or 0) >= 5)
    os.kill(ranks(run)[-1], signal.SIGKILL)
    found = ended(run)
    log = "".join(dsforge.logs(run))

    assert (found.state, found.step, found.attempt) == ("finished", 80, 2), log[-3000:]
    assert "starting again" in log
    assert "resumed from" in log
    is_whole(run, 2, 80)


def test_a_mistake_is_not_tried_again(tiny_llama: Path, tmp_path: Path) -> None:
    """Bad data fails once, whatever the retries; status has the answer of diagnose."""
    run = generated(tmp_path, tiny_llama)
    (tmp_path / "data.jsonl").write_text("not json\n")
    dsforge.submit(run, retries=3)
    found = ended(run)

    assert (found.state, found.attempt) == ("failed", 1)
    assert found.causes
    assert "bad row" in found.causes[0].message


def on_first_host(two_hosts: hosts.Hosts, *words: str, code: int = 0) -> str:
    """What `dsforge` prints on the second host's neighbour, without ending what it started."""
    inside = ("ip", "netns", "exec", two_hosts.hosts[1].namespace, sys.executable, "-m", "dsforge")
    path = f"{two_hosts.bin}:{runs.environment()['PATH']}"
    done = subprocess.run(
        (*inside, *words),
        env=runs.environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.hosts
def test_a_run_on_another_host(two_hosts: hosts.Hosts, tiny_llama: Path, tmp_path: Path) -> None:
    """From the second host over ssh onto the first: submit, follow, status, cancel."""
    listed: list[dict[str, Any]] = [{"address": two_hosts.addresses[0], "slots": 2}]
    run = generated(tmp_path, tiny_llama, steps=300, hosts=listed, ssh_port=hosts.SSH_PORT)
    try:
        said = json.loads(on_first_host(two_hosts, "submit", str(run), "--on", "ssh", "--json"))
        runs.wait_for_lines(run, 3, lambda: None)
        running = json.loads(on_first_host(two_hosts, "status", str(run), "--json"))
        there = {pid for pid in ranks(run) if pid in two_hosts.hosts[0].pids()}
        on_first_host(two_hosts, "cancel", str(run))
        log = on_first_host(two_hosts, "logs", "-f", str(run))
        last = json.loads(on_first_host(two_hosts, "status", str(run), "--json"))
    finally:
        two_hosts.end_jobs()

    assert said["job"]["host"] == two_hosts.addresses[0]
    assert (running["state"], len(there)) == ("running", 2)
    assert "step 3/300" in log
    assert last["state"] == "cancelled"


def test_a_run_under_slurm(
    cluster: slurm.Slurm, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch, the queue, the log, scancel and the end, with a real Slurm."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    run = generated(tmp_path / "whole", tiny_llama)
    dsforge.submit(run, on="slurm")
    found = ended(run)
    assert found.state == "finished", "".join(dsforge.logs(run))[-3000:]
    assert "step 6/6" in "".join(dsforge.logs(run))
    is_whole(run, 2)

    long = generated(tmp_path / "long", tiny_llama, steps=4000)
    dsforge.submit(long, on="slurm")
    waited(long, lambda seen: seen.state == "running" and (seen.step or 0) >= 2)
    dsforge.cancel(long)
    assert ended(long).state == "cancelled"

    broken = generated(tmp_path / "broken", tiny_llama)
    (tmp_path / "broken/data.jsonl").write_text("not json\n")
    dsforge.submit(broken, on="slurm")
    seen = ended(broken)
    assert seen.state == "failed"
    assert seen.causes


def test_a_killed_rank_under_slurm_is_cured_by_another_job(
    cluster: slurm.Slurm, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `retries` the follower submits a failed job again, which resumes and ends."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    run = generated(tmp_path, tiny_llama, steps=60)
    first = dsforge.submit(run, on="slurm", retries=1).job
    try:
        waited(run, lambda found: (found.step or 0) >= 5)
        os.kill(ranks(run)[-1], signal.SIGKILL)
        found = ended(run)
    finally:
        follower.stop(run)  # it would ask a Slurm that has ended, for an hour
    log = "".join(dsforge.logs(run))

    assert (found.state, found.step, found.attempt) == ("finished", 60, 2), log[-3000:]
    assert found.job.id != first.id
    assert "submitting again" in log
    assert "resumed from" in log
    is_whole(run, 2, 60)
