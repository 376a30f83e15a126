"""Rows: JSONL, Parquet and dataset folders -> conversations, with every bad row named at once.

Three shapes are read: `text` (loss on all of it), `prompt` with `completion`, and `messages`. Files
may be larger than memory: they are read twice, row by row, first to find what is wrong with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsforge.errors import Problem, SpecError
from dsforge.specs import DataShape

SHOWN_PROBLEMS = 20
ROLES = {"system", "user", "assistant", "tool"}
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One sample as text: plain `text`, or a conversation that ends with the answer."""

    place: str
    text: str = ""
    messages: tuple[Message, ...] = ()


def stop(problems: Sequence[Problem]) -> None:
    """What bad rows mean unless the job says otherwise: SpecError that lists them."""
    raise bad_rows(problems)


@dataclass(frozen=True, slots=True)
class Rows:
    """The good rows of a file, read again at each iteration, never held together."""

    path: Path
    shape: DataShape
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        found = (_row_or_problem(place, value, self.shape) for place, value in _values(self.path))
        return (row for row in found if isinstance(row, Row))


def read_rows(
    path: Path, shape: DataShape, on_bad: Callable[[Sequence[Problem]], None] = stop
) -> Rows:
    """The good rows of a JSONL or Parquet file, or of a folder that `datasets` saved.

    Every row is looked at; bad ones go to `on_bad`, all at once. Raises SpecError where there is no
    row, and as `on_bad` does.
    """
    count = 0
    problems: list[Problem] = []
    for place, value in _values(path):
        row = _row_or_problem(place, value, shape)
        if isinstance(row, Problem):
            problems.append(row)
        else:
            count += 1
    if problems:
        on_bad(problems)
    if not count:
        words = "holds no usable rows" if problems else "holds no rows"
        raise SpecError((Problem("data-empty", words, place=str(path)),))
    return Rows(path, shape, count)


def bad_rows(problems: Sequence[Problem]) -> SpecError:
    """The error that counts all bad rows and shows the first of them."""
    count = len(problems)
    message = f"{count} bad row{'s' if count != 1 else ''}"
    message += f", the first {SHOWN_PROBLEMS} are" if count > SHOWN_PROBLEMS else ""
    return SpecError(tuple(problems[:SHOWN_PROBLEMS]), message)


def data_files(path: Path) -> tuple[Path, ...]:
    """The files that hold the rows of a data file or dataset folder. Raises SpecError."""
    if not path.is_dir():
        return (path,)
    if (path / "dataset_dict.json").is_file():
        splits = sorted(child.parent.name for child in path.glob("*/state.json"))
        hint = f"name one: {', '.join(str(path / split) for split in splits)}"
        problem = Problem("data-splits", "holds several splits", hint, str(path))
        raise SpecError((problem,))
    try:
        listed = json.loads((path / "state.json").read_text(encoding="utf-8"))["_data_files"]
        return tuple(path / file["filename"] for file in listed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "name a JSONL or Parquet file, or a folder that `datasets` saved to disk"
        raise SpecError((Problem("data-folder", "is no dataset", hint, str(path)),)) from error


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of each row; a Problem where a line is not JSON."""
    if path.is_dir():
        yield from _dataset_values(path)
        return
    if not path.is_file():
        hint = "`data` in train.yaml names it, relative to the folder of train.yaml"
        raise SpecError((Problem("data-missing", "there is no such data file", hint, str(path)),))
    if path.suffix == ".parquet":
        yield from _parquet_values(path)
        return
    if path.suffix not in (".jsonl", ".json"):
        message = f"`{path.suffix}` is not read; write JSONL (`.jsonl`) or Parquet (`.parquet`)"
        raise SpecError((Problem("data-format", message, place=str(path)),))
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                yield place, json.loads(line)
            except (ValueError, RecursionError) as error:
                why = getattr(error, "msg", "not UTF-8 text")
                yield place, Problem("row-json", f"is not JSON: {why}", place=place)


def _dataset_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of each row of a folder that `datasets` saved: Arrow streams."""
    import pyarrow as pa

    number = 0
    for file in data_files(path):
        try:
            with pa.memory_map(str(file)) as source:
                for batch in pa.ipc.open_stream(source):
                    for value in batch.to_pylist():
                        number += 1
                        yield f"{path}: row {number}", value
        except (pa.ArrowException, OSError) as error:
            message = f"is not an Arrow stream: {error}"
            raise SpecError((Problem("data-arrow", message, place=str(file)),)) from error


def _parquet_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of each row of a Parquet file, read batch by batch."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches():
            for value in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", value
    except (pa.ArrowException, OSError) as error:
        message = f"is not a Parquet file: {error}"
        raise SpecError((Problem("data-parquet", message, place=str(path)),)) from error


def _row_or_problem(place: str, value: Any, shape: DataShape) -> Row | Problem:
    """One row, or what is wrong with it."""
    if isinstance(value, Problem):
        return value
    if not isinstance(value, dict):
        return Problem("row-mapping", "must be a JSON object", place=place)
    found = _shape_of(value) if shape == "auto" else shape
    if found == "text":
        return _text_row(place, value)
    if found == "messages":
        return _messages_row(place, value)
    if found == "prompt":
        return _prompt_row(place, value)
    keys = ", ".join(f"`{key}`" for key in list(value)[:6]) or "no keys"
    hint = "a row has `text`, or `prompt` and `completion`, or `messages`"
    return Problem("row-shape", f"has {keys}", hint, place)


def _shape_of(value: dict[str, Any]) -> DataShape:
    """The shape that the keys of a row tell; `auto` where they tell none."""
    if "messages" in value:
        return "messages"
    if "prompt" in value or "completion" in value:
        return "prompt"
    return "text" if "text" in value else "auto"


def _blank(value: Any) -> bool:
    return not isinstance(value, str) or not value.strip()


def _text_row(place: str, value: dict[str, Any]) -> Row | Problem:
    if _blank(value.get("text")):
        return Problem("row-field", "`text` must be text and not empty", place=place)
    return Row(place, text=value["text"])


def _prompt_row(place: str, value: dict[str, Any]) -> Row | Problem:
    for key in ("prompt", "completion"):
        if _blank(value.get(key)):
            return Problem("row-field", f"`{key}` must be text and not empty", place=place)
    question = {"role": "user", "content": value["prompt"]}
    return Row(place, messages=(question, {"role": "assistant", "content": value["completion"]}))


def _messages_row(place: str, value: dict[str, Any]) -> Row | Problem:
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        return Problem("row-field", "`messages` must be a list and not empty", place=place)
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            roles = ", ".join(sorted(ROLES))
            text = f"`messages[{number}].role` must be one of {roles}"
            return Problem("row-role", text, place=place)
        if not isinstance(message.get("content"), str):
            return Problem("row-field", f"`messages[{number}].content` must be text", place=place)
    answer = messages[-1]
    if answer["role"] != "assistant" or _blank(answer["content"]):
        text = "the last message must be an answer (role assistant) that is not empty"
        return Problem("row-answer", text, place=place)
    kept = tuple({"role": m["role"], "content": m["content"]} for m in messages)
    return Row(place, messages=kept)
