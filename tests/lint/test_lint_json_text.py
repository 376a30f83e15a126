"""The positioned JSON reader: values, places, and what it goes on after."""

from __future__ import annotations

import json

import pytest

from dsforge.lint.reading.json_text import parsed

TEXT = '{\n  "a": [1, 2.5, true, null, "x\\n\\u00e9"],\n  "b": {"c": -3e2}\n}\n'
FLAWED = {
    "trailing-comma": ('{"a": [1,],}', {"a": [1]}, ["json-trailing-comma"] * 2),
    "comments": ('{"a": 1 // x\n# y\n, "b": /* z */ 2}', {"a": 1, "b": 2}, ["json-comment"]),
    "python": ('{"a": True, "b": None}', {"a": True, "b": None}, ["json-literal"] * 2),
    "twice": ('{"a": 1, "a": 2}', {"a": 2}, ["duplicate-key"]),
    "infinite": ('{"a": 1e999, "b": -Infinity}', {"a": None, "b": None}, ["json-number"] * 2),
}
BROKEN = {
    "": "the file is empty",
    "{": "the text ends before `}`",
    '{"a" 1}': "where `:` is expected",
    '{"a": 1 "b": 2}': "where `,` is expected",
    '{"a": 1}}': "something follows",
    '{"a": 1]': "closes no open bracket",
    "{a: 1}": "where a key in quotes is expected",
    '{"a": yes}': "text needs quotes",
    '{"a": "\\x"}': "invalid escape",
    '{"a": "b\n"}': "where a value is expected",
    '{"a": 007}': "begins with 0",
    "[1 2]": "where `,` is expected",
}


def test_values_are_those_of_json() -> None:
    """A sound text reads as the standard library reads it, without flaws."""
    found = parsed(TEXT)

    assert found.root == json.loads(TEXT)
    assert found.flaws == []
    assert found.complete


def test_keys_and_values_know_their_places() -> None:
    """The mark of a value cuts exactly its key and itself out of the text."""
    mark = parsed(TEXT).marks[("b", "c")]

    assert TEXT[mark.key_start : mark.key_end] == '"c"'
    assert TEXT[mark.start : mark.end] == "-3e2"


def test_a_block_ends_where_it_is_closed() -> None:
    """The mark of a block reaches to its brace."""
    mark = parsed(TEXT).marks[("b",)]

    assert TEXT[mark.start : mark.end] == '{"c": -3e2}'


@pytest.mark.parametrize(("text", "root", "rules"), FLAWED.values(), ids=FLAWED)
def test_reading_goes_on_after_slips(text: str, root: object, rules: list[str]) -> None:
    """What other readers accept or everybody means is read, and said."""
    found = parsed(text)

    assert found.complete
    assert (found.root, [flaw.rule for flaw in found.flaws]) == (root, rules)


@pytest.mark.parametrize(("text", "words"), BROKEN.items(), ids=range(len(BROKEN)))
def test_what_is_broken_is_said_once(text: str, words: str) -> None:
    """One syntax error, in words, and no more."""
    found = parsed(text)

    assert not found.complete
    assert [flaw.rule for flaw in found.flaws] == ["json-syntax"]
    assert words in found.flaws[0].message


def test_nesting_has_an_end() -> None:
    """Depth is bounded without recursion."""
    found = parsed("[" * 100_000)

    assert [flaw.rule for flaw in found.flaws] == ["too-deep"]
