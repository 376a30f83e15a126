"""The predicted order of published layouts, by source: `benchmarks/published/choices.md`.

A group is a job (model, batch, sequence, precision, cards) that a source ran with five layouts and
more. `--update-golden` writes the page; what it may not fall below stands in `step_time.json`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import pytest
from test_published import PUBLISHED, trusted

from dsforge.validate import Row, parse_table, validation
from dsforge.validate.score import Decisions

PAGE = PUBLISHED / "choices.md"
SWEEPS = ("nano-pb", "nano-old")  # nanotron, whose waits nobody can explain
HEADER = (
    "| source | groups | rank correlation | regret of the first | worst | equal settings differ |"
)
LEAST_CORRELATION, MOST_REGRET = 0.8, 0.015


@cache
def table() -> tuple[Row, ...]:
    """All published runs."""
    return tuple(
        parse_table((PUBLISHED / "training.csv").read_text(encoding="utf-8"), "training.csv")
    )


def judged(sources: Collection[str]) -> Decisions | None:
    """The order of the layouts of some sources; none where no group has five."""
    return validation(table(), what=("step_time",), sources=sources).summary.decisions


def line(name: str, found: Decisions) -> str:
    """One row of the table."""
    spread = "-" if found.repeat_spread is None else f"{found.repeat_spread:.1%}"
    regret = f"{found.regret:.1%} | {found.worst_regret:.1%}"
    return f"| {name} | {found.groups} | {found.spearman:.2f} | {regret} | {spread} |"


def page() -> str:
    """Sources one by one, then together: all, trusted ones, each also without nanotron."""
    every = sorted({row.source for row in table()})
    good = [source for source in every if source in trusted("step_time")]
    together = {
        "all": every,
        "all but nanotron": [s for s in every if s not in SWEEPS],
        "trusted (A and B)": good,
        "trusted but nanotron": [s for s in good if s not in SWEEPS],
    }
    sets = {
        **{source: [source] for source in every},
        **{f"**{n}**": s for n, s in together.items()},
    }
    judgements = {name: judged(sources) for name, sources in sets.items()}
    lines = [line(name, found) for name, found in judgements.items() if found is not None]
    return "\n".join([HEADER, "|---|---:|---:|---:|---:|---:|", *lines]) + "\n"


def test_the_page_shows_the_present_order(update_golden: bool) -> None:
    """`choices.md` is what the predictor does now."""
    if update_golden:
        PAGE.write_text(page(), encoding="utf-8")

    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("without", [(), SWEEPS], ids=["all", "without nanotron"])
def test_trusted_layouts_are_put_in_order(without: tuple[str, ...]) -> None:
    """Rank correlation of trusted sources, and what the layout ranked first costs."""
    found = judged(trusted("step_time") - set(without))

    assert found is not None
    assert found.regret < MOST_REGRET
    assert without or found.spearman > LEAST_CORRELATION
