"""Run folders as reports read them: plan, configs, measurement and metrics; links are not followed.

A run folder may come from somebody else, and a report is passed on: a link in it could put any file
of this machine into the report. So only regular files that lie in the folder itself are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from dsforge.artifacts.artifact import is_generated
from dsforge.errors import DsforgeError
from dsforge.measurement import Measurement
from dsforge.outside import UnreadableError, decoded, json_value, read_bytes
from dsforge.plan import Plan, Priced
from dsforge.reading.job import read_job
from dsforge.reading.stored import read_plan, read_stored
from dsforge.report.blocks import TextFile
from dsforge.report.run_sections import Ran, Record
from dsforge.report.shown_files import is_shown, place_of, text_file

PLAN, JOB, OUTPUT = "plan.json", "train.yaml", "output"
METRICS, MEASUREMENT = "metrics.jsonl", "measurement.json"
CHOSEN_CONFIG = "ds_config"
FOLDERS = (".", "deepspeed", "megatron", "launch")
MOST_FILES, MOST_BYTES, MOST_ENTRIES = 40, 128 << 10, 500
METRICS_BYTES = 64 << 20
ABSENT = "there is no plan of this run next to its output: predictions are not shown"


class RunFolder(NamedTuple):
    """What a run folder holds."""

    plan: Plan | None
    ran: Ran | None
    files: tuple[TextFile, ...]


def read_run(folder: Path) -> RunFolder:
    """A run folder with its output, or the output folder alone.

    Raises DsforgeError where it holds neither a plan nor results.
    """
    is_output = not is_inside(folder / PLAN, folder) and _has_results(folder)
    home = folder.resolve().parent if is_output else folder
    plan = read_plan(home / PLAN) if is_inside(home / PLAN, home) else None
    output = folder if is_output else folder / OUTPUT
    ran = read_ran(output, home, plan) if _has_results(output) else None
    if plan is None and ran is None:
        raise DsforgeError(
            f"{folder} has neither {PLAN} nor {METRICS} or {MEASUREMENT}",
            "give a folder that `dsforge gen`, `dsforge train` or `dsforge bench` has written",
        )
    return RunFolder(plan, ran, read_files(home) if plan else ())


def _has_results(folder: Path) -> bool:
    return any(is_inside(folder / name, folder) for name in (METRICS, MEASUREMENT))


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a regular file that lies in the folder, not a link that leads out of it."""
    try:
        return path.is_file() and path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def read_ran(output: Path, home: Path, plan: Plan | None) -> Ran:
    """The results in an output folder, with the prediction of the plan in the run folder."""
    measurement = None
    if is_inside(output / MEASUREMENT, output):
        hint = "written by another version of dsforge"
        measurement = read_stored(Measurement, output / MEASUREMENT, hint)
        if not measurement.step_s:
            raise DsforgeError(f"{output / MEASUREMENT} has no steps", hint)
    metrics = tuple(_metrics(output / METRICS)) if is_inside(output / METRICS, output) else ()
    if plan is None or measurement is None:
        return Ran(measurement, metrics, None, plan, ABSENT if plan is None else "")
    priced = priced_run(plan, measurement, home / JOB)
    why = "" if priced else _mismatch(measurement)
    return Ran(measurement, metrics, priced, plan, why)


def _mismatch(run: Measurement) -> str:
    batches = f"{run.micro_batch_size} x {run.gradient_accumulation_steps}"
    return (
        f"The plan has no prediction of this run: ZeRO stage {run.zero_stage} on "
        f"{run.world_size} ranks, {batches} samples per rank and step."
    )


def priced_run(plan: Plan, run: Measurement, job_file: Path) -> Priced | None:
    """The price of the strategy that was run; none where the plan does not price it."""
    name, length = _job_facts(job_file)
    if length not in (None, plan.workload.sequence_length):
        return None
    named: dict[str, Priced] = {CHOSEN_CONFIG: plan.choice}
    named |= {variant.name: variant.priced for variant in plan.variants if variant.priced}
    prices = [named[name]] if name in named else list(named.values())
    return next((price for price in prices if _is_of(price, run)), None)


def _is_of(price: Priced, run: Measurement) -> bool:
    """Whether a price is that of a run, by what a measurement says of itself."""
    strategy = price.strategy
    return (
        strategy.back_end == "deepspeed"
        and strategy.runs_as.trainer == run.trainer
        and strategy.layout.world_size == run.world_size
        and strategy.zero_stage == run.zero_stage
        and strategy.micro_batch_size == run.micro_batch_size
        and strategy.gradient_accumulation_steps == run.gradient_accumulation_steps
    )


def _job_facts(path: Path) -> tuple[str | None, int | None]:
    """Name of the ds_config that a job uses, and its sequence length; none where it is unknown."""
    if not is_inside(path, path.parent):
        return None, None
    try:
        job = read_job(path)
    except DsforgeError:
        return None, None
    config = Path(job.deepspeed_config or "")
    name = config.stem if config.parent == Path("deepspeed") else None
    return name, job.sequence_length


def _metrics(path: Path) -> Iterator[Record]:
    """The lines of a metrics file that can be read; NaN and broken lines are left out."""
    adapter: TypeAdapter[Record] = TypeAdapter(Record)
    try:
        text = decoded(read_bytes(path, METRICS_BYTES, pipes=False))
    except UnreadableError as error:
        raise DsforgeError(f"{path} {error.reason}") from error
    for line in text.splitlines():
        try:
            yield adapter.validate_python(json_value(line))
        except (UnreadableError, ValidationError):
            continue


def read_files(folder: Path) -> tuple[TextFile, ...]:
    """The configs and scripts of a run folder, without secrets."""
    names = sorted(filter(is_shown, _names(folder)), key=place_of)
    return tuple(read_file(folder, name) for name in names[:MOST_FILES])


def _names(folder: Path) -> Iterator[str]:
    """Regular files of the folder by the names that dsforge writes."""
    for below in FOLDERS:
        try:
            with os.scandir(folder / below) as entries:
                found = [entry.name for entry in islice(entries, MOST_ENTRIES)]
        except OSError:
            continue
        for name in found:
            path = name if below == "." else f"{below}/{name}"
            if is_generated(path) and is_inside(folder / path, folder):
                yield path


def read_file(folder: Path, name: str) -> TextFile:
    """A file of the folder as readers may see it, or why it is not shown."""
    try:
        return text_file(name, decoded(read_bytes(folder / name, MOST_BYTES, pipes=False)))
    except UnreadableError as error:
        return TextFile(name=name, text=f"(not shown: the file {error.reason})")
