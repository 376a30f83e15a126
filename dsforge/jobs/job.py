"""What was started from a run folder, as it is noted there; the note is read like a stranger's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from dsforge.artifacts.whole import write_whole
from dsforge.errors import DsforgeError
from dsforge.outside import UnreadableError, read_text
from dsforge.specs import FROZEN

NOTE, LOG = ".dsforge-job.json", ".dsforge-job.log"
MOST_BYTES = 1 << 16
PlaceName = Literal["local", "ssh", "slurm", "kubernetes"]
State = Literal["queued", "running", "finished", "failed", "cancelled", "unknown"]
WORD = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$"


class Job(BaseModel):
    """One start of a run folder."""

    model_config = FROZEN

    schema_version: Literal[1] = Field(default=1, description="Version of this form.")
    place: PlaceName = Field(description="Where it runs.")
    id: str = Field(
        pattern=WORD,
        description="Id there: of the process, of the Slurm job, name of the Kubernetes job.",
    )
    script: str = Field(
        pattern=r"^[a-z0-9-]+(/[A-Za-z0-9._-]+){1,2}$",
        description="File of the run folder that was started.",
    )
    submitted_at: float = Field(ge=0, description="Unix time of the start, in seconds.")
    retries: int = Field(default=0, ge=0, le=1000, description="Restarts that it may have.")
    attempt: int = Field(default=1, ge=1, le=1001, description="Which start of the run it is.")
    log_offset: int = Field(
        default=0, ge=0, description="Bytes in the log of the run folder when it was started."
    )
    host: str | None = Field(
        default=None, max_length=253, description="Host of `ssh`; none for other places."
    )
    namespace: str | None = Field(
        default=None, pattern=WORD, description="Namespace of Kubernetes; none: the current one."
    )


def read_job(run: Path) -> Job:
    """What was last started from a run folder. Raises DsforgeError where nothing was."""
    note = run / NOTE
    if not note.exists():
        raise DsforgeError(f"nothing was submitted from {run}", f"dsforge submit {run}")
    try:
        return Job.model_validate_json(read_text(note, MOST_BYTES, pipes=False))
    except (UnreadableError, ValidationError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        message = f"{note} is not a note of dsforge: {said}"
        raise DsforgeError(message, "remove it; what it started is still there") from error


def write_job(run: Path, job: Job) -> None:
    """Note what was started. Raises DsforgeError where the run folder cannot be written."""
    try:
        write_whole(run / NOTE, job.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise DsforgeError(f"cannot write {run / NOTE}: {error.strerror}") from error
