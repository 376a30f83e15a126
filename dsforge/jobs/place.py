"""Place: where a run folder can be started, as a record of functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dsforge.errors import DsforgeError
from dsforge.jobs.job import Job, State


class Wish(NamedTuple):
    """What a person asks of a start."""

    retries: int = 0
    namespace: str | None = None
    attempt: int = 1  # which start of the run it is


class Seen(NamedTuple):
    """What a place knows of a job."""

    state: State
    reason: str = ""  # in the words of the place
    attempt: int = 1


class Death(NamedTuple):
    """How a job ended that failed, as far as its place knows it."""

    code: int = 1  # exit code; above 128 that of a signal
    lost: str = ""  # a machine that the place lost, in its words: a restart can cure that
    hopeless: str = ""  # a limit of the job, in its words: a restart meets it again


class Part(NamedTuple):
    """Text of a log from an offset on, and where it ends."""

    text: str
    end: int


class Place(NamedTuple):
    """Where jobs run. Each function raises DsforgeError in words for a person."""

    name: str
    submit: Callable[[Path, Wish], Job]
    look: Callable[[Path, Job], Seen]
    read: Callable[[Path, Job, int], Part]  # the log from an offset on
    cancel: Callable[[Path, Job], None]
    # how a job ended; none: a keeper on the place starts it again, and nobody else
    death: Callable[[Path, Job], Death] | None = None


def script_of(run: Path, *names: str) -> str:
    """The first of some files that a run folder has. Raises DsforgeError without any."""
    for name in names:
        if (run / name).is_file():
            return name
    message = f"{run} has none of {', '.join(names)}"
    raise DsforgeError(message, "give a run folder that `dsforge gen` wrote")
