"""Rows of preferences: what is read as a pair, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.errors import SpecError
from dsforge.train.data.pairs import Pairs, sources
from dsforge.train.data.rows import read_rows
from dsforge.train.data.samples import IGNORED, Sample, lengths_of, split


def say(role: str, content: str) -> dict[str, str]:
    """A message."""
    return {"role": role, "content": content}


QUESTION, GOOD, BAD = say("user", "why?"), say("assistant", "because"), say("assistant", "no")
EARLIER = [say("system", "be brief"), say("user", "who?"), say("assistant", "I")]


def written(folder: Path, *rows: Any) -> Path:
    """A file of rows."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "why?", "chosen": "because", "rejected": "no"},
        {"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [QUESTION], "chosen": "because", "rejected": [BAD]},
        {"chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
        {"prompt": "why?", "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
        {
            "chosen": [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "because"}],
            "rejected": [QUESTION, BAD],
        },
    ],
)
def test_forms_of_one_pair_are_one_row(row: dict[str, Any], tmp_path: Path) -> None:
    """Texts, messages and whole conversations say the same."""
    (read,) = read_rows(written(tmp_path, row), "pairs")
    assert (read.messages, read.rejected, read.given) == ((QUESTION, GOOD), (QUESTION, BAD), 1)


def test_shared_answers_belong_to_the_prompt(tmp_path: Path) -> None:
    """What both conversations say before they differ is given."""
    row = {"prompt": [*EARLIER, QUESTION], "chosen": [GOOD], "rejected": [BAD, QUESTION, GOOD]}
    (read,) = read_rows(written(tmp_path, row), "pairs")
    assert read.given == 4
    assert [len(read.messages), len(read.rejected)] == [5, 7]


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"prompt": "why?", "completion": "because"}, "row-pair"),
        ({"prompt": "why?", "chosen": "because"}, "row-pair"),
        ({"prompt": "why?", "chosen": "no", "rejected": "no"}, "row-pair"),
        ({"chosen": [QUESTION, GOOD], "rejected": [EARLIER[1], BAD]}, "row-pair"),
        ({"chosen": "because", "rejected": "no"}, "row-field"),
        ({"prompt": "why?", "chosen": " ", "rejected": "no"}, "row-field"),
        ({"prompt": "why?", "chosen": 7, "rejected": "no"}, "row-field"),
        ({"prompt": [], "chosen": "because", "rejected": "no"}, "row-field"),
        ({"prompt": {"role": "user"}, "chosen": "because", "rejected": "no"}, "row-field"),
        ({"prompt": [7], "chosen": "because", "rejected": "no"}, "row-role"),
        ({"chosen": [QUESTION], "rejected": [QUESTION, BAD]}, "row-answer"),
        ({"prompt": "why?", "chosen": "because", "rejected": "\ud800"}, "row-character"),
        ({"prompt": "why?", "chosen": "because", "rejected": []}, "row-field"),
        (["a"], "row-mapping"),
    ],
)
def test_rows_that_are_no_pair_are_refused(row: Any, rule: str, tmp_path: Path) -> None:
    """With the rule and the line."""
    with pytest.raises(SpecError) as refused:
        read_rows(written(tmp_path, row), "pairs")
    (problem,) = refused.value.problems
    assert problem.rule == rule
    assert problem.place.endswith(":1")


def test_pairs_without_preference_say_what_trains_on_them(tmp_path: Path) -> None:
    """A job on next tokens names the block that is missing."""
    row = {"prompt": "why?", "chosen": "because", "rejected": "no"}
    with pytest.raises(SpecError) as refused:
        read_rows(written(tmp_path, row), "auto")
    assert "preference: {kind: dpo}" in refused.value.problems[0].hint


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9)), min_size=2, max_size=20))
def test_pairs_hold_both_sequences_in_order(lengths: list[tuple[int, int]]) -> None:
    """Every pair gives back its two sequences, its length and its reference, also after a split."""
    samples = []
    for number, size in enumerate(size for pair in lengths for size in pair):
        tokens = np.full(size, number, dtype=np.int64)
        labels = tokens.copy()
        labels[0] = IGNORED
        samples.append(Sample(tokens, labels))
    pairs = Pairs(samples, lengths_of(samples))
    pairs.references = np.arange(2.0 * len(pairs)).reshape(-1, 2)
    train, held = split(pairs, 0.3, seed=1)

    assert [len(pair.tokens) for pair in pairs] == list(lengths_of(pairs))
    assert sources(train, held) == [pairs]
    assert len(train) + len(held) == len(pairs)
    for pair in (*pairs, *train, *held):
        numbers = [int(side.tokens[0]) for side in pair.sides]
        assert pair.reference == tuple(map(float, numbers))
        assert numbers[1] == numbers[0] + 1
        assert [side.targets for side in pair.sides] == [n - 1 for n in pair.parts]
