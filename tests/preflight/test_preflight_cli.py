"""`dsforge preflight` as a user calls it, where no second host is needed."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import plans
import pytest

from dsforge import process
from dsforge.errors import EXIT_FINDINGS
from dsforge.estimate.memory import HostMemory
from dsforge.render import render
from dsforge.units import Interval

LIMIT_S = 60.0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder as rendered for one CPU rank on one machine, with ops of its own."""
    folder = tmp_path / "run"
    plan = plans.plan(on=plans.cpu_cluster(1, 1, host_memory_bytes=200 << 30))
    little = {
        "checkpoint_bytes": 1 << 20,
        "host_bytes": HostMemory(load=0, init=0, step=0, save=0),
        "device_bytes": Interval(1.0, 2.0, 3.0),
    }
    small = plan.choice.memory.model_copy(update=little)
    choice = plan.choice.model_copy(update={"memory": small})
    for artifact in render(plan.model_copy(update={"choice": choice})):
        path = folder / artifact.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(artifact.text)
    (folder / ".deepspeed_env").write_text(f"TORCH_EXTENSIONS_DIR={tmp_path / 'ops'}\n")
    return folder


def preflight(*words: str, **environment: str) -> process.Completed:
    """The command, on a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return process.run(
        ("dsforge", "preflight", *words),
        timeout_s=LIMIT_S,
        environment={"MASTER_PORT": port, **environment},
    )


def test_one_machine_needs_no_ssh(run: Path) -> None:
    """`--local` looks at this machine: a table, what is exported, exit code 0."""
    done = preflight(str(run), "--local", PATH=os.environ["PATH"])

    head, row, *rest = done.output.splitlines()
    assert done.code == 0, done.output
    assert head.split()[:4] == ["host", "ssh", "config", "python"]
    assert row.split()[0] == "localhost"
    assert "FAIL" not in row
    assert any("1 of 1 hosts checked" in line for line in rest)


def test_json_has_facts_and_findings(run: Path) -> None:
    """`--json` prints one document on stdout."""
    (run / ".deepspeed_env").write_text("# a comment\n")

    done = preflight(str(run), "--local", "--json")

    said = json.JSONDecoder().raw_decode(done.output)[0]
    assert done.code == EXIT_FINDINGS
    assert [f["rule"] for f in said["findings"] if f["severity"] == "error"] == ["env-line"]
    assert said["hosts"]["localhost"]["cpu_cores"] >= 1


def test_ignored_check_does_not_count(run: Path) -> None:
    """`--ignore` leaves a finding out of output and exit code."""
    (run / "hostfile").write_text("localhost slots=700\n")
    ignored = ("--ignore", "slots-missing", "--ignore", "slots-unplanned", "--ignore", "shm-small")

    assert preflight(str(run)).code == EXIT_FINDINGS
    assert preflight(str(run), *ignored).code == 0


def test_hosts_of_a_slurm_job_are_reached_with_srun(run: Path, tmp_path: Path) -> None:
    """Without a hostfile the nodes are Slurm's; a stand-in for srun runs the command here."""
    (run / "hostfile").unlink()
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(
        '#!/bin/sh\necho "$@" >>"$0.words"\n'
        'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
    )
    srun.chmod(0o755)
    path = f"{srun.parent}:{os.environ['PATH']}"

    done = preflight(str(run), "--json", PATH=path, SLURM_JOB_NODELIST="node[07]")

    said = json.JSONDecoder().raw_decode(done.output)[0]
    words = srun.with_suffix(".words").read_text()
    assert list(said["hosts"]) == ["node07"]
    assert words.startswith("--overlap --unbuffered --nodes=1 --ntasks=1 --nodelist=node07 python3")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("/nonexistent",), "is not a folder"),
        (("/usr",), "contains neither a run"),
        (("--explain", "ssh-kee"), "did you mean `ssh-key`?"),
        ((".", "--hostfile", "/nonexistent"), "is not a file"),
    ],
    ids=["no-folder", "no-run", "no-check", "no-hostfile"],
)
def test_wrong_words_are_told(words: tuple[str, ...], said: str, run: Path) -> None:
    """A mistake on the command line is a message with the way out, and exit code 1."""
    done = preflight(*(str(run) if word == "." else word for word in words))

    assert done.code == 1
    assert said in done.output
    assert "Traceback" not in done.output


def test_wrong_port_is_told(run: Path) -> None:
    """MASTER_PORT must be a port."""
    done = preflight(str(run), "--local", MASTER_PORT="29500; touch owned")

    assert done.code == 1
    assert "is not a port" in done.output


def test_hosts_that_do_not_exist_cost_seconds(run: Path, tmp_path: Path) -> None:
    """Sixty addresses at which nobody answers are all named within one time-out."""
    addresses = [f"192.0.2.{n}" for n in range(1, 61)]
    (run / "hostfile").write_text("".join(f"{a} slots=1\n" for a in addresses))
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nsleep 5\necho 'connect: Connection timed out' >&2\nexit 255\n")
    ssh.chmod(0o755)
    begin = time.monotonic()

    done = preflight(str(run), "--json", PATH=f"{tmp_path}:{os.environ['PATH']}")

    waited, document = done.output.split("{", 1)  # both streams: what it waits for, the document
    said = json.JSONDecoder().raw_decode("{" + document)[0]
    assert "waiting for the hosts" in waited
    assert sorted(said["lost"]) == sorted(addresses)
    assert time.monotonic() - begin < LIMIT_S


def test_a_machine_without_cards_is_told_how_cpu_ranks_start(tmp_path: Path) -> None:
    """Without a run and a GPU, `--local` says so; with DS_ACCELERATOR=cpu nothing is wrong."""
    path = os.environ["PATH"]
    bare = preflight(str(tmp_path), "--local", PATH=path, CUDA_VISIBLE_DEVICES="")
    on_cpu = preflight(str(tmp_path), "--local", PATH=path, DS_ACCELERATOR="cpu")

    if bare.code:  # a machine with a GPU has nothing to say
        assert "a run starts at least 1 rank on each host, but the host has 0 GPUs" in bare.output
        assert "DS_ACCELERATOR=cpu" in bare.output
    assert on_cpu.code == 0, on_cpu.output


def test_slurm_without_srun_names_the_ways_out(run: Path, tmp_path: Path) -> None:
    """A job of Slurm whose image lacks srun: hostfile or --local."""
    (run / "hostfile").unlink(missing_ok=True)
    python = Path(sys.executable).parent
    done = preflight(str(run), PATH=f"{python}:{tmp_path}", SLURM_JOB_NODELIST="node[1-2]")

    assert done.code == 1
    assert "`srun` is not on the PATH" in done.output
    assert "--local" in done.output
