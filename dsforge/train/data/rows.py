"""Rows of JSONL, Parquet and dataset folders as conversations, with all bad rows reported at once.

Three shapes are read: `text` (loss on all of it), a prompt with its answer, and `messages`; the
latter two also under the names that public data sets have (Alpaca, Dolly, ShareGPT). Rows of
preferences are read as pairs (`pair_rows.py`) where a job asks for them. Files may
be larger than memory: they are read twice, row by row, first to find what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from dsforge.errors import Problem, SpecError
from dsforge.specs import DataShape
from dsforge.train.data.conversations import Row, conversation, is_blank
from dsforge.train.data.pair_rows import is_pair, pair_row
from dsforge.train.data.row_files import refused, row_values

SHOWN_PROBLEMS = 20
RowShape = DataShape | Literal["pairs"]  # pairs: of preferences, a chosen and a rejected answer
SHOWN_KEYS, SHOWN_LETTERS = 6, 40
# Names of the same field, the first found counts: of TRL, Alpaca, Dolly and question sets.
PROMPTS = ("prompt", "instruction", "question")
ANSWERS = ("completion", "response", "output", "answer")
CONTEXTS = ("input", "context")  # follows the prompt after a blank line; may be empty
DIALOGUES = ("messages", "conversations")


@dataclass(slots=True)
class BadRows:
    """How many rows are bad, and what is wrong with the first of them; the rest is not kept."""

    count: int = 0
    first: list[Problem] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        """One more."""
        self.count += 1
        if self.count <= SHOWN_PROBLEMS:
            self.first.append(problem)

    def error(self) -> SpecError:
        """The error that counts all of them and shows the first."""
        message = f"{self.count} bad row{'s' if self.count != 1 else ''}"
        message += f", the first {SHOWN_PROBLEMS} are" if self.count > SHOWN_PROBLEMS else ""
        return SpecError(tuple(self.first), message)


def stop(bad: BadRows) -> None:
    """What bad rows mean unless the job says otherwise: SpecError that lists them."""
    raise bad.error()


@dataclass(frozen=True, slots=True)
class Rows:
    """The good rows of a file, read again at each iteration, never held together."""

    path: Path
    shape: RowShape
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        return (row for row in each_row(self.path, self.shape) if isinstance(row, Row))


def read_rows(path: Path, shape: RowShape, on_bad: Callable[[BadRows], None] = stop) -> Rows:
    """The good rows of a JSONL or Parquet file, or of a folder that `datasets` saved.

    Every row is looked at; bad ones go to `on_bad`, all at once. Raises SpecError where there is no
    row, and as `on_bad` does.
    """
    count = 0
    bad = BadRows()
    for row in each_row(path, shape):
        if isinstance(row, Problem):
            bad.add(row)
        else:
            count += 1
    if bad.count:
        on_bad(bad)
    if not count:
        raise refused(
            "data-empty", "contains no usable rows" if bad.count else "contains no rows", path
        )
    return Rows(path, shape, count)


def each_row(path: Path, shape: RowShape = "auto") -> Iterator[Row | Problem]:
    """The rows of a file in their order; for a bad one, what is wrong with it.

    Raises SpecError where the file cannot be read.
    """
    return (_read_row(place, value, shape) for place, value in row_values(path))


def _read_row(place: str, value: Any, shape: RowShape) -> Row | Problem:
    """One row, or what is wrong with it."""
    row = value if isinstance(value, Problem) else _shaped(place, value, shape)
    if isinstance(row, Row) and not all(map(_is_whole, (row.text, *_contents(row)))):
        text = "contains an unpaired surrogate, such as `\\ud800`, which tokenizers cannot encode"
        return Problem("row-character", text, place=place)
    return row


def _contents(row: Row) -> Iterator[str]:
    return (message["content"] for message in (*row.messages, *row.rejected))


def _shaped(place: str, value: Any, shape: RowShape) -> Row | Problem:
    """A row as its shape says, or what it lacks."""
    if not isinstance(value, dict):
        return Problem("row-mapping", "must be a JSON object", place=place)
    if shape == "pairs":
        return pair_row(place, value)
    found = _shape_of(value) if shape == "auto" else shape
    if found == "text":
        return _text_row(place, value)
    if found == "messages":
        return _messages_row(place, value)
    if found == "prompt":
        return _prompt_row(place, value)
    shown = [f"`{key[:SHOWN_LETTERS]}`" for key in islice(value, SHOWN_KEYS)]
    keys = ", ".join(shown) or "no keys"
    hint = "a row has `text`, or `prompt` and `completion` (or `instruction` and `output`), or "
    hint += "`messages`"
    if is_pair(value):
        hint = "set `preference: {kind: dpo}` in train.yaml to train on preferences"
    return Problem("row-shape", f"has {keys}", hint, place)


def _shape_of(value: dict[str, Any]) -> DataShape:
    """The shape that the keys of a row tell; `auto` where they tell none."""
    if _key(value, DIALOGUES):
        return "messages"
    if _key(value, PROMPTS) and _key(value, ANSWERS):
        return "prompt"
    if is_pair(value):
        return "auto"
    if "prompt" in value or "completion" in value:
        return "prompt"
    return "text" if "text" in value else "auto"


def _key(value: dict[str, Any], names: tuple[str, ...]) -> str:
    """The first of these names that a row has; empty where it has none."""
    return next((name for name in names if name in value), "")


def _is_whole(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_row(place: str, value: dict[str, Any]) -> Row | Problem:
    if is_blank(value.get("text")):
        return Problem("row-field", "`text` must be text and not empty", place=place)
    return Row(place, text=value["text"])


def _prompt_row(place: str, value: dict[str, Any]) -> Row | Problem:
    prompt, answer = _key(value, PROMPTS) or PROMPTS[0], _key(value, ANSWERS) or ANSWERS[0]
    for key in (prompt, answer):
        if is_blank(value.get(key)):
            return Problem("row-field", f"`{key}` must be text and not empty", place=place)
    context = _key(value, CONTEXTS)
    if context and not isinstance(value[context], str | None):
        return Problem("row-field", f"`{context}` must be text", place=place)
    asked = value[prompt]
    if context and not is_blank(value[context]):
        asked = f"{asked}\n\n{value[context]}"
    question = {"role": "user", "content": asked}
    return Row(place, messages=(question, {"role": "assistant", "content": value[answer]}))


def _messages_row(place: str, value: dict[str, Any]) -> Row | Problem:
    key = _key(value, DIALOGUES) or DIALOGUES[0]
    found = conversation(place, key, value.get(key))
    return found if isinstance(found, Problem) else Row(place, messages=found)
