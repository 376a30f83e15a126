"""A cluster card from finished runs: how their steps and memory differ from what was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from dsforge.errors import DsforgeError, Problem, SpecError

if TYPE_CHECKING:
    from dsforge.api.inputs import PathInput
    from dsforge.plan import Plan
    from dsforge.reading.files import ClusterFile
    from dsforge.specs import ClusterSpec
    from dsforge.validate.calibration import CalibrationDocument, FinishedRun

LOG_BYTES = 64 << 20
LARGEST = 1e15  # of a number in a file of a run
WARM_UP = 2  # steps: the first allocates, the second records
METRICS = ("output/metrics.jsonl", "metrics.jsonl")
STATES = ("trainer_state.json", "output/trainer_state.json")  # Hugging Face's Trainer
MEASUREMENT = "output/measurement.json"
HEAD = "# Cluster card of `dsforge calibrate`: plan, gen and estimate take it with --cluster.\n"


class CalibrateResult(NamedTuple):
    """What the runs say, and the card that says it to `plan`.

    Examples:
        >>> import dsforge
        >>> found = dsforge.calibrate(["tests/calibrate/runs.csv"])
        >>> found.yaml.splitlines()[0]
        '# Cluster card of `dsforge calibrate`: plan, gen and estimate take it with --cluster.'

    """

    document: CalibrationDocument
    card: ClusterFile

    @property
    def yaml(self) -> str:
        """The text of the card."""
        from dsforge.probe.card import card_yaml

        return card_yaml(self.card, HEAD)


def calibrate(runs: Sequence[PathInput]) -> CalibrateResult:
    """A cluster card fitted on finished runs: compute, waiting, and memory beyond the predicted.

    Args:
        runs: Run folders with a `plan.json` and the `metrics.jsonl` of `dsforge train` or the
            `trainer_state.json` of Hugging Face, or tables of runs (CSV) as `validate` takes them.

    Returns:
        The factors with their uncertainty, every run before and after, and the card.

    Raises:
        DsforgeError: A run cannot be read, none has steps, or they are of different accelerators.

    Examples:
        >>> import dsforge
        >>> found = dsforge.calibrate(["tests/calibrate/runs.csv"])
        >>> found.document.error_after <= found.document.error_before
        True

    """
    from dsforge.probe.card import described
    from dsforge.reading.card import MeasuredFile
    from dsforge.reading.source import path_of
    from dsforge.validate.calibration import calibrated

    found = [each for run in runs for each in _finished(path_of(run, "runs"))]
    clusters = [cluster for cluster, _ in found]
    _check(found)
    document = calibrated([run for _, run in found])
    base = max(clusters, key=lambda cluster: cluster.gpus)
    measured = MeasuredFile(
        how=f"dsforge calibrate: {document.calibration.runs} finished runs",
        calibration=document.calibration,
    )
    return CalibrateResult(document, described(base).model_copy(update={"measured": measured}))


def _check(found: list[tuple[ClusterSpec, FinishedRun]]) -> None:
    """Raise where the runs cannot be one fit."""
    if not any(run.step_s for _, run in found):
        raise DsforgeError("no run has measured steps", "name runs that reached a third step")
    kinds = {(cluster.gpu.name, cluster.inter_node.name) for cluster, _ in found}
    if len(kinds) > 1:
        names = ", ".join(sorted(f"{gpu} on {link}" for gpu, link in kinds))
        raise DsforgeError(f"the runs are of different hardware: {names}", "calibrate each alone")
    if any(cluster.gpu.measured or cluster.inter_node.measured for cluster, _ in found):
        raise DsforgeError(
            "the runs were planned with a measured card",
            "calibrate runs that were planned with the rated cluster, or keep the card",
        )
    every = [run.name for _, run in found]
    twice = sorted({name for name in every if every.count(name) > 1})
    if twice:
        raise DsforgeError(f"{twice[0]} is named twice", "name each run once")


def _finished(path: Path) -> Iterator[tuple[ClusterSpec, FinishedRun]]:
    """The runs of a folder or of a table, each with its cluster."""
    if path.is_dir():
        yield _of_folder(path)
        return
    from dsforge.api.checking import TABLE_BYTES
    from dsforge.reading.source import read_text
    from dsforge.validate import parse_table
    from dsforge.validate.finished import run_of_row

    found = [run_of_row(row) for row in parse_table(read_text(path, TABLE_BYTES), str(path))]
    wrong = [each for each in found if isinstance(each, Problem)]
    if wrong:
        raise SpecError(tuple(wrong))
    yield from (each for each in found if not isinstance(each, Problem))


def _of_folder(folder: Path) -> tuple[ClusterSpec, FinishedRun]:
    """The run of a folder that holds its plan."""
    from dsforge.api.inputs import load_plan
    from dsforge.validate.finished import run_of_plan

    plan = load_plan(folder)
    steps = _steps(folder)
    return plan.cluster, run_of_plan(str(folder), plan, steps, _allocated(folder, plan))


def _steps(folder: Path) -> float:
    """Seconds of a step: the median after the first two, or the mean that the Trainer wrote."""
    for name in METRICS:
        if (folder / name).is_file():
            lines = _text(folder / name).splitlines()
            took = [_number(_json(line, folder / name), "step_s") for line in lines if line]
            counted = [each for each in took if each][WARM_UP:]
            if not counted:
                raise DsforgeError(f"{folder / name} has no third step", "name a longer run")
            return median(counted)
    for name in STATES:
        if (folder / name).is_file():
            return _trainer_step_s(folder / name)
    wanted = ", ".join((*METRICS, *STATES))
    raise DsforgeError(f"{folder} holds no steps", f"a run has one of {wanted}")


def _trainer_step_s(path: Path) -> float:
    """Of the last entry of Hugging Face's log, which has the seconds of the whole run."""
    state = _json(_text(path), path)
    log = state.get("log_history")
    entries = [each for each in log if isinstance(each, dict)] if isinstance(log, list) else []
    for entry in reversed(entries):
        seconds, steps = _number(entry, "train_runtime"), _number(entry, "step")
        if seconds and steps:
            return seconds / steps
    raise DsforgeError(f"{path} has no train_runtime", "the Trainer writes it when a run ends")


def _allocated(folder: Path, plan: Plan) -> float | None:
    """Measured peak of allocated bytes; none on CPU ranks, and where nothing says it."""
    path = folder / MEASUREMENT
    if plan.cluster.gpu.is_cpu or not path.is_file():
        return None
    memory = _json(_text(path), path).get("memory")
    return _number(memory, "allocated_bytes") if isinstance(memory, dict) else None


def _text(path: Path) -> str:
    from dsforge.reading.source import read_text

    return read_text(path, LOG_BYTES)


def _json(text: str, path: Path) -> dict[str, Any]:
    from dsforge.outside import json_value

    try:
        found = json_value(text)
    except ValueError as error:
        raise DsforgeError(f"{path} is not JSON: {error}", "name a whole file") from error
    if not isinstance(found, dict):
        raise DsforgeError(f"{path} holds no JSON objects", "name the file of a run")
    return found


def _number(values: dict[str, Any], name: str) -> float | None:
    """A number above 0; none where there is none."""
    value = values.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < LARGEST else None
