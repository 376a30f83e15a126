"""What a data file holds, before any tokenizer is there: rows, their shape, how long they are."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dsforge.train.data.conversations import Row
from dsforge.train.data.rows import BadRows, each_row

LOOKED_AT = 20_000  # rows: the beginning stands for the rest of a large file
# UTF-8 bytes of a token: byte-pair vocabularies reach 4 to 4.5 in English prose, about 3 in code
# and in scripts of three bytes a character (Llama 3 report, section 3.2: 3.94 over its mixture).
# Taken low, so that no sample is cut for the estimate.
BYTES_PER_TOKEN = 3.0
TEMPLATE_TOKENS = 16  # a message: its role and the marks around it
PAIR = 2  # messages of a prompt with its answer
SHORTEST, STEP = 128, 1024  # tokens: the least length; from here on multiples instead of powers


class DataSummary(NamedTuple):
    """The rows of a file that were looked at."""

    rows: int
    is_whole: bool  # whether all were looked at
    shape: str
    longest_tokens: int  # estimated
    bad: BadRows


def summary_of(path: Path) -> DataSummary:
    """What the first rows of a data file are. Raises SpecError where it cannot be read."""
    bad, shapes, longest, rows = BadRows(), dict[str, int](), 0, 0
    found = each_row(path)
    for row in islice(found, LOOKED_AT):
        rows += 1
        if not isinstance(row, Row):
            bad.add(row)
            continue
        longest = max(longest, _tokens(row))
        shape = _shape(row)
        shapes[shape] = shapes.get(shape, 0) + 1
    most = max(shapes, key=lambda shape: shapes[shape], default="")
    return DataSummary(rows, next(found, None) is None, most, longest, bad)


def sequence_length_for(tokens: int, most: int) -> int:
    """The length that samples of so many tokens fit into, at most the model's."""
    if tokens > STEP:
        return min(most, -(-tokens // STEP) * STEP)
    return min(most, max(SHORTEST, 1 << (max(1, tokens) - 1).bit_length()))


def _shape(row: Row) -> str:
    """What a row is called."""
    if row.text:
        return "text"
    return "prompt and answer" if len(row.messages) == PAIR else "conversations"


def _tokens(row: Row) -> int:
    """An estimate of the tokens of a row, on the high side."""
    texts = [row.text, *(message["content"] for message in row.messages)]
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return round(size / BYTES_PER_TOKEN) + TEMPLATE_TOKENS * len(row.messages)
