"""A real Slurm of one node on this machine: munged, slurmctld and slurmd with settings of its own.

Nothing in /etc is read or changed; the daemons are ended with the `with`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import runs

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo")
NODE = "localhost"
START_LIMIT_S = 30.0


@dataclass(frozen=True)
class Slurm:
    """A running Slurm; `environment` makes its commands find it."""

    environment: Mapping[str, str]

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            words,
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def facts(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job: `JobState`, `ExitCode`, `Restarts` and more."""
        words = self.run("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended(self, job: str, limit_s: float = 300) -> dict[str, str]:
        """The same, once the job has left the queue."""
        end = time.monotonic() + limit_s
        while (facts := self.facts(job))["JobState"] in {
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "COMPLETING",
            "REQUEUED",
        }:
            assert time.monotonic() < end, facts
            time.sleep(0.5)
        return facts


def missing() -> str:
    """What this machine lacks for a Slurm of its own; empty where nothing does."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    sbin = "/usr/sbin"
    lacking = [n for n in PROGRAMS if shutil.which(n, path=f"{os.environ['PATH']}:{sbin}") is None]
    if lacking:
        return f"no {', '.join(lacking)} (apt-get install slurmctld slurmd slurm-client munge)"
    return ""


def _config(folder: Path, ports: tuple[int, int]) -> str:
    """slurm.conf of one node that is this machine, without cgroups."""
    cores = os.cpu_count() or 1
    settings = {
        "ClusterName": "dsforge-test",
        "SlurmctldHost": NODE,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "CredType": "cred/munge",
        "SlurmctldPort": ports[0],
        "SlurmdPort": ports[1],
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": folder / "slurmd.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=2",
        "JobRequeue": 1,
        "KillWait": 20,
        "ReturnToService": 2,
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines.append(f"NodeName={NODE} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=1000 State=UNKNOWN")
    lines.append(f"PartitionName=all Nodes={NODE} Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """A Slurm that takes jobs, with its files in `folder`."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    config = folder / "slurm.conf"
    config.write_text(_config(folder, (runs.free_port(), runs.free_port())))
    path = f"{runs.environment()['PATH']}:/usr/sbin"
    environment = {**os.environ, "PATH": path, "SLURM_CONF": str(config)}
    kept = (f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log")
    munge = (f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key", *kept)
    daemons = (
        ("munged", "--foreground", "--force", f"--seed-file={folder}/munge.seed", *munge),
        ("slurmctld", "-D", "-i"),
        ("slurmd", "-D", "-N", NODE),
    )
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in daemons:
            with (folder / f"{words[0]}.out").open("wb") as out:
                started.append(subprocess.Popen(words, env=environment, stdout=out, stderr=out))
            time.sleep(0.5)
        made = Slurm(environment)
        _wait_until_idle(made, folder)
        yield made
    finally:
        for daemon in reversed(started):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _wait_until_idle(made: Slurm, folder: Path) -> None:
    """Return when the node takes jobs."""
    end = time.monotonic() + START_LIMIT_S
    said = ""
    while time.monotonic() < end:
        said = made.run("sinfo", "-h", "-o", "%t") if _answers(folder) else ""
        if said == "idle":
            return
        time.sleep(0.5)
    logs = "".join(path.read_text(errors="replace")[-1500:] for path in folder.glob("*.out"))
    raise RuntimeError(f"Slurm has no idle node: {said}\n{logs}")


def _answers(folder: Path) -> bool:
    """Whether slurmctld has said that it runs."""
    return "Running as primary controller" in (folder / "slurmctld.log").read_text(errors="replace")
