"""The follower of a job under a scheduler: submits it again where a restart can cure its death.

Slurm and Kubernetes end a job that failed, and know nothing of its cause. The follower is a process
on the machine where `dsforge submit` was called; it asks the scheduler every few seconds, reads the
log of a job that failed, and submits it again as often as `--retries` says. If the follower ends,
the job goes on without it.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from dsforge import process
from dsforge.artifacts.whole import write_whole
from dsforge.errors import DsforgeError
from dsforge.jobs import PLACES
from dsforge.jobs.curable import is_curable
from dsforge.jobs.job import LOG, Job, read_job, write_job
from dsforge.jobs.keeper import STATE, Kept, Phase, is_kept, read_state
from dsforge.jobs.place import Death, Place, Seen, Wish
from dsforge.train.run.process_tree import Process, living

LOOK_S = 10.0  # between two questions to the scheduler
MOST_UNANSWERED = 360  # looks in a row, one hour: a controller that is gone longer is given up
STOP_S = 90.0  # a submission that has begun ends first
TAIL_BYTES = 1 << 19  # of the log of a failed start
VERB = "follow"  # of `python -m dsforge.jobs`


def start(run: Path) -> None:
    """Start the follower of what was just submitted; it outlives this process."""
    with suppress(OSError):
        (run / STATE).unlink()
    process.detached((sys.executable, "-m", "dsforge.jobs", VERB, str(run)), log=run / LOG)


def stop(run: Path) -> None:
    """End the follower of a run, where one is at work on this machine."""
    state = read_state(run)
    if state is None or not is_kept(state):
        return
    with suppress(ProcessLookupError):
        os.kill(state.pid, signal.SIGTERM)
    end = time.monotonic() + STOP_S
    while is_kept(state) and time.monotonic() < end:
        time.sleep(0.1)


def look(run: Path, job: Job, place: Place) -> Seen:
    """What a place knows of a job, and of one that failed also what its follower makes of it."""
    seen = place.look(run, job)
    if seen.state != "failed" or place.death is None or not job.retries:
        return seen
    state = read_state(run)
    if state is None:
        return seen
    if state.phase != "running":
        return seen._replace(reason=state.reason or seen.reason)
    if is_kept(state):
        return seen._replace(state="queued", reason=f"{seen.reason}: waits for a restart")
    gone = f"its follower (process {state.pid} on {state.machine}) is not there to restart it"
    return seen._replace(reason=f"{seen.reason}; {gone}")


class Follower:
    """One job under a scheduler, through all its starts."""

    def __init__(self, run: Path) -> None:
        self._run, self._job = run, read_job(run)
        self._place = PLACES[self._job.place]
        self._asked = threading.Event()
        self._me = living(os.getpid()) or Process(os.getpid(), 0)

    def follow(self) -> int:
        """The exit code: 0 where the job has finished or was cancelled."""
        signal.signal(signal.SIGTERM, lambda *_: self._asked.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._note("running")
        unanswered = 0
        while not self._asked.wait(LOOK_S):
            seen = self._look()
            unanswered = unanswered + 1 if seen.state == "unknown" else 0
            if unanswered > MOST_UNANSWERED:
                return self._ended("failed", seen.reason)
            if seen.state == "failed" and not self._asked.is_set():
                reason = self._restarted()
                if reason:
                    return self._ended("failed", reason)
            elif seen.state in {"finished", "cancelled"}:
                return self._ended("finished" if seen.state == "finished" else "cancelled")
        return self._ended("cancelled")

    def _look(self) -> Seen:
        """What the scheduler says; `unknown` where it does not answer."""
        try:
            return self._place.look(self._run, self._job)
        except DsforgeError as error:
            return Seen("unknown", error.message)

    def _restarted(self) -> str:
        """Submit the job again; else why not."""
        job, most = self._job, self._job.retries + 1
        try:
            curable, what = self._judged()
            if not curable:
                return what
            if job.attempt >= most:
                return f"{what}, after {job.attempt} of {most} starts"
            said = f"dsforge: start {job.attempt} ended ({what}); submitting again\n"
            os.write(2, said.encode())
            wish = Wish(job.retries, job.namespace, job.attempt + 1)
            self._job = self._place.submit(self._run, wish)
            write_job(self._run, self._job)
        except DsforgeError as error:
            return f"cannot restart it: {error.message}"
        self._note("running")
        return ""

    def _judged(self) -> tuple[bool, str]:
        """Whether a restart can cure the death of the job, and what it was."""
        death = self._place.death(self._run, self._job) if self._place.death else Death()
        if death.hopeless:
            return False, death.hopeless
        if death.lost:
            return True, death.lost
        log = self._place.read(self._run, self._job, -TAIL_BYTES).text
        curable, what = is_curable(log, death.code)
        return curable, f"exit code {death.code}: {what}"

    def _ended(self, phase: Phase, reason: str = "") -> int:
        self._note(phase, reason)
        return int(phase == "failed")

    def _note(self, phase: Phase, reason: str = "") -> None:
        state = Kept(
            pid=self._me.pid,
            started=self._me.started,
            machine=platform.node(),
            phase=phase,
            attempt=self._job.attempt,
            reason=reason[:500],
        )
        write_whole(self._run / STATE, state.model_dump_json() + "\n")
