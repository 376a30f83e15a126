"""Rows: the three shapes, and every bad row with its line at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import Problem, SpecError
from dsforge.train.data.rows import SHOWN_PROBLEMS, read_rows

QUESTION = {"role": "user", "content": "why?"}
ANSWER = {"role": "assistant", "content": "because"}


def written(folder: Path, *values: Any) -> Path:
    """A JSONL file of values; text goes in as it is."""
    lines = [value if isinstance(value, str) else json.dumps(value) for value in values]
    path = folder / "data.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_text_row_is_plain_text(tmp_path: Path) -> None:
    """`text` becomes a row without messages."""
    (row,) = read_rows(written(tmp_path, {"text": "abc", "id": 7}), "auto")

    assert (row.text, row.messages) == ("abc", ())


def test_prompt_and_completion_become_a_conversation(tmp_path: Path) -> None:
    """`prompt` is the user's turn, `completion` the answer."""
    (row,) = read_rows(written(tmp_path, {"prompt": "why?", "completion": "because"}), "auto")

    assert row.messages == (QUESTION, ANSWER)


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "why?", "input": "", "output": "because"},  # Alpaca
        {"instruction": "why?", "context": None, "response": "because"},  # Dolly
        {"question": "why?", "answer": "because"},
        {"prompt": "why?", "response": "because"},
        {
            "conversations": [
                {"from": "human", "value": "why?"},
                {"from": "gpt", "value": "because"},
            ]
        },
        {"conversations": [QUESTION, ANSWER]},
    ],
    ids="-".join,
)
def test_names_of_public_data_sets_are_read(tmp_path: Path, row: dict[str, Any]) -> None:
    """The same conversation under the names that Alpaca, Dolly and ShareGPT use."""
    (read,) = read_rows(written(tmp_path, row), "auto")

    assert read.messages == (QUESTION, ANSWER)


def test_an_input_follows_its_instruction(tmp_path: Path) -> None:
    """Alpaca's `input` is part of the question, after a blank line."""
    row = {"instruction": "Translate.", "input": "because", "output": "weil"}
    (read,) = read_rows(written(tmp_path, row), "auto")

    assert read.messages[0]["content"] == "Translate.\n\nbecause"


def test_messages_keep_their_order_and_lose_other_keys(tmp_path: Path) -> None:
    """A conversation is taken as it is, role and content only."""
    system = {"role": "system", "content": ""}
    messages = [system, {**QUESTION, "name": "eve"}, ANSWER]
    (row,) = read_rows(written(tmp_path, {"messages": messages}), "auto")

    assert row.messages == (system, QUESTION, ANSWER)


def test_a_named_shape_chooses_between_keys(tmp_path: Path) -> None:
    """Where a row has the keys of two shapes, `shape` decides."""
    both = written(tmp_path, {"text": "abc", "prompt": "why?", "completion": "because"})

    assert next(iter(read_rows(both, "text"))).text == "abc"
    assert next(iter(read_rows(both, "auto"))).messages == (QUESTION, ANSWER)


def test_blank_lines_are_passed_over_but_counted(tmp_path: Path) -> None:
    """The place of a row is the line in the file."""
    rows = read_rows(written(tmp_path, "", {"text": "abc"}, "  ", {"text": "def"}), "auto")

    assert [row.place.rsplit(":", 1)[1] for row in rows] == ["2", "4"]


@pytest.mark.parametrize(
    ("value", "rule", "words"),
    [
        ("not json", "row-json", "is not JSON"),
        ("[" * 100_000, "row-json", "is not JSON"),
        ([1], "row-mapping", "must be a JSON object"),
        ({"question": "a"}, "row-shape", "has `question`"),
        ({}, "row-shape", "has no keys"),
        ({"text": " "}, "row-field", "`text` must be text"),
        ({"text": 3}, "row-field", "`text` must be text"),
        ({"prompt": "a"}, "row-field", "`completion` must be text"),
        ({"completion": "a"}, "row-field", "`prompt` must be text"),
        ({"messages": []}, "row-field", "`messages` must be a list"),
        ({"messages": ["a"]}, "row-role", "`messages[0].role` must be one of assistant"),
        ({"messages": [{**QUESTION, "role": "bot"}]}, "row-role", "`messages[0].role`"),
        ({"messages": [{"role": "user"}]}, "row-field", "`messages[0].content` must be text"),
        ({"messages": [QUESTION]}, "row-answer", "the last message must be an answer"),
        ({"messages": [{**ANSWER, "content": ""}]}, "row-answer", "not empty"),
    ],
)
def test_a_bad_row_is_named_with_its_line(
    value: Any, rule: str, words: str, tmp_path: Path
) -> None:
    """Each kind of bad row has a rule, a line number and words."""
    path = written(tmp_path, {"text": "fine"}, value)
    with pytest.raises(SpecError) as raised:
        read_rows(path, "auto")

    (problem,) = raised.value.problems
    assert (problem.rule, problem.place) == (rule, f"{path}:2")
    assert words in problem.message


def test_bytes_that_are_no_text_are_a_bad_row(tmp_path: Path) -> None:
    """A line that is not UTF-8 is named, not a crash."""
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(SpecError) as raised:
        read_rows(path, "auto")

    assert raised.value.problems[0].message == "is not JSON: not UTF-8 text"


def test_bad_rows_can_be_left_out(tmp_path: Path) -> None:
    """The good rows are read; the bad ones are named, with their lines, at once."""
    path = written(tmp_path, {"text": "abc"}, "{", {"text": ""}, {"text": "def"})
    named: list[Problem] = []
    rows = read_rows(path, "auto", lambda bad: named.extend(bad.first))

    assert [row.text for row in rows] == ["abc", "def"]
    assert [problem.place.rpartition(":")[2] for problem in named] == ["2", "3"]


def test_only_bad_rows_are_no_data(tmp_path: Path) -> None:
    """Leaving out everything leaves nothing to train on."""
    with pytest.raises(SpecError) as error:
        read_rows(written(tmp_path, "{"), "auto", lambda problems: None)

    assert "no usable rows" in str(error.value.problems[0])


def test_many_bad_rows_are_counted_and_the_first_shown(tmp_path: Path) -> None:
    """A wrong file does not flood the screen."""
    with pytest.raises(SpecError) as raised:
        read_rows(written(tmp_path, *["x"] * 35), "auto")

    assert raised.value.message == f"35 bad rows, the first {SHOWN_PROBLEMS} are"
    assert len(raised.value.problems) == SHOWN_PROBLEMS


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("missing.jsonl", None, "data-missing"),
        ("data.csv", "a,b\n", "data-format"),
        ("empty.jsonl", "\n\n", "data-empty"),
    ],
)
def test_a_file_that_holds_no_rows_is_explained(
    name: str, text: str | None, rule: str, tmp_path: Path
) -> None:
    """A missing, foreign or empty file has a rule of its own."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError) as raised:
        read_rows(path, "auto")

    assert [problem.rule for problem in raised.value.problems] == [rule]
