"""Slurm: sbatch, squeue, sacct and scontrol, scancel."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from dsforge import process
from dsforge.errors import DsforgeError
from dsforge.jobs import keeper
from dsforge.jobs.job import LOG, Job, State
from dsforge.jobs.place import Death, Part, Place, Seen, Wish, script_of

SCRIPTS = ("for/slurm/job.sbatch", "launch/slurm.sbatch", "megatron/slurm.sbatch")
LIMIT_S = 60.0
# man squeue, "JOB STATE CODES"; all others mean that it failed.
STATES: dict[str, State] = {
    "PENDING": "queued",
    "CONFIGURING": "queued",
    "REQUEUED": "queued",
    "REQUEUE_HOLD": "queued",
    "REQUEUE_FED": "queued",
    "SPECIAL_EXIT": "queued",
    "SUSPENDED": "queued",
    "RUNNING": "running",
    "COMPLETING": "running",
    "STAGE_OUT": "running",
    "SIGNALING": "running",
    "RESIZING": "running",
    "COMPLETED": "finished",
    "CANCELLED": "cancelled",
}
# Ends of a job that are those of machines; limits that a restart meets again.
LOST = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED")
LIMITS = {
    "OUT_OF_MEMORY": "host memory; ask for more, or plan for less",
    "TIMEOUT": "the job of `dsforge gen --for slurm` goes back into the queue before its limit",
    "DEADLINE": "submit with a later deadline",
}


def _run(*words: str, cwd: Path | None = None) -> process.Completed:
    if shutil.which(words[0]) is None:
        message = f"`{words[0]}` is not on PATH: this machine is not in a Slurm cluster"
        raise DsforgeError(message, "call it on a login node, or use --on local")
    return process.run(words, timeout_s=LIMIT_S, cwd=cwd)


def submit(run: Path, wish: Wish) -> Job:
    """Call sbatch in the run folder."""
    script = script_of(run, *SCRIPTS)
    log = ("--output", LOG, "--open-mode=append")
    offset = keeper.log_part(run, -1).end
    done = _run("sbatch", "--parsable", *log, script, cwd=run).check("sbatch")
    numbers = re.findall(r"(?m)^([0-9]{1,12})(?:;\S+)?$", done.output)
    if not numbers:
        raise DsforgeError(f"sbatch gave no job id, but {done.output[:200]!a}")
    return Job(
        place="slurm",
        id=numbers[-1],
        script=script,
        submitted_at=time.time(),
        retries=wish.retries,
        attempt=wish.attempt,
        log_offset=offset,
    )


class _Told(NamedTuple):
    """What Slurm tells of a job."""

    word: str  # of its state
    reason: str
    code: str  # `1:0`: exit code and signal
    starts: int


def _told(job: Job) -> _Told | None:
    """What the controller knows; of a job that it forgot, what the accounting has."""
    done = _run("scontrol", "--oneliner", "show", "job", job.id)
    facts = dict(re.findall(r"(\w+)=(\S*)", done.output)) if done.code == 0 else {}
    if "JobState" in facts:
        reason = "" if facts.get("Reason") in (None, "None") else facts["Reason"]
        starts = int(facts["Restarts"]) + 1 if facts.get("Restarts", "").isdecimal() else 1
        return _Told(facts["JobState"], reason, facts.get("ExitCode", ""), starts)
    if shutil.which("sacct") is not None:
        told = _run("sacct", "-n", "-X", "-P", "-j", job.id, "-o", "State,ExitCode")
        found = re.match(r"([A-Z_]+)[^|\n]*\|([0-9:]+)", told.output) if told.code == 0 else None
        if found:
            return _Told(found[1], f"exit code {found[2].partition(':')[0]}", found[2], 1)
    return None


def look(_: Path, job: Job) -> Seen:
    """The state of the job, in the words of dsforge."""
    told = _told(job)
    if told is None:
        return Seen("unknown", f"Slurm no longer knows job {job.id}")
    return _seen(told.word, told.reason, told.starts + job.attempt - 1)


def death(_: Path, job: Job) -> Death:
    """How it ended: by a node or a limit that Slurm names, else by its exit code or signal."""
    told = _told(job)
    if told is None:
        return Death()
    if told.word in LOST:
        return Death(lost=told.word)
    if told.word in LIMITS:
        return Death(hopeless=f"{told.word}: {LIMITS[told.word]}")
    code, signalled = told.code.partition(":")[::2]
    ended_by = int(signalled) if signalled.isdecimal() else 0
    return Death(code=keeper.SIGNALLED + ended_by if ended_by else int(code or 1))


def _seen(word: str, reason: str, attempt: int) -> Seen:
    """A state of Slurm in the words of dsforge."""
    state = STATES.get(word, "failed")
    said = f"{word} ({reason})" if reason else word
    return Seen(state, "" if state in {"running", "finished"} else said, attempt)


def read(run: Path, job: Job, offset: int) -> Part:
    """The log that sbatch writes into the run folder; from the end: that of this start alone."""
    if offset < 0:
        offset = max(keeper.log_part(run, -1).end + offset, job.log_offset)
    return keeper.log_part(run, offset)


def cancel(_: Path, job: Job) -> None:
    """Call scancel; the ranks have the KillWait of the cluster."""
    _run("scancel", job.id).check("scancel")


PLACE = Place("slurm", submit, look, read, cancel, death)
