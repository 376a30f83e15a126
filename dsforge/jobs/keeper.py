"""The keeper of a job: the process that starts a run on this machine and outlives the terminal.

It starts the launch script, notes how it ended, and starts it again where a restart can cure what
it died of. `python -m dsforge.jobs VERB RUN` is what `ssh` calls on another host; each verb
prints one line of JSON.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from dsforge import process
from dsforge.artifacts.whole import write_whole
from dsforge.errors import DsforgeError
from dsforge.jobs.curable import is_curable
from dsforge.jobs.job import LOG, MOST_BYTES
from dsforge.jobs.place import Part, script_of
from dsforge.outside import UnreadableError, read_text
from dsforge.reading.stored import read_plan
from dsforge.specs import FROZEN
from dsforge.train.run.process_tree import Process, lives, living

STATE = ".dsforge-job-state.json"
FROM_ONE_HOST = ("launch/deepspeed.sh", "for/openmpi/launch.sh", "for/mpich/launch.sh")
SCRIPTS = ("launch/deepspeed.sh", "megatron/pretrain.sh", "launch/torchrun.sh")
LOOK_S = 0.5
SIGNALLED = 128  # and the number of a signal: the exit code of what it ended, as a shell has it
PAUSE_S = 5.0  # before a restart: ports and locks of the dead ranks are free by then
START_S = 20.0  # a busy machine imports Python in seconds
MOST_LOG_BYTES = 1 << 20  # of one answer


Phase = Literal["running", "finished", "failed", "cancelled"]


class Kept(BaseModel):
    """The state of a kept run, as its keeper notes it."""

    model_config = FROZEN

    pid: int = Field(ge=1, description="Process id of the keeper.")
    started: int = Field(ge=0, description="Start of the keeper in clock ticks since the boot.")
    machine: str = Field(max_length=253, description="Name of the machine.")
    phase: Phase = Field(description="State of the last start.")
    attempt: int = Field(ge=1, description="Starts so far.")
    code: int | None = Field(default=None, description="Exit code of the last start.")
    reason: str = Field(default="", max_length=500, description="Why it was not started again.")


def read_state(run: Path) -> Kept | None:
    """The noted state; none where no keeper was there. Raises DsforgeError where it is no note."""
    if not (run / STATE).exists():
        return None
    try:
        return Kept.model_validate_json(read_text(run / STATE, MOST_BYTES, pipes=False))
    except (UnreadableError, ValidationError) as error:
        message = f"{run / STATE} is not a note of dsforge"
        raise DsforgeError(message, "remove it, and look for processes of the run") from error


def start_script(run: Path) -> str:
    """The script that starts all ranks of a run from this host. Raises DsforgeError without one.

    With NODE_RANK this host is one of several on which a person starts the run.
    """
    plan = run / "plan.json"
    nodes = read_plan(plan).cluster.nodes if plan.is_file() else 1
    found = next((name for name in FROM_ONE_HOST if (run / name).is_file()), None)
    if nodes == 1 or "NODE_RANK" in os.environ:
        return script_of(run, *SCRIPTS)
    if found is None:
        name = script_of(run, *SCRIPTS)
        message = f"{name} starts the ranks of one host, and the plan has {nodes}"
        hint = "use --on slurm or --on kubernetes; write the files of a launcher that starts all "
        hint += "hosts (gen --for torch,openmpi); or call it on each host"
        raise DsforgeError(message, hint)
    return found


def is_kept(state: Kept) -> bool:
    """Whether the keeper of a state is alive on this machine."""
    return state.machine == platform.node() and lives(Process(state.pid, state.started))


def start(run: Path, retries: int) -> Kept:
    """Start a keeper that outlives this process. Raises DsforgeError where one is at work."""
    state = read_state(run)
    if state is not None and state.phase == "running" and is_kept(state):
        raise DsforgeError(f"{run} is running (process {state.pid})", f"dsforge cancel {run}")
    start_script(run)
    with suppress(OSError):
        (run / STATE).unlink()
    words = (sys.executable, "-m", "dsforge.jobs", "run", str(run), str(retries))
    process.detached(words, log=run / LOG)
    end = time.monotonic() + START_S
    while (state := read_state(run)) is None:
        if time.monotonic() > end:
            raise DsforgeError(f"{run} was not started within {START_S:.0f} s", f"see {run / LOG}")
        time.sleep(0.05)
    return state


def stop(run: Path) -> None:
    """Ask a keeper to end its run; the ranks save first. Raises DsforgeError without one."""
    state = read_state(run)
    if state is None or not is_kept(state):
        raise DsforgeError(f"no process runs {run} on {platform.node()}")
    with suppress(ProcessLookupError):
        os.kill(state.pid, signal.SIGTERM)


def log_part(run: Path, offset: int) -> Part:
    """The log from an offset on, at most 1 MiB; an offset below 0 counts from the end."""
    try:
        descriptor = os.open(run / LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return Part("", max(offset, 0))
    with os.fdopen(descriptor, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        begin = stream.seek(max(size + offset, 0) if offset < 0 else offset)
        text = stream.read(MOST_LOG_BYTES)
    return Part(text.decode(errors="replace"), begin + len(text))


class Keeper:
    """One run on this machine, through all its starts."""

    def __init__(self, run: Path, retries: int) -> None:
        self._run, self._retries = run, retries
        self._attempt, self._asked = 1, False
        self._launch: process.Group | None = None
        self._me = living(os.getpid()) or Process(os.getpid(), 0)

    def keep(self) -> int:
        """The exit code of the last start."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while True:
            self._note("running")
            begin = log_part(self._run, -1).end
            code = self._one_start()
            reason = self._reason_to_end(code, begin)
            if reason is not None:
                phase: Phase = "failed"
                if code == 0 or self._asked:
                    phase = "cancelled" if self._asked else "finished"
                self._note(phase, code, reason)
                return code
            time.sleep(PAUSE_S)
            if self._asked:
                self._note("cancelled", code)
                return code
            self._attempt += 1

    def _one_start(self) -> int:
        """The exit code of the launch script, which writes into the log."""
        script = self._run / start_script(self._run)
        own = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        told = {**os.environ, "PATH": own}
        self._launch = process.Group((str(script),), told, out=1, errors=2)
        while (code := self._launch.code) is None:
            time.sleep(LOOK_S)
        self._launch = None  # its group may soon be that of others
        return code if code >= 0 else SIGNALLED - code

    def _reason_to_end(self, code: int, begin: int) -> str | None:
        """Why the run is not started again; none where it is."""
        if code == 0 or self._asked:
            return ""
        curable, what = is_curable(log_part(self._run, begin).text, code)
        if not curable:
            return f"exit code {code}: {what}"
        if self._attempt > self._retries:
            return f"exit code {code}: {what}, after {self._attempt} of {self._retries + 1} starts"
        said = f"dsforge: start {self._attempt} ended with {code} ({what}); starting again\n"
        os.write(2, said.encode())
        return None

    def _on_signal(self, number: int, _: object) -> None:
        self._asked = True
        if self._launch is not None:
            self._launch.signal(number)

    def _note(
        self,
        phase: Phase,
        code: int | None = None,
        reason: str = "",
    ) -> None:
        state = Kept(
            pid=self._me.pid,
            started=self._me.started,
            machine=platform.node(),
            phase=phase,
            attempt=self._attempt,
            code=code,
            reason=reason[:500],
        )
        write_whole(self._run / STATE, state.model_dump_json() + "\n")


class Answer(BaseModel):
    """What a verb prints, one line of JSON."""

    model_config = FROZEN

    state: Kept | None = Field(default=None, description="State of the run; none: never started.")
    alive: bool = Field(default=False, description="Whether its keeper is alive.")
    text: str = Field(default="", description="Log from the offset on.")
    end: int = Field(default=0, ge=0, description="Offset behind that text.")
    error: str = Field(default="", description="What went wrong; empty: nothing.")


def answer(verb: str, run: Path, number: int) -> Answer:
    """The answer to a verb. Raises DsforgeError."""
    if verb == "log":
        part = log_part(run, number)
        return Answer(text=part.text, end=part.end)
    if verb == "stop":
        stop(run)
    state = start(run, number) if verb == "start" else read_state(run)
    return Answer(state=state, alive=state is not None and is_kept(state))


def main() -> int:
    """The exit code of a verb, or of the kept run."""
    parser = argparse.ArgumentParser(prog="dsforge.jobs", description=__doc__)
    parser.add_argument("verb", choices=("run", "start", "state", "stop", "log"))
    parser.add_argument("run", type=Path)
    parser.add_argument("number", type=int, nargs="?", default=0)
    given = parser.parse_args()
    if given.verb == "run":
        return Keeper(given.run, given.number).keep()
    try:
        said = answer(given.verb, given.run, given.number)
    except DsforgeError as error:
        said = Answer(error=f"{error.message} ({error.hint})" if error.hint else error.message)
    os.write(1, (said.model_dump_json() + "\n").encode())
    return 1 if said.error else 0
