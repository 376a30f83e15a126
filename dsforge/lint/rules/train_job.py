"""Rules: `train.yaml`, alone and together with the ds_config that it names."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.errors import SpecError
from dsforge.findings import Hit
from dsforge.importing.marks import Loc
from dsforge.lint.checked_file import CheckedFile, rule


@rule(
    "train-value",
    "error",
    "train",
    why="`dsforge train` checks the file before it starts and rejects unknown keys.",
    evidence="dsforge/job.py, TrainJob",
)
def train_value(file: CheckedFile) -> Iterator[Hit]:
    """A key or value that `dsforge train` refuses."""
    from dsforge.job import TrainJob
    from dsforge.reading.problems import validated
    from dsforge.reading.source import Source

    document = file.document
    places = {loc: f"{document.name}:{mark.key_start}" for loc, mark in document.marks.items()}
    places[()] = f"{document.name}:0"
    try:
        validated(TrainJob, Source(document.name, file.block(), places))
    except SpecError as error:
        for problem in error.problems:
            offset = problem.place.rpartition(":")[2]
            where = int(offset) if offset.isdigit() else 0
            yield Hit((), problem.message, problem.hint, offset=where)


@rule(
    "train-config-missing",
    "error",
    "train",
    why="That file holds batch sizes, precision, sharding and the optimizer.",
    evidence="dsforge/train/parallel/engine_config.py",
)
def train_config_missing(file: CheckedFile) -> Iterator[Hit]:
    """A ds_config that does not exist."""
    named = file.at("deepspeed_config")
    if isinstance(named, str) and file.engine is None:
        yield Hit(("deepspeed_config",), "`deepspeed_config` does not exist or is not JSON")


@rule(
    "train-scheduler-twice",
    "error",
    "train",
    why="The training loop sets the learning rate from `schedule`; a scheduler in the "
    "ds_config sets it too, in the same step.",
    evidence="dsforge/render/deepspeed.py (no scheduler block), dsforge/train/run/learning_rate.py",
)
def train_scheduler_twice(file: CheckedFile) -> Iterator[Hit]:
    """A schedule in both files."""
    engine = file.engine.root if file.engine else None
    if isinstance(engine, dict) and engine.get("scheduler"):
        loc: Loc = ("schedule",) if file.at("schedule") else ("deepspeed_config",)
        message = "the ds_config has a `scheduler` too: the learning rate is set twice"
        yield Hit(loc, message, "remove it there")


@rule(
    "train-unsaved",
    "warning",
    "train",
    why="Intended for measurements: neither checkpoints nor weights are written.",
    evidence="dsforge/job.py, TrainJob.save",
)
def train_unsaved(file: CheckedFile) -> Iterator[Hit]:
    """A run that saves nothing."""
    if file.is_off("save"):
        yield Hit(("save",), "`save` is false: neither checkpoints nor weights are written")
