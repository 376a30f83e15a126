"""Predictions against published runs: no figure may get worse than the committed one.

`figures.json` of each quantity holds what was reached, `benchmarks/published/*.md` the same as a
table. `--update-golden` writes both anew; a diff that raises an error needs a reason.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsforge.validate import ValidationDocument, parse_table, validation

HERE = Path(__file__).parent
PUBLISHED = HERE.parents[1] / "benchmarks" / "published"
TRUST = {"memory": "trust_memory", "step_time": "trust_time"}
ROUNDING = 5e-4  # figures are committed to a tenth of a percent
MOST_SKIPPED = 0.03


@cache
def trusted(quantity: str) -> frozenset[str]:
    """Sources whose figures of that quantity are good enough to be scored (A and B)."""
    with (PUBLISHED / "sources.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return frozenset(row["id_prefix"] for row in rows if row[TRUST[quantity]] in ("A", "B"))


@cache
def document(quantity: str) -> ValidationDocument:
    """Predictions of one quantity for all sources that are trusted for it."""
    rows = parse_table((PUBLISHED / "training.csv").read_text(encoding="utf-8"), "training.csv")
    what: Any = (quantity,)
    return validation(rows, what=what, sources=trusted(quantity))


def reached(quantity: str) -> dict[str, dict[str, float]]:
    """Figures of the present predictor by source, then over all, rounded outwards."""
    score = getattr(document(quantity).summary, quantity)
    found = {"all sources": score.overall, **score.sources}
    figures = {
        name: {"median": e.median, "p90": e.p90, "bias": abs(e.bias)} for name, e in found.items()
    }
    figures["all sources"]["interval off 81 %"] = abs(score.overall.holds - 0.81)
    decisions = document(quantity).summary.decisions
    if decisions is not None:
        figures["decisions"] = {"disorder": 1 - decisions.spearman, "regret": decisions.regret}
    return figures


def committed(quantity: str) -> dict[str, dict[str, float]]:
    """Figures that were reached before."""
    found: dict[str, dict[str, float]] = json.loads(
        (HERE / f"{quantity}.json").read_text(encoding="utf-8")
    )
    return found


def page(quantity: str) -> str:
    """The table of errors by source, in Markdown."""
    score = getattr(document(quantity).summary, quantity)
    found = {**score.sources, "**all, equal weight**": score.overall}
    lines = ["| source | rows | median of \\|error\\| | 90th percentile | bias | interval holds |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for name, e in found.items():
        figures = f"{e.median:.1%} | {e.p90:.1%} | {e.bias:+.1%} | {e.holds:.0%}"
        lines.append(f"| {name} | {e.rows} | {figures} |")
    return "\n".join(lines) + "\n"


CASES = [(quantity, source) for quantity in TRUST for source in committed(quantity)]


@pytest.mark.parametrize(("quantity", "source"), CASES, ids=["-".join(case) for case in CASES])
def test_no_figure_gets_worse(quantity: str, source: str, update_golden: bool) -> None:
    """Median, 90th percentile and bias of a source are at most what they were."""
    now = reached(quantity)
    if update_golden:
        rounded = {n: {k: round(v, 4) for k, v in found.items()} for n, found in now.items()}
        text = json.dumps(rounded, indent=2) + "\n"
        (HERE / f"{quantity}.json").write_text(text, encoding="utf-8")
        return
    before = committed(quantity)[source]
    worse = {key: now[source][key] for key in before if now[source][key] > before[key] + ROUNDING}

    assert worse == {}, f"was {before}"


@pytest.mark.parametrize("quantity", TRUST)
def test_every_trusted_source_is_scored(quantity: str) -> None:
    """No source disappears from the score."""
    assert set(committed(quantity)) - {"all sources", "decisions"} == trusted(quantity)


@pytest.mark.parametrize("quantity", TRUST)
def test_few_rows_cannot_be_expressed(quantity: str) -> None:
    """At most three rows in a hundred are skipped for a reason that is not their own."""
    found = document(quantity)
    skipped = [row for row in found.skipped if not row.reason.startswith("tagged ")]

    assert len(skipped) <= MOST_SKIPPED * (len(skipped) + len(found.rows))


@pytest.mark.parametrize("quantity", TRUST)
def test_the_table_shows_the_present_errors(quantity: str, update_golden: bool) -> None:
    """`benchmarks/published/QUANTITY.md` is what the predictor does now."""
    if update_golden:
        (PUBLISHED / f"{quantity}.md").write_text(page(quantity), encoding="utf-8")

    assert (PUBLISHED / f"{quantity}.md").read_text(encoding="utf-8") == page(quantity)
