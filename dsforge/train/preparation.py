"""Data of a job, from files to samples, with progress; before any process group exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dsforge.errors import Problem
from dsforge.job import TrainJob
from dsforge.train.data import Sample, Samples, split, tokenize
from dsforge.train.packing import packed
from dsforge.train.progress import Screen
from dsforge.train.rows import Row, bad_rows, read_rows, stop

DataRows = dict[str, tuple[Row, ...]]  # by the name that train.yaml gives the file


@dataclass(frozen=True, slots=True)
class Prepared:
    """Training samples, and validation samples where there are any."""

    train: list[Sample]
    validation: list[Sample]


def read_data(job: TrainJob, folder: Path, screen: Screen) -> DataRows:
    """The rows of a job, long before a tokenizer is there. Raises SpecError with every bad row."""
    names = [name for name in (job.data.train, job.data.validation) if name is not None]
    on_bad = _policy(job, screen)
    return {name: read_rows(folder / name, job.data.shape, on_bad) for name in names}


def _policy(job: TrainJob, screen: Screen) -> Callable[[Sequence[Problem]], None]:
    """What becomes of bad rows."""
    return stop if job.on_bad_row == "stop" else partial(_leave_out, screen)


def _leave_out(screen: Screen, problems: Sequence[Problem]) -> None:
    """Name what is left out, as the error would."""
    said = bad_rows(problems)
    screen.say(f"left out: {said.message}")
    for problem in said.problems:
        screen.say(f"  - {problem}")


def prepare_data(job: TrainJob, data: DataRows, tokenizer: Any, *, screen: Screen) -> Prepared:
    """The samples of a job. Raises DsforgeError."""
    found = _samples(job.data.train, data, job, tokenizer, screen=screen).samples
    if job.data.validation is not None:
        held = _samples(job.data.validation, data, job, tokenizer, screen=screen).samples
        prepared = Prepared(list(found), list(held))
    else:
        prepared = Prepared(*split(found, job.data.validation_fraction, job.seed))
    return _packs(prepared, job, screen) if job.packing else prepared


def _packs(prepared: Prepared, job: TrainJob, screen: Screen) -> Prepared:
    """The same samples, several in each sequence."""
    packs = Prepared(
        packed(prepared.train, job.sequence_length, job.seed),
        packed(prepared.validation, job.sequence_length, job.seed),
    )
    tokens = sum(len(pack.tokens) for pack in packs.train)
    full = tokens / (len(packs.train) * job.sequence_length)
    screen.say(
        f"packed {len(prepared.train)} samples into {len(packs.train)} sequences of "
        f"{job.sequence_length} tokens, {full:.0%} full"
    )
    return packs


def _samples(
    name: str, data: DataRows, job: TrainJob, tokenizer: Any, *, screen: Screen
) -> Samples:
    rows = data[name]
    with screen.counting(f"tokenize {Path(name).name}", len(rows)):
        found = tokenize(
            rows, tokenizer, job.sequence_length, on_row=screen.advance, on_bad=_policy(job, screen)
        )
    if found.cut:
        screen.say(f"{name}: {found.cut} of {len(rows)} rows cut at {job.sequence_length} tokens")
    if found.without_answer:
        why = f"their answer begins after {job.sequence_length} tokens"
        screen.say(f"{name}: {found.without_answer} rows left out: {why}")
    return found
