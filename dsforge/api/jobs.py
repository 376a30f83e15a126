"""Run folders that are started, followed and ended: on this machine, over ssh, under schedulers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from dsforge.api.documents import CauseDocument, DiagnoseDocument
from dsforge.errors import DsforgeError, quoted
from dsforge.jobs.job import Job, PlaceName, State
from dsforge.reading.source import path_of
from dsforge.specs import FROZEN

if TYPE_CHECKING:
    from dsforge.api.inputs import PathInput
    from dsforge.jobs import Place

POLL_S = 1.0
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")
TAIL_BYTES = 1 << 19  # of the log of a failed run, in which its cause is looked for


class JobDocument(BaseModel):
    """What was started: `dsforge submit --json`."""

    model_config = FROZEN

    run: str = Field(description="Path of the run folder.")
    job: Job = Field(description="Where it runs, and its id there.")
    begins: str = Field(description="Where training begins: the first step, or a checkpoint.")


class StatusDocument(BaseModel):
    """How a started run is doing: `dsforge status --json`."""

    model_config = FROZEN

    run: str = Field(description="Path of the run folder.")
    job: Job = Field(description="Where it runs, and its id there.")
    state: State = Field(description="queued, running, finished, failed, cancelled or unknown.")
    reason: str = Field(description="Why, in the words of the place; empty: nothing to say.")
    attempt: int = Field(ge=1, description="Starts so far.")
    step: int | None = Field(description="Optimizer steps done; null: none was written here.")
    steps: int | None = Field(description="Optimizer steps in all; null: epochs decide.")
    loss: float | None = Field(description="Loss of the newest step; null: unknown.")
    left_s: float | None = Field(description="Seconds left at the present pace; null: unknown.")
    causes: tuple[CauseDocument, ...] = Field(
        description="What `dsforge diagnose` finds in the log of a failed run, likeliest first."
    )


def submit(
    run: PathInput,
    *,
    on: PlaceName = "local",
    resume: bool = False,
    retries: int = 0,
    namespace: str | None = None,
) -> JobDocument:
    """Start a run folder in the background, after a check of its files.

    Args:
        run: Run folder that `dsforge gen` wrote.
        on: `local`, `ssh` (the first host of the hostfile), `slurm` or `kubernetes`.
        resume: Go on from the newest complete checkpoint; an error where there is none.
        retries: Restarts where a restart can cure what it died of; under Slurm and Kubernetes by
            a process that stays on this machine and submits again.
        namespace: Namespace of Kubernetes; the current one without it.

    Returns:
        Where it runs, its id there, and where training begins.

    Raises:
        DsforgeError: A file of the folder is wrong, an earlier start still runs, or the place does
            not take it.

    Examples:
        >>> import dsforge
        >>> dsforge.submit("no-such-folder")
        Traceback (most recent call last):
        dsforge.errors.DsforgeError: no-such-folder is not a folder

    """
    from dsforge.jobs import PLACES, follower
    from dsforge.jobs.checks import check_beginning, check_files
    from dsforge.jobs.job import NOTE, write_job
    from dsforge.jobs.place import Wish

    folder = path_of(run, "run")
    if on not in PLACES:
        raise DsforgeError(f"`on` (={quoted(on)}) must be one of {', '.join(PLACES)}")
    check_files(folder)
    folder = folder.resolve()
    if (folder / NOTE).exists():
        _check_ended(folder)
    begins = check_beginning(folder, resume=resume)
    job = PLACES[on].submit(folder, Wish(retries, namespace))
    write_job(folder, job)
    if retries and PLACES[on].death is not None:
        follower.start(folder)
    return JobDocument(run=str(folder), job=job, begins=begins)


def _check_ended(run: Path) -> None:
    """Raise DsforgeError where the last start of a run folder has not ended."""
    from dsforge.jobs import follower

    job, place = _job_of(run)
    state = follower.look(run, job, place).state
    if state in {"queued", "running"}:
        message = f"{run} is {state} already ({job.place} {job.id})"
        raise DsforgeError(message, f"dsforge status {run}, or dsforge cancel {run}")


def _job_of(run: Path) -> tuple[Job, Place]:
    """The last start of a run folder, and its place."""
    from dsforge.jobs import PLACES
    from dsforge.jobs.job import read_job

    job = read_job(run)
    return job, PLACES[job.place]


def status(run: PathInput) -> StatusDocument:
    """How a started run is doing; of one that failed also the causes in its log.

    Args:
        run: Run folder from which it was submitted.

    Returns:
        State, steps done and left, and the causes where it failed.

    Raises:
        DsforgeError: Nothing was submitted from the folder, or its place does not answer.

    Examples:
        >>> import dsforge, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         dsforge.status(folder)
        ...     except dsforge.DsforgeError as error:
        ...         print(error.message.startswith("nothing was submitted"))
        True

    """
    from dsforge.jobs import follower
    from dsforge.jobs.progress import progress

    folder = path_of(run, "run").resolve()
    job, place = _job_of(folder)
    seen = follower.look(folder, job, place)
    found = progress(folder, None)
    return StatusDocument(
        run=str(folder),
        job=job,
        state=seen.state,
        reason=seen.reason,
        attempt=seen.attempt,
        step=found and found.step,
        steps=found and found.steps,
        loss=found and found.loss,
        left_s=found.left_s if found and seen.state == "running" else None,
        causes=_causes(folder, job, place) if seen.state == "failed" else (),
    )


def _causes(run: Path, job: Job, place: Place) -> tuple[CauseDocument, ...]:
    """What diagnose finds in the log of a run."""
    from dsforge.diagnose import diagnose_stream
    from dsforge.diagnose.report import document

    text = place.read(run, job, -TAIL_BYTES).text
    causes = diagnose_stream([text.encode()], f"{job.place} log", None)
    return DiagnoseDocument.model_validate(document(causes)).causes


def logs(run: PathInput, *, follow: bool = False) -> Iterator[str]:
    """The log of a started run, part by part.

    Args:
        run: Run folder from which it was submitted.
        follow: Wait for more until the run has ended.

    Returns:
        The parts in order: text as it was written, with its line ends.

    Raises:
        DsforgeError: Nothing was submitted from the folder, or its place does not answer.

    Examples:
        >>> import dsforge
        >>> text = dsforge.logs("run", follow=True)  # nothing is read before the first part

    """
    from dsforge.jobs import follower

    folder = path_of(run, "run").resolve()
    offset = 0
    while True:
        job, place = _job_of(folder)
        ended = not follow or follower.look(folder, job, place).state in ENDED
        part = place.read(folder, job, offset)
        while part.text:
            yield part.text
            offset = part.end
            part = place.read(folder, job, offset)
        if ended:
            return
        time.sleep(POLL_S)


def cancel(run: PathInput) -> StatusDocument:
    """End a started run; the ranks finish their step and save a checkpoint where they have time.

    Args:
        run: Run folder from which it was submitted.

    Returns:
        How it was doing when it was asked to end.

    Raises:
        DsforgeError: Nothing runs from the folder, or its place does not answer.

    Examples:
        >>> import dsforge, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         dsforge.cancel(folder)
        ...     except dsforge.DsforgeError as error:
        ...         print(error.message.startswith("nothing was submitted"))
        True

    """
    from dsforge.jobs import follower

    folder = path_of(run, "run").resolve()
    found = status(folder)
    if found.state in ENDED:
        raise DsforgeError(f"{folder} has ended already ({found.state})")
    if _job_of(folder)[1].death is not None:
        follower.stop(folder)
    job, place = _job_of(folder)  # the follower may have submitted it again meanwhile
    place.cancel(folder, job)
    return found
