"""Train job: `train.yaml` -> TrainJob."""

from __future__ import annotations

from pathlib import Path

from dsforge.job import TrainJob
from dsforge.reading.problems import read_file


def read_job(path: Path) -> TrainJob:
    """The job in a `train.yaml`. Raises SpecError with all problems."""
    return read_file(TrainJob, path)
