"""A table of measured runs in CSV: hostile text until every cell is checked.

The columns are those of the published table in `benchmarks/published/`; a table of one's own runs
has the same. Unknown columns are ignored. An empty cell means that nobody said it.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from dsforge.errors import Problem, SpecError

MAX_PROBLEMS = 50  # one message stays readable
LONGEST_CELL = 60  # characters of a value in a message
LARGEST = 10**15
DEEPEST = 10**4  # layers: they are counted one by one
MOST_RANKS = 10**7

# Rows of the published table that say so themselves cannot be held against a predictor.
TAGS = ("incomplete", "suspect", "approximate", "unverified")


def _whole(text: Any) -> Any:
    """Counts are sometimes written as `8.0`."""
    return re.sub(r"\.0+$", "", text) if isinstance(text, str) else text


Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=LARGEST)]
Depth = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=DEEPEST)]
Ranks = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MOST_RANKS)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]


class Row(BaseModel):
    """One measured run; `None` or empty text where the table does not say."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    id: str = Field(min_length=1, max_length=200)
    model_name: str = ""
    layers: Depth | None
    hidden: Count | None
    heads: Count | None
    kv_heads: Count | None = None
    ffn_hidden: Count | None
    vocab: Count | None
    seq_len: Count | None
    gpu_type: str
    gpus: Ranks | None
    gpus_per_node: Ranks | None = None
    framework: str = "DeepSpeed"
    dp: Ranks | None
    tp: Ranks | None
    pp: Ranks | None
    cp: Ranks | None = None
    ep: Ranks | None = None
    vpp_or_interleave: str = ""
    zero_stage_or_sharding: str = ""
    sequence_parallel: str = ""
    recompute: str = ""
    offload: str = ""
    precision: str = ""
    micro_batch: Count | None
    global_batch: Count | None
    peak_mem_gib: Positive | None = None
    step_time_s: Positive | None = None
    notes: str = ""

    @property
    def source(self) -> str:
        """The id without its number: rows of one source count as one voice."""
        return re.sub(r"-\d+$", "", self.id)

    @property
    def tag(self) -> str | None:
        """The word by which the row says that it is no fair test; none where it is one."""
        return next((tag for tag in TAGS if tag in self.notes), None)


NUMBERS = tuple(name for name, field in Row.model_fields.items() if "None" in str(field.annotation))
REQUIRED = tuple(name for name, field in Row.model_fields.items() if field.is_required())


def parse_table(text: str, name: str) -> tuple[Row, ...]:
    """The rows of a CSV table. SpecError with every wrong cell, by line and column."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: list[Row] = []
    problems: list[Problem] = []
    try:
        _check_header(list(reader.fieldnames or ()), name)
        for cells in reader:
            _read(cells, f"{name}:{reader.line_num}", found, problems)
    except csv.Error as error:
        problems.append(Problem("csv-broken", str(error), "", f"{name}:{reader.line_num}"))
    problems += _repeated(found, name)
    if not found and not problems:
        problems.append(Problem("csv-empty", "has no rows", "", name))
    if problems:
        raise SpecError(tuple(problems[:MAX_PROBLEMS]))
    return tuple(found)


def _check_header(columns: list[str], name: str) -> None:
    """SpecError that names every column missing from the first line."""
    missing = [column for column in REQUIRED if column not in columns]
    if missing:
        text = f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing"
        hint = f"the first line names at least {', '.join(REQUIRED)}"
        raise SpecError((Problem("csv-column", text, hint, f"{name}:1"),))


def _read(cells: dict[str, Any], place: str, found: list[Row], problems: list[Problem]) -> None:
    """One line into `found`, or what is wrong with it into `problems`."""
    if None in cells or None in cells.values():
        problems.append(Problem("csv-cells", "has more or fewer cells than line 1", "", place))
        return
    values = {key: _value(key, text.strip()) for key, text in cells.items()}
    try:
        found.append(Row.model_validate(values))
    except ValidationError as error:
        problems += [_problem(detail, place) for detail in error.errors(include_url=False)]


def _value(column: str, text: str) -> str | None:
    """The cell; an empty one in a column of numbers is `None`."""
    return None if column in NUMBERS and not text else text


def _problem(detail: ErrorDetails, place: str) -> Problem:
    """One finding of pydantic in our words."""
    cell = str(detail["input"])[:LONGEST_CELL]
    rule = detail["msg"].removeprefix("Input ").lower()
    return Problem("csv-value", f"{detail['loc'][0]} (={cell}) {rule}", "", place)


def _repeated(rows: list[Row], name: str) -> list[Problem]:
    """Ids that occur twice: their errors could not be told apart."""
    seen: set[str] = set()
    twice = [row.id for row in rows if row.id in seen or seen.add(row.id)]  # type: ignore[func-returns-value]
    return [Problem("csv-id", f"id (={i[:LONGEST_CELL]}) occurs twice", "", name) for i in twice]
