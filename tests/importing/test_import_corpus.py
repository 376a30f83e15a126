"""Public files are read as a person read them."""

from __future__ import annotations

from collections import Counter

import pytest
from import_scoring import PAGE, Case, all_scored, cases, differences, page

LEAST = {"first_part": 1.0, "second_part": 1.0, "third_part": 1.0, "fourth_part": 10 / 11}
EVERY = list(cases())


def test_the_corpus_is_broad() -> None:
    """At least 80 files of at least 12 styles, each with its source, licence and date."""
    styles = Counter(case.row["style"] for case in EVERY)
    known = {"repository", "path", "commit", "licence", "judged", "expect", "text", "style"}

    assert len(EVERY) >= 80
    assert sum(count >= 5 for count in styles.values()) >= 12
    assert [case.name for case in EVERY if not known <= case.row.keys()] == []
    assert max(Counter((c.name, c.row["commit"]) for c in EVERY).values()) == 1


@pytest.mark.parametrize("part", sorted(LEAST))
def test_readers_are_as_right_as_they_were(part: str) -> None:
    """The share of files of which all six quantities are right does not fall."""
    results = [(case, wrong) for case, wrong in all_scored() if case.part == part]
    right = sum(not wrong for _, wrong in results)

    assert right / len(results) >= LEAST[part], [c.name for c, wrong in results if wrong]


def test_the_page_has_these_figures() -> None:
    """docs/import-accuracy.md is what the script writes."""
    assert PAGE.read_text(encoding="utf-8") == page(all_scored())


def test_a_wrong_verdict_is_noticed() -> None:
    """The score can fall: another stage in the verdict is a difference."""
    case = EVERY[0]
    other = {**case.row, "expect": {**case.row["expect"], "zero_stage": 1}}

    assert "ZeRO stage" in differences(Case(case.part, other))
