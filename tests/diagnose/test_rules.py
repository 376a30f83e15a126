"""The rule files: their form, and every rule held against the examples of all others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _parser as parser  # how a pattern is built; there is no public way to ask
from typing import Any

import pytest
import yaml

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.computed import COMPUTED, case_of, values_of
from dsforge.diagnose.rule import Case, Rule, compiled, rule_from
from dsforge.diagnose.rulebook import FILES, FOLDER, IN_WORDS, WITH_PLAN, rulebook
from dsforge.diagnose.templates import filled_fix, filled_message, names

RULES = rulebook(with_plan=True, in_words=True)
READ = rulebook(in_words=True)
EXAMPLES = [
    pytest.param(rule, text, id=f"{rule.id}-{number}")
    for rule in READ.values()
    for number, text in enumerate(rule.hits)
]
MISSES = [
    pytest.param(rule, text, id=f"{rule.id}-{number}")
    for rule in READ.values()
    for number, text in enumerate(rule.misses)
]
CASES = [
    pytest.param(rule, case, text, id=f"{rule.id}-{number}")
    for rule in READ.values()
    for number, case in enumerate(rule.cases)
    if not rule.cases_of or case not in READ[rule.cases_of].cases
    for text in case.hits
]
BLANK = "\0"  # in place of what a pattern leaves free
FEW, MOST_TEXTS = 4, 4_000  # alternatives of a character that are told apart; texts of a pattern
FREE_FORMS = ("slurm-preempted", "slurm-time-limit", "tensor-shape", "save-race", "python-error")
SMALLEST = {
    "id": "x",
    "needles": ["xyz"],
    "patterns": ["xyz"],
    "message": "m",
    "cause": "c",
    "fix": "f",
    "sources": ["s"],
    "confidence": 0.9,
    "hits": ["xyz"],
}


def test_the_index_finds_every_entry() -> None:
    """Files in the folder, the list of files, and the entries found without parsing agree."""
    assert {path.stem for path in FOLDER.glob("*.*")} == {*FILES, WITH_PLAN, IN_WORDS}
    parsed = [
        entry
        for file in (*FILES, WITH_PLAN, IN_WORDS)
        for entry in yaml.safe_load((FOLDER / f"{file}.yaml").read_text(encoding="utf-8"))
    ]
    assert [entry["id"] for entry in parsed] == list(RULES)
    assert [tuple(e["needles"]) for e in parsed] == [e.needles for e in RULES.entries.values()]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_rule_is_well_formed(rule: Rule) -> None:
    """Needles are lower case and short, names known, patterns bounded, values given."""
    assert all(
        needle == needle.lower() and 2 < len(needle.encode()) < 100 for needle in rule.needles
    )
    assert set(rule.explains) <= set(RULES)
    assert not rule.compute or rule.compute in COMPUTED
    assert 0 < rule.confidence < 1
    for pattern in rule.all_patterns:
        assert not re.search(r"(?<!\\)[)\]][*+][^?)]{0,3}\)[*+]", pattern)  # (x*)* is exponential
        assert ".*" not in pattern
    if not rule.compute and rule.id != "slow-network":
        groups = {name for pattern in rule.all_patterns for name in compiled(pattern).groupindex}
        assert names(rule.message) | names(rule.fix) <= groups | {"phase", "rank"}


@pytest.mark.parametrize(("rule", "text"), EXAMPLES)
def test_an_example_is_answered_by_its_own_rule(rule: Rule, text: str) -> None:
    """No rule takes over another's example, and nothing empty is quoted."""
    first = diagnose_text(text)[0]

    assert first.rule == rule.id
    assert "``" not in first.message + first.fix
    assert not re.search(r"\{[a-z_]+(\|[^{}]*)?\}|\[\[|\]\]", first.message + first.fix)
    assert first.fix


@pytest.mark.parametrize(("rule", "case", "text"), CASES)
def test_an_example_of_a_case_is_answered_by_it(rule: Rule, case: Case, text: str) -> None:
    """What the log tells beyond the message chooses the case, and fills all that it says."""
    first = diagnose_text(text)[0]

    assert first.rule == rule.id
    assert case_of(first.hits[0], values_of(first.hits)) == case
    assert "``" not in first.message + first.why + first.fix
    assert not re.search(r"\{[a-z_]+(\|[^{}]*)?\}|\[\[|\]\]", first.message + first.why + first.fix)
    assert first.fix


@pytest.mark.parametrize(("rule", "case", "text"), CASES)
def test_the_patterns_of_a_case_are_bounded(rule: Rule, case: Case, text: str) -> None:
    """They are tried on the lines before an error, too."""
    assert rule.compute
    for pattern in case.when.values():
        assert ".*" not in pattern
        assert compiled(pattern)


@pytest.mark.parametrize(("rule", "text"), MISSES)
def test_a_near_miss_is_another_matter(rule: Rule, text: str) -> None:
    """What only looks like a rule's line is not answered by it."""
    assert rule.id not in [cause.rule for cause in diagnose_text(text)]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"colour": "red"}, "unknown field `colour`"),
        ({"needles": "xyz"}, "`needles` must be"),
        ({"needles": [""]}, "`needles` must be a list of texts"),
        ({"confidence": "high"}, "`confidence` must be float"),
        ({"kind": "guess"}, "`kind` must be one of"),
        ({"lines": True}, "`lines` must be int"),
        ({"message": None}, "`message` must be str"),
        ({"cases": [{"when": {"name": "x"}}]}, "a case has"),
        ({"cases": [{"if": {}, "hits": ["xyz"]}]}, "a case has"),
    ],
)
def test_a_wrong_entry_is_refused(change: dict[str, object], complaint: str) -> None:
    """The message names rule and field."""
    with pytest.raises(ValueError, match=re.escape(complaint)):
        rule_from({**SMALLEST, **change})


def test_a_missing_field_is_refused() -> None:
    """A rule without its example is none."""
    with pytest.raises(ValueError, match="field `hits` is missing"):
        rule_from({name: value for name, value in SMALLEST.items() if name != "hits"})


def test_templates() -> None:
    """Optional parts and lines go where a value is missing; commands are quoted; JSON stays."""
    assert filled_message("full[[ ({path})]]: {n|many} left", {"path": ""}) == "full: many left"
    assert filled_message("full[[ ({path})]]", {"path": "a b"}) == "full (a b)"
    assert filled_fix('$ ls {path}\n+ {"a": {"b": 1}}', {"path": "x;y"}) == (
        '$ ls \'x;y\'\n+ {"a": {"b": 1}}'
    )
    assert filled_fix("$ ls {path}\n# look", {}) == "# look"


def _texts(pattern: Iterable[Any]) -> list[str]:
    """The texts of a parsed pattern: each alternative, with a blank for what is free."""
    texts = [""]
    for code, argument in pattern:
        found = _alternatives(str(code), argument)
        texts = [text + part for text in texts for part in dict.fromkeys(found)][:MOST_TEXTS]
    return texts


def _alternatives(code: str, argument: Any) -> list[str]:
    """The texts of one element of a parsed pattern."""
    if code in ("SUBPATTERN", "BRANCH"):
        branches = argument[1] if code == "BRANCH" else [argument[3]]
        return [text for branch in branches for text in _texts(branch)]
    if code in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = argument
        if most == 1:
            return ([""] if least == 0 else []) + _texts(inner)
        return [BLANK]
    if code in ("LITERAL", "IN"):
        parts = argument if code == "IN" else [(code, argument)]
        characters = [chr(value) for kind, value in parts if str(kind) == "LITERAL"]
        return characters if len(characters) == len(parts) <= FEW else [BLANK]
    return [""] if code in ("AT", "ASSERT", "ASSERT_NOT") else [BLANK]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_each_pattern_is_reached_by_a_needle(rule: Rule) -> None:
    """A pattern is only tried on lines with a needle; each has a text that one of them finds."""
    unreached = [
        pattern
        for pattern in rule.all_patterns
        if not any(
            needle in text.lower()
            for text in _texts(parser.parse(pattern, re.IGNORECASE | re.MULTILINE))
            for needle in rule.needles
        )
    ]

    assert unreached == [] or rule.id in FREE_FORMS or not rule.needles
