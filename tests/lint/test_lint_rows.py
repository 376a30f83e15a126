"""Rules that are rows: each key and condition of each row decides, and each operator is exact."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.lint.check import RULES
from dsforge.lint.checked_file import checked_file
from dsforge.lint.conditions import ABSENT, FACTS, OPERATORS, If
from dsforge.lint.reading.document import Kind, applied
from dsforge.lint.reading.kind import document_of
from dsforge.lint.rows import Look, Repair, Row, rules
from dsforge.lint.rules.precision import SCALER
from dsforge.lint.schemas.releases import frozen, number

ROWS: dict[str, Row] = {rule.id: rule.find.args[0] for rule in RULES if hasattr(rule.find, "args")}
NEGATIONS = {
    "present": "absent",
    "given": "not given",
    "on": "not on",
    "off": "not off",
    "in": "not among",
    "block": "no block",
}

WITNESSES: dict[str, Any] = {
    "on": lambda _: True,
    "off": lambda _: False,
    "present": lambda _: 1,
    "given": lambda _: "text",
    "block": lambda _: {"enabled": True},
    "boolean": lambda _: True,
    "below": lambda limit: limit - 1,
    "above": lambda limit: limit + 1,
    "outside": lambda ends: ends[1] + 1,
    "not in": lambda _: "no such word",
    "in": lambda choices: choices[0],
    "not 0": lambda _: 128,
}
ALONE = {  # rows that look at their key alone
    name: one
    for name, one in ROWS.items()
    if one.kinds == ("ds_config",) and not one.when and one.test.operator in WITNESSES
}


def hits(row: Row, text: str, kind: Kind = "ds_config", release: str = "0.19.8") -> list[Any]:
    """What a row finds in a text."""
    file = checked_file(document_of("file", text, kind), frozen(), number(release))
    return list(rules(row)[0].find(file))


def row(test: If, **changes: Any) -> Row:
    """A row with this test."""
    return Row("x", "error", test, "`{key}` (={value})", **changes)


def test_most_rules_are_rows() -> None:
    """Rules of one shape are data."""
    assert len(ROWS) >= 70


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_whole(name: str) -> None:
    """Title, reason and evidence are there; keys, facts and placeholders exist."""
    one = ROWS[name]

    assert one.title
    assert one.why
    assert one.evidence
    for look in (one, *one.also):
        for condition in (look.test, *look.when):
            assert condition.operator in OPERATORS
            assert {key for key in condition.key.split() if key.startswith("@")} <= set(FACTS)
    if one.kinds == ("ds_config",):
        blocks = frozen().blocks
        for key in (key for look in (one, *one.also) for key in look.test.key.split()):
            block, _, last = key.rpartition(".")
            free = block.startswith(("scheduler", "optimizer", "comet"))
            free = free or (block in ("bf16", "bfloat16") and last in SCALER)
            assert key.startswith("@") or free or last in blocks[block].keys, key


@pytest.mark.parametrize("name", ALONE)
def test_every_key_of_a_row_is_looked_at(name: str) -> None:
    """A value that fulfils the test is found under each of the keys, and under no other."""
    one = ALONE[name]
    for key in one.test.key.split():
        document: dict[str, Any] = {}
        *blocks, last = key.split(".")
        inner = document
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[last] = WITNESSES[one.test.operator](one.test.operand)
        found = hits(one, json.dumps(document))

        assert [hit.where for hit in found] == [tuple(key.split("."))]
        assert "{" not in found[0].message.replace('{"', "")


@given(st.sampled_from(sorted(NEGATIONS)), st.none() | st.booleans() | st.integers() | st.text())
def test_negations_are_exact(operator: Any, value: Any) -> None:
    """Of an operator and its negation exactly one holds, whatever the value; also for no value."""
    for one in (value, ABSENT, {}, {"a": 1}, [], [1]):
        held = OPERATORS[operator](one, ("a", 1))
        assert held is not OPERATORS[NEGATIONS[operator]](one, ("a", 1))  # type: ignore[index]


@given(st.integers() | st.floats(allow_nan=False), st.integers(-9, 9), st.integers(0, 9))
def test_ranges_are_exact(value: float, low: int, width: int) -> None:
    """Inside or outside, and both ends belong to the range."""
    ends = (low, low + width)
    assert OPERATORS["between"](value, ends) is not OPERATORS["outside"](value, ends)
    assert OPERATORS["between"](low, ends)
    assert OPERATORS["outside"](value, ends) == (
        OPERATORS["below"](value, ends[0]) or OPERATORS["above"](value, ends[1])
    )


@pytest.mark.parametrize("value", [True, False, "3", None, ABSENT, [], {}])
def test_what_is_no_number_is_in_no_range(value: Any) -> None:
    """A truth value, a text and nothing are neither below nor above anything."""
    assert not any(OPERATORS[name](value, 0) for name in ("below", "above", "not 0"))
    assert not any(OPERATORS[name](value, (0, 1)) for name in ("between", "outside"))
    assert not OPERATORS["is"](value, 1)


@pytest.mark.parametrize(
    ("release", "count"), [("0.16.3", 0), ("0.16.4", 1), ("0.18.0", 1), ("0.18.1", 0), ("0.19", 0)]
)
def test_a_row_holds_for_its_releases(release: str, count: int) -> None:
    """From the first to the last, both included."""
    one = row(If("fp16", "present"), since="0.16.4", until="0.18.0")

    assert len(hits(one, '{"fp16": 1}', release=release)) == count


def test_every_condition_must_hold() -> None:
    """A `when` with several keys holds for any of them; all of several must."""
    one = row(If("a", "on"), when=(If("b c", "above", 1), If("d", "absent")))

    assert len(hits(one, '{"a": true, "c": 2}')) == 1
    assert not hits(one, '{"a": true, "c": 1}')
    assert not hits(one, '{"a": true, "c": 2, "d": null}')


@pytest.mark.parametrize(
    ("repair", "expected"),
    [(Repair("replace", 5), '{"a": 5}'), (Repair("rename", "b"), '{"b": 1}')],
)
def test_a_repair_edits_what_was_found(repair: Repair, expected: str) -> None:
    """Another value, or another name, and nothing else of the text."""
    (hit,) = hits(row(If("a", "present"), repair=repair), text := '{"a": 1}')
    (edit,) = hit.edits

    assert text[: edit.start] + edit.text + text[edit.end :] == expected


def test_variables_are_named_with_stars() -> None:
    """In a file of variables a star stands for any part, and the finding is on the line."""
    text = "A=1\nNCCL_X_DEBUG=1\n"
    (hit,) = hits(row(If("NCCL*DEBUG", "present"), kinds=("env",)), text, "env")

    assert hit.offset == text.index("NCCL")
    assert hit.message == "`NCCL_X_DEBUG` (=1)"


def test_a_rule_may_be_broken_in_several_ways() -> None:
    """Each look has its own message, conditions and repair; the rule is repaired if one look is."""
    second = Look(If("b", "above", 1), "`b` is {value}", repair=Repair("remove"))
    one = row(If("a", "on"), also=(second,))
    text = '{"a": true, "b": 2}'
    first, other = hits(one, text)

    assert (first.message, other.message) == ("`a` (=true)", "`b` is 2")
    assert first.edits == ()
    assert applied(text, list(other.edits)) == '{"a": true}'
    assert rules(one)[0].fixable
