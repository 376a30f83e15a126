"""On this machine: a keeper in the background, which survives the terminal."""

from __future__ import annotations

import time
from pathlib import Path

from dsforge.jobs import keeper
from dsforge.jobs.job import Job
from dsforge.jobs.keeper import Kept
from dsforge.jobs.place import Part, Place, Seen, Wish


def submit(run: Path, wish: Wish) -> Job:
    """Start the run in the background."""
    return job_of(keeper.start(run, wish.retries), run, wish)


def job_of(state: Kept, run: Path, wish: Wish) -> Job:
    """The note of a kept run."""
    return Job(
        place="local",
        id=str(state.pid),
        script=keeper.start_script(run),
        submitted_at=time.time(),
        retries=wish.retries,
    )


def look(run: Path, _: Job) -> Seen:
    """The state that the keeper noted, where the keeper is alive."""
    state = keeper.read_state(run)
    return seen(state, alive=state is not None and keeper.is_kept(state))


def seen(state: Kept | None, *, alive: bool) -> Seen:
    """What a noted state means: a keeper that is gone can say no more."""
    if state is None:
        return Seen("unknown", "no note of the process")
    if state.phase == "running" and not alive:
        reason = f"process {state.pid} on {state.machine} ended without a word: it was killed"
        return Seen("failed", reason, state.attempt)
    return Seen(state.phase, state.reason, state.attempt)


def read(run: Path, _: Job, offset: int) -> Part:
    """The log that the launch script writes into."""
    return keeper.log_part(run, offset)


def cancel(run: Path, _: Job) -> None:
    """SIGTERM: the ranks finish the step and save."""
    keeper.stop(run)


PLACE = Place("local", submit, look, read, cancel)
