"""Predictions against published figures of fine-tuning: no score may get worse.

`figures.json` holds what was reached by regime and by source, `benchmarks/published/figures.md` the
same as a table. `--update-golden` writes both anew; a diff that raises an error needs a reason.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsforge.api.figures import asker
from dsforge.validate import FiguresDocument, compared, parse_figures
from dsforge.validate.comparison import FigureScore

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "benchmarks" / "published" / "figures.csv"
REACHED = HERE / "figures.json"
ROUNDING = 5e-4
WANTED_INSIDE = 0.8
LEAST_UNSTATED_INSIDE, MOST_UNSTATED_ERROR = 0.75, 0.16
SOFTWARE = {  # words of a spec that a page which only publishes a figure often leaves out
    "attention",
    "bf16_states",
    "dropout",
    "expert_dispatch",
    "expert_modules",
    "gradient_type",
    "kernels",
    "loads_whole",
    "loss",
    "offload_activations",
    "optimizer_in_backward",
    "overlaps_experts",
    "overlaps_tensor",
    "tiled_mlp",
    "trainer",
}


@cache
def document() -> FiguresDocument:
    """All figures with their answers."""
    figures = parse_figures(TABLE.read_text(encoding="utf-8"), TABLE.name)
    return compared(figures, asker(TABLE))


def groups() -> dict[str, FigureScore]:
    """Scores of all regimes and sources, and of everything."""
    found = document()
    return {**found.regimes, **found.sources, "all": found.overall}


def reached() -> dict[str, dict[str, float]]:
    """What may not grow: errors, distance of intervals from their 80 %, unanswered figures."""
    return {
        name: {
            "median": 9.99 if score.median is None else score.median,
            "interval off 80 %": 1 if score.inside is None else abs(score.inside - WANTED_INSIDE),
            "unanswered": score.figures - score.answered,
        }
        for name, score in groups().items()
    }


def page() -> str:
    """Both tables in Markdown."""
    found = document()
    parts = []
    for title, scores in (("regime", found.regimes), ("source", found.sources)):
        lines = [
            f"| {title} | answered | median of \\|error\\| | bias | interval holds | on paper |"
        ]
        lines.append("|---|---:|---:|---:|---:|---:|")
        every = {**scores, "**all, sources weigh equally**": found.overall}
        for name, score in every.items():
            shares = (score.median, score.bias, score.inside, score.arithmetic)
            forms = (".0%", "+.0%", ".0%", ".0%")
            cells = [
                "-" if value is None else format(value, form)
                for value, form in zip(shares, forms, strict=True)
            ]
            lines.append(f"| {name} | {score.answered} of {score.figures} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


@pytest.mark.parametrize("name", json.loads(REACHED.read_text(encoding="utf-8")))
def test_no_score_of_figures_gets_worse(name: str, update_golden: bool) -> None:
    """Median, intervals and unanswered figures of a regime or source are what they were."""
    now = reached()
    if update_golden:
        rounded = {n: {k: round(v, 4) for k, v in found.items()} for n, found in now.items()}
        REACHED.write_text(json.dumps(rounded, indent=2) + "\n", encoding="utf-8")
        return
    before = json.loads(REACHED.read_text(encoding="utf-8"))[name]
    worse = {key: now[name][key] for key in before if now[name][key] > before[key] + ROUNDING}

    assert worse == {}, f"was {before}"


def test_every_group_of_figures_is_committed() -> None:
    """No regime and no source disappears from the score."""
    assert set(json.loads(REACHED.read_text(encoding="utf-8"))) == set(groups())


def test_the_page_of_figures_shows_the_present_errors(update_golden: bool) -> None:
    """`benchmarks/published/figures.md` is what the predictor does now."""
    if update_golden:
        TABLE.with_suffix(".md").write_text(page(), encoding="utf-8")

    assert TABLE.with_suffix(".md").read_text(encoding="utf-8") == page()


def must_stay(name: str, spec: dict[str, Any]) -> bool:
    """Whether a word is no software that may be left out.

    DeepSpeed has no SGD for the CPU, so FSDP must be named; states in bf16 are a key of its config.
    """
    if name == "trainer":
        return spec["workload"].get("optimizer") == "sgd"
    return name == "bf16_states" and "trainer" not in spec["strategy"]


def test_software_that_is_not_stated_is_a_reading() -> None:
    """Without a word on trainer, kernels and loss, the intervals hold as much as they promise."""
    figures = parse_figures(TABLE.read_text(encoding="utf-8"), TABLE.name)
    silent = []
    for figure in figures:
        strategy = figure.spec.get("strategy", {})
        said = {
            name: value
            for name, value in strategy.items()
            if name not in SOFTWARE or must_stay(name, figure.spec)
        }
        silent.append(figure.model_copy(update={"spec": {**figure.spec, "strategy": said}}))
    found = compared(silent, asker(TABLE)).overall

    assert sum(one != other for one, other in zip(silent, figures, strict=True)) > len(figures) / 3
    assert found.answered == len(figures)
    assert (found.inside or 0) >= LEAST_UNSTATED_INSIDE
    assert (found.median or 1) <= MOST_UNSTATED_ERROR
