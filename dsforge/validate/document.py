"""What `validate --json` prints: every prediction beside its measurement, and the score.

One schema for published tables and for one's own runs, so that any script can judge the predictor
without trusting its own summary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from pydantic import BaseModel, Field

from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.time import estimate_time
from dsforge.specs import FROZEN
from dsforge.units import GIB, Interval
from dsforge.validate.cases import Case, case_of, counter_of, rank_of, readings
from dsforge.validate.score import (
    Decisions,
    Errors,
    Outcome,
    Run,
    by_key,
    decisions,
    errors,
    overall,
)
from dsforge.validate.table import Row

Quantity = Literal["memory", "step_time"]
QUANTITIES: tuple[Quantity, ...] = ("memory", "step_time")


class Compared(BaseModel):
    """One prediction beside its measurement: memory in GiB, step time in seconds."""

    model_config = FROZEN

    id: str = Field(description="Row of the table.")
    quantity: Quantity = Field(description="What was predicted and measured.")
    predicted: float = Field(description="Likely value: GiB of memory, or seconds of a step.")
    low: float = Field(description="Lower end of the 80 % interval.")
    high: float = Field(description="Upper end of the 80 % interval.")
    measured: float = Field(description="Measured value in the same unit.")
    error: float = Field(description="Relative error: predicted / measured - 1.")


class Skipped(BaseModel):
    """A row without a prediction."""

    model_config = FROZEN

    id: str = Field(description="Row of the table.")
    reason: str = Field(description="Why it has no prediction.")


class Score(BaseModel):
    """Errors of one quantity: all sources with equal weight, then one by one."""

    model_config = FROZEN

    overall: Errors = Field(description="Errors of all rows, each source with the same weight.")
    sources: dict[str, Errors] = Field(description="Errors of the rows of each source.")


class Summary(BaseModel):
    """The score; what the table does not measure is absent."""

    model_config = FROZEN

    memory: Score | None = Field(
        description="Errors of peak memory; none: the table does not measure it."
    )
    step_time: Score | None = Field(
        description="Errors of the step time; none: the table does not measure it."
    )
    decisions: Decisions | None = Field(
        description="Ranking of layouts that differ in nothing else."
    )


class ValidationDocument(BaseModel):
    """The whole validation."""

    model_config = FROZEN

    rows: tuple[Compared, ...] = Field(description="Every prediction with its measurement.")
    skipped: tuple[Skipped, ...] = Field(description="Rows without a prediction.")
    summary: Summary = Field(description="How far off the predictions are.")


def validation(
    table: Iterable[Row],
    *,
    what: Collection[Quantity] = QUANTITIES,
    sources: Collection[str] = (),
    every: bool = False,
) -> ValidationDocument:
    """Predictions for the rows of a table and their score.

    `sources` limits it to some (none: all); `every` takes rows in that call themselves incomplete,
    suspect, approximate or unverified.
    """
    rows = [row for row in table if not sources or row.source in sources]
    compared: list[Compared] = []
    skipped: list[Skipped] = []
    cases: dict[str, Case] = {}
    for row in rows:
        case = case_of(row) if every or row.tag is None else f"tagged {row.tag}"
        if isinstance(case, str):
            skipped.append(Skipped(id=row.id, reason=case))
            continue
        cases[row.id] = case
        found = [_compared(row, case, quantity) for quantity in what]
        compared += [entry for entry in found if entry is not None]
    summary = _summary(compared, {row.id: row for row in rows}, cases)
    return ValidationDocument(rows=tuple(compared), skipped=tuple(skipped), summary=summary)


def _compared(row: Row, case: Case, quantity: Quantity) -> Compared | None:
    """One quantity of a row; none where it was not measured."""
    measured = row.peak_mem_gib if quantity == "memory" else row.step_time_s
    if measured is None:
        return None
    found = _memory_gib(row, case) if quantity == "memory" else _step_s(case)
    return Compared(
        id=row.id,
        quantity=quantity,
        predicted=found.likely,
        low=found.low,
        high=found.high,
        measured=measured,
        error=found.likely / measured - 1,
    )


def _memory_gib(row: Row, case: Case) -> Interval:
    """Peak memory in GiB by the counter and on the rank that the row was read from.

    Where the row leaves open how the software ran, the interval spans all readings of it.
    """
    likely, *others = (_counted(row, this) for this in readings(case))
    return Interval(
        min(found.low for found in (likely, *others)) / GIB,
        likely.likely / GIB,
        max(found.high for found in (likely, *others)) / GIB,
    )


def _counted(row: Row, case: Case) -> Interval:
    """Bytes by the counter and on the rank of the row."""
    estimate = estimate_memory(*case, rank=rank_of(row))
    counters = {
        "allocated": estimate.allocated_bytes,
        "reserved": estimate.reserved_bytes,
        "device": estimate.device_bytes,
    }
    return counters[counter_of(row)]


def _step_s(case: Case) -> Interval:
    """Seconds of one step."""
    return estimate_time(*case).step_s


def _summary(compared: list[Compared], rows: dict[str, Row], cases: Mapping[str, Case]) -> Summary:
    """The score of all predictions."""
    scores = {quantity: _score(compared, rows, quantity) for quantity in QUANTITIES}
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for entry in compared:
        if entry.quantity == "step_time":
            case = cases[entry.id]
            run = Run((case.model, case.strategy), entry.predicted, entry.measured)
            groups[_rivals(rows[entry.id])].append(run)
    return Summary(**scores, decisions=decisions(groups.values()))


def _score(compared: list[Compared], rows: dict[str, Row], quantity: Quantity) -> Score | None:
    """The errors of one quantity; none where no row has it."""
    found = by_key(
        (rows[entry.id].source, Outcome(entry.error, entry.low <= entry.measured <= entry.high))
        for entry in compared
        if entry.quantity == quantity
    )
    if not found:
        return None
    return Score(overall=overall(found), sources={s: errors(o) for s, o in found.items()})


def _rivals(row: Row) -> tuple[object, ...]:
    """What rows share that differ in nothing but layout."""
    job = (row.model_name, row.global_batch, row.seq_len, row.precision)
    return (row.source, *job, row.gpus, row.gpu_type)
