"""Every rule names the fault in one text and is silent about the same text without it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lint_cases import CASES
from lint_other_cases import BESIDE, ELSEWHERE
from lint_texts import Pair

from dsforge.findings import Finding
from dsforge.lint.check import RULES
from dsforge.lint.files import Against, checked, read_document, release_named
from dsforge.reading.cluster import cluster_of
from dsforge.reading.model import read_model
from dsforge.reading.source import parse_source

IDS = [rule.id for rule in RULES]
OF_FOLDERS = {"files-left-out"}  # of no text: test_lint_bounds.py
PAIRS = (*CASES.items(), *ELSEWHERE)
PAIR_IDS = [f"{name}-{pair.name}" for name, pair in PAIRS]


@cache
def model_named(name: str) -> Any:
    """A model of the catalog."""
    return read_model(name)[0] if name else None


@cache
def cluster_written(text: str) -> Any:
    """The cluster in a text."""
    return cluster_of(parse_source(text, "cluster.yaml"))[0] if text else None


def found(pair: Pair, text: str, folder: Path) -> tuple[Finding, ...]:
    """What lint finds in one text of a pair, read from a file as a user's is."""
    for name, content in BESIDE.items():
        (folder / name).write_text(content)
    path = folder / pair.name
    path.write_text(text, newline="")
    model, cluster = model_named(pair.model), cluster_written(pair.cluster)
    return checked(read_document(path), Against(*release_named(pair.release), model, cluster))


def test_every_rule_has_its_pair(record_property: pytest.RecordProperty) -> None:
    """No rule is without an example, and no example without its rule; ids are unique."""
    record_property("count", f"lint: {len(RULES)} rules, each with a text that has the fault")
    assert sorted(CASES) == sorted(set(IDS) - OF_FOLDERS)
    assert len(set(IDS)) == len(IDS) >= 60


@pytest.mark.parametrize(("name", "pair"), PAIRS, ids=PAIR_IDS)
def test_a_rule_names_the_fault(name: str, pair: Pair, tmp_path: Path) -> None:
    """The text with the fault is found, at a line that exists, with a message."""
    hits = [f for f in found(pair, pair.bad, tmp_path) if f.rule == name]

    assert hits
    assert all(1 <= f.line <= pair.bad.count("\n") + 1 and f.message for f in hits)


@pytest.mark.parametrize(("name", "pair"), PAIRS, ids=PAIR_IDS)
def test_a_rule_is_silent_without_the_fault(name: str, pair: Pair, tmp_path: Path) -> None:
    """The text without the fault breaks neither this rule nor any that stops a run."""
    hits = found(pair, pair.good, tmp_path)

    assert [f for f in hits if f.rule == name or f.severity == "error"] == []


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_rule_says_why_and_whence(rule: Any) -> None:
    """Each rule has a title, a reason, its evidence, and an id in small letters with hyphens."""
    assert rule.title.endswith(".")
    assert len(rule.why) > 20
    assert len(rule.evidence) > 5
    assert rule.id == rule.id.lower().replace("_", "-")
