"""Tables in CSV, of measured runs or of figures: hostile text until every cell is checked.

The columns are those of the published tables in `benchmarks/published/`; a table of one's own runs
has the same. Unknown columns are ignored. An empty cell means that nobody said it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from dsforge.errors import Problem, SpecError
from dsforge.validate.figures import Figure

LONGEST_HEADER = 10_000  # characters
MAX_PROBLEMS = 50  # one message stays readable
LONGEST_CELL = 60  # characters of a value in a message
LARGEST = 10**15
DEEPEST = 10**4  # layers: they are counted one by one
MOST_RANKS = 10**7

# Rows of the published table that say so themselves cannot be held against a predictor.
TAGS = ("incomplete", "suspect", "approximate", "unverified")


def _without_decimals(text: Any) -> Any:
    """Counts are sometimes written as `8.0`."""
    return re.sub(r"\.0+$", "", text) if isinstance(text, str) else text


Count = Annotated[int, BeforeValidator(_without_decimals), Field(ge=1, le=LARGEST)]
Depth = Annotated[int, BeforeValidator(_without_decimals), Field(ge=1, le=DEEPEST)]
Ranks = Annotated[int, BeforeValidator(_without_decimals), Field(ge=1, le=MOST_RANKS)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]


class Row(BaseModel):
    """One measured run; `None` or empty text where the table does not say."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    id: str = Field(
        min_length=1, max_length=200, description="Source and number of the row, such as stas-12."
    )
    model_name: str = Field(default="", description="Name of the model in the source.")
    layers: Depth | None = Field(description="Number of transformer layers.")
    hidden: Count | None = Field(description="Hidden size of the model.")
    heads: Count | None = Field(description="Attention heads of a layer.")
    kv_heads: Count | None = Field(
        default=None, description="Key/value heads of a layer; none: as many as heads."
    )
    ffn_hidden: Count | None = Field(description="Width of the MLP.")
    vocab: Count | None = Field(description="Size of the vocabulary, in tokens.")
    seq_len: Count | None = Field(description="Sequence length in tokens.")
    gpu_type: str = Field(description="Name of the accelerator in the source.")
    gpus: Ranks | None = Field(description="Number of accelerators of the run.")
    gpus_per_node: Ranks | None = Field(
        default=None, description="Accelerators of a node; none: not stated."
    )
    framework: str = Field(
        default="DeepSpeed", description="Training software, such as Megatron-LM."
    )
    dp: Ranks | None = Field(description="Data parallel size of the run.")
    tp: Ranks | None = Field(description="Tensor parallel size of the run.")
    pp: Ranks | None = Field(description="Pipeline parallel size of the run.")
    cp: Ranks | None = Field(default=None, description="Context parallel size of the run; none: 1.")
    ep: Ranks | None = Field(default=None, description="Expert parallel size of the run; none: 1.")
    vpp_or_interleave: str = Field(
        default="", description="Virtual pipeline stages per rank, or the schedule."
    )
    zero_stage_or_sharding: str = Field(
        default="", description="ZeRO stage, or the sharding of other software."
    )
    sequence_parallel: str = Field(
        default="", description="Whether activations are sharded over tensor parallel ranks."
    )
    recompute: str = Field(
        default="", description="Activation checkpointing: none, selective or full."
    )
    offload: str = Field(default="", description="What is offloaded, and where to.")
    precision: str = Field(default="", description="Precision of the computation, such as bf16.")
    micro_batch: Count | None = Field(
        description="Samples per data-parallel rank and forward pass."
    )
    global_batch: Count | None = Field(description="Samples per optimizer step.")
    peak_mem_gib: Positive | None = Field(
        default=None, description="Peak memory of the fullest accelerator, GiB."
    )
    step_time_s: Positive | None = Field(
        default=None, description="Time of one optimizer step, seconds."
    )
    notes: str = Field(
        default="", description="Remarks, with tags such as `suspect` or `approximate`."
    )

    @property
    def source(self) -> str:
        """The id without its number: rows of one source count as one voice."""
        return re.sub(r"-\d+$", "", self.id)

    @property
    def tag(self) -> str | None:
        """The word by which the row says that it is no fair test; none where it is one."""
        return next((tag for tag in TAGS if tag in self.notes), None)


NUMBERS = tuple(name for name, field in Row.model_fields.items() if "None" in str(field.annotation))
Entry = TypeVar("Entry", Row, Figure)


def parse_table(text: str, name: str) -> tuple[Row, ...]:
    """The rows of a table of runs. SpecError with every wrong cell, by line and column."""
    return _parsed(text, name, Row)


def parse_figures(text: str, name: str) -> tuple[Figure, ...]:
    """The rows of a table of figures. SpecError with every wrong cell, by line and column."""
    return _parsed(text, name, Figure)


def holds_figures(text: str) -> bool:
    """Whether a table holds figures with their specs; else it holds runs."""
    header = next(csv.reader(io.StringIO(text[:LONGEST_HEADER], newline="")), [])
    return {"quantity", "spec"} <= set(header)


def _parsed(text: str, name: str, kind: type[Entry]) -> tuple[Entry, ...]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: list[Entry] = []
    problems: list[Problem] = []
    try:
        _check_header(list(reader.fieldnames or ()), name, kind)
        for cells in reader:
            place = f"{name}:{reader.line_num}"
            problems += _misfits(cells, place) or _read(cells, place, found, kind)
    except csv.Error as error:
        problems.append(Problem("csv-broken", str(error), "", f"{name}:{reader.line_num}"))
    problems += _repeated(found, name)
    if not found and not problems:
        problems.append(Problem("csv-empty", "has no rows", "", name))
    if problems:
        raise SpecError(tuple(problems[:MAX_PROBLEMS]))
    return tuple(found)


def _check_header(columns: list[str], name: str, kind: type[BaseModel]) -> None:
    """SpecError that names every column missing from the first line."""
    required = [field for field, info in kind.model_fields.items() if info.is_required()]
    missing = [column for column in required if column not in columns]
    if missing:
        text = f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing"
        hint = f"the first line names at least {', '.join(required)}"
        raise SpecError((Problem("csv-column", text, hint, f"{name}:1"),))


def _misfits(cells: dict[str, Any], place: str) -> list[Problem]:
    """The problem of a line that is longer or shorter than the first."""
    if None in cells or None in cells.values():
        return [Problem("csv-cells", "has more or fewer cells than line 1", "", place)]
    return []


def _read(
    cells: dict[str, Any], place: str, found: list[Entry], kind: type[Entry]
) -> list[Problem]:
    """One line into `found`, or what is wrong with it."""
    values = {key: _value(key, text.strip()) for key, text in cells.items()}
    try:
        found.append(kind.model_validate(values))
    except ValidationError as error:
        return [_problem(detail, place) for detail in error.errors(include_url=False)]
    return []


def _value(column: str, text: str) -> str | None:
    """The cell; an empty one in a column of numbers is `None`."""
    return None if column in NUMBERS and not text else text


def _problem(detail: ErrorDetails, place: str) -> Problem:
    """One finding of pydantic in our words."""
    cell = str(detail["input"])[:LONGEST_CELL]
    rule = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return Problem("csv-value", f"{detail['loc'][0]} (={cell}) {rule}", "", place)


def _repeated(rows: Sequence[Row | Figure], name: str) -> list[Problem]:
    """Ids that occur twice: their errors could not be told apart."""
    seen: set[str] = set()
    twice = [row.id for row in rows if row.id in seen or seen.add(row.id)]  # type: ignore[func-returns-value]
    return [Problem("csv-id", f"id (={i[:LONGEST_CELL]}) occurs twice", "", name) for i in twice]
