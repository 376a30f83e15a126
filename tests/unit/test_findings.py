"""Findings: the types, the registration and the writers that all commands share."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from dsforge.errors import DsforgeError
from dsforge.findings import Finding, Hit, collected, has_errors, rule, worst_first
from dsforge.findings.writers import WRITERS, as_lines, check_known, listed, summary


@rule("too-large", "error", "number", why="Numbers above 3 do not fit.", evidence="arithmetic")
def too_large(number: int) -> list[Hit]:
    """A number that is too large.

    More about it.
    """
    return [Hit(("host",), f"{number} is above 3", "use 3")] if number > 3 else []


@rule("odd", "info", "number", why="Odd numbers are rare.")
def odd(number: int) -> list[Hit]:
    """An odd number."""
    return [Hit((), "is odd")] if number % 2 else []


def module(name: str, **values: object) -> ModuleType:
    """A module with these names."""
    made = ModuleType(name)
    vars(made).update(values)
    return made


FOUND = (
    Finding("odd", "info", "is odd", file="a.json", line=2, column=3),
    Finding("too-large", "error", "4 is above 3", "use 3", hosts=("h1", "h2")),
    Finding("odd", "info", "5% is\nodd", file="b,c.json", line=1, column=1),
)


def test_the_decorator_keeps_what_is_known_of_a_rule() -> None:
    """Title from the docstring, and a function that still finds."""
    assert (too_large.id, too_large.severity, too_large.scope) == (
        "too-large",
        "error",
        ("number",),
    )
    assert too_large.title == "A number that is too large."
    assert [hit.message for hit in too_large.find(4)] == ["4 is above 3"]


def test_rules_are_collected_in_the_order_of_modules_and_of_their_definition() -> None:
    """Single rules and tuples of them; whatever else a module names is passed over."""
    first = module("first", number=3, rows=(odd,), names=("a", "b"), nothing=())

    assert collected(first, module("second", too_large=too_large)) == (odd, too_large)


def test_an_id_is_taken_once() -> None:
    """Two rules of one id are an error of the programmer, said at import."""
    with pytest.raises(ValueError, match="defined twice: odd"):
        collected(module("first", odd=odd), module("second", rows=(odd,)))


def test_the_worst_stands_first_and_decides() -> None:
    """Errors before infos, in the given order otherwise; only errors count for the exit code."""
    assert [f.message for f in worst_first(FOUND)] == ["4 is above 3", "is odd", "5% is\nodd"]
    assert has_errors(FOUND)
    assert not has_errors(FOUND[:1])


def test_people_read_where_and_what_to_do() -> None:
    """Hosts or the file in front, the fix below; the count has its plural."""
    assert as_lines(FOUND[:2]) == [
        "error: h1, h2: 4 is above 3 [too-large]",
        "  fix: use 3",
        "info: a.json: is odd [odd]",
    ]
    assert as_lines([Finding("odd", "info", "odd")], nowhere="run") == ["info: run: odd [odd]"]
    assert summary(FOUND) == "1 error, 2 info"
    assert summary(()) == "nothing found"


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_takes_every_finding(name: str) -> None:
    """All messages are in the output, and a line of GitHub's stays one line."""
    written = WRITERS[name](FOUND, {rule.id: rule for rule in (too_large, odd)})

    assert "4 is above 3" in written
    if name in ("json", "sarif"):
        assert json.loads(written)
    if name == "github":
        assert written.count("\n") == len(FOUND)
        assert "file=b%2Cc.json" in written


def test_an_unknown_rule_is_named_with_its_nearest() -> None:
    """A slip of the pen finds the rule; nonsense is sent to the list."""
    known = ("too-large", "odd")
    check_known(known, known, "dsforge lint")

    with pytest.raises(DsforgeError, match="unknown rule 'too-lage'") as near:
        check_known(("too-lage",), known, "dsforge lint")
    assert "too-large" in near.value.hint
    with pytest.raises(DsforgeError) as far:
        check_known(("xyz",), known, "dsforge lint")
    assert "dsforge lint --rules" in far.value.hint
    assert listed((odd,)) == "odd  info     An odd number.\n"
