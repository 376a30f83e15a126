"""Rows of JSONL, Parquet and dataset folders as conversations, with all bad rows reported at once.

Three shapes are read: `text` (loss on all of it), a prompt with its answer, and `messages`; the
latter two also under the names that public data sets have (Alpaca, Dolly, ShareGPT). Files may be
larger than memory: they are read twice, row by row, first to find what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dsforge.errors import Problem, SpecError
from dsforge.specs import DataShape
from dsforge.train.data.row_files import refused, row_values

SHOWN_PROBLEMS = 20
MAX_MESSAGES = 2_000  # in a row: each answer is rendered with all that stands before it
SHOWN_KEYS, SHOWN_LETTERS = 6, 40
ROLES = {"system", "user", "assistant", "tool"}
# Names of the same field, the first found counts: of TRL, Alpaca, Dolly and question sets.
PROMPTS = ("prompt", "instruction", "question")
ANSWERS = ("completion", "response", "output", "answer")
CONTEXTS = ("input", "context")  # follows the prompt after a blank line; may be empty
DIALOGUES = ("messages", "conversations")
SPEAKERS = {"human": "user", "gpt": "assistant", "system": "system", "tool": "tool"}  # of ShareGPT
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One sample as text: plain `text`, or a conversation that ends with the answer."""

    place: str
    text: str = ""
    messages: tuple[Message, ...] = ()


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
    shape: DataShape
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        return (row for row in each_row(self.path, self.shape) if isinstance(row, Row))


def read_rows(path: Path, shape: DataShape, on_bad: Callable[[BadRows], None] = stop) -> Rows:
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


def each_row(path: Path, shape: DataShape = "auto") -> Iterator[Row | Problem]:
    """The rows of a file in their order; for a bad one, what is wrong with it.

    Raises SpecError where the file cannot be read.
    """
    return (_read_row(place, value, shape) for place, value in row_values(path))


def _read_row(place: str, value: Any, shape: DataShape) -> Row | Problem:
    """One row, or what is wrong with it."""
    row = value if isinstance(value, Problem) else _shaped(place, value, shape)
    if isinstance(row, Row) and not all(map(_is_whole, (row.text, *_contents(row)))):
        text = "contains an unpaired surrogate, such as `\\ud800`, which tokenizers cannot encode"
        return Problem("row-character", text, place=place)
    return row


def _contents(row: Row) -> Iterator[str]:
    return (message["content"] for message in row.messages)


def _shaped(place: str, value: Any, shape: DataShape) -> Row | Problem:
    """A row as its shape says, or what it lacks."""
    if not isinstance(value, dict):
        return Problem("row-mapping", "must be a JSON object", place=place)
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
    return Problem("row-shape", f"has {keys}", hint, place)


def _shape_of(value: dict[str, Any]) -> DataShape:
    """The shape that the keys of a row tell; `auto` where they tell none."""
    if _key(value, DIALOGUES):
        return "messages"
    if _key(value, PROMPTS) and _key(value, ANSWERS):
        return "prompt"
    if "prompt" in value or "completion" in value:
        return "prompt"
    return "text" if "text" in value else "auto"


def _key(value: dict[str, Any], names: tuple[str, ...]) -> str:
    """The first of these names that a row has; empty where it has none."""
    return next((name for name in names if name in value), "")


def _blank(value: Any) -> bool:
    return not isinstance(value, str) or not value.strip()


def _is_role(value: Any) -> bool:
    return isinstance(value, str) and value in ROLES


def _is_whole(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_row(place: str, value: dict[str, Any]) -> Row | Problem:
    if _blank(value.get("text")):
        return Problem("row-field", "`text` must be text and not empty", place=place)
    return Row(place, text=value["text"])


def _prompt_row(place: str, value: dict[str, Any]) -> Row | Problem:
    prompt, answer = _key(value, PROMPTS) or PROMPTS[0], _key(value, ANSWERS) or ANSWERS[0]
    for key in (prompt, answer):
        if _blank(value.get(key)):
            return Problem("row-field", f"`{key}` must be text and not empty", place=place)
    context = _key(value, CONTEXTS)
    if context and not isinstance(value[context], str | None):
        return Problem("row-field", f"`{context}` must be text", place=place)
    asked = value[prompt]
    if context and not _blank(value[context]):
        asked = f"{asked}\n\n{value[context]}"
    question = {"role": "user", "content": asked}
    return Row(place, messages=(question, {"role": "assistant", "content": value[answer]}))


def _messages_row(place: str, value: dict[str, Any]) -> Row | Problem:
    key = _key(value, DIALOGUES) or DIALOGUES[0]
    messages = value.get(key)
    if not isinstance(messages, list) or not messages:
        return Problem("row-field", f"`{key}` must be a list and not empty", place=place)
    if len(messages) > MAX_MESSAGES:
        text = f"`{key}` must have at most {MAX_MESSAGES:,} entries"
        return Problem("row-field", text, place=place)
    messages = [_of_sharegpt(message) for message in messages]
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not _is_role(message.get("role")):
            roles = ", ".join(sorted(ROLES))
            text = f"`{key}[{number}].role` must be one of {roles}"
            return Problem("row-role", text, place=place)
        if not isinstance(message.get("content"), str):
            return Problem("row-field", f"`{key}[{number}].content` must be text", place=place)
    answer = messages[-1]
    if answer["role"] != "assistant" or _blank(answer["content"]):
        text = "the last message must be an answer (role assistant) that is not empty"
        return Problem("row-answer", text, place=place)
    kept = tuple({"role": m["role"], "content": m["content"]} for m in messages)
    return Row(place, messages=kept)


def _of_sharegpt(message: Any) -> Any:
    """A message with `role` and `content`; of `from` and `value` where it is ShareGPT's."""
    if not isinstance(message, dict) or "role" in message or "from" not in message:
        return message
    speaker = message["from"]
    role = SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker
    return {"role": role, "content": message.get("value")}
