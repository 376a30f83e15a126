"""Report -> report.md, report.html, report.json.

Numbers become text here; wording and order stand in `templates/report/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dsforge.artifacts import Artifact
from dsforge.bench.report import PARITY, Figure, Report, Row
from dsforge.render.engine import render_text, template_environment
from dsforge.units import count, gib, seconds

NONE = "-"
PAGES = {"report.md": "report/BENCH.md.j2", "report.html": "report/BENCH.html.j2"}


class RowText(NamedTuple):
    """One strategy as the tables show it; percentages are lengths of bars."""

    variant: str
    strategy: str
    step: str
    predicted_step: str
    tokens: str
    predicted_tokens: str
    memory: str
    predicted_memory: str
    sent: str
    predicted_sent: str
    loss: str
    parity: str
    runs: str
    step_percent: int
    predicted_step_percent: int
    memory_percent: int
    predicted_memory_percent: int


class Fact(NamedTuple):
    """One line of a list."""

    name: str
    value: str


class Failure(NamedTuple):
    """A run without a measurement."""

    cell: str
    text: str


class BenchContext(NamedTuple):
    """Fields of report/BENCH.md.j2 and report/BENCH.html.j2."""

    title: str
    workload: str
    verdict: str
    memory_label: str
    reasons: tuple[str, ...]
    rows: tuple[RowText, ...]
    method: str
    failures: tuple[Failure, ...]
    facts: tuple[Fact, ...]


def pages(report: Report) -> tuple[Artifact, ...]:
    """The report as Markdown, HTML and JSON."""
    made, context = template_environment(), bench_context(report)
    texts = tuple(Artifact(path, render_text(made, name, context)) for path, name in PAGES.items())
    return (*texts, Artifact("report.json", report.model_dump_json(indent=2) + "\n"))


def bench_context(report: Report) -> BenchContext:
    """Context of the two pages."""
    choice = report.recommendation.variant
    facts = {"cluster": report.cluster} | report.hardware | report.versions
    return BenchContext(
        title=f"{', '.join(row.variant for row in report.rows)}: {report.model}",
        workload=(
            f"{count(report.parameters)} parameters on {report.cluster}, "
            f"{report.global_batch_size} x {report.sequence_length} tokens per step"
        ),
        verdict=f"Use {choice}." if choice else "No run was measured.",
        memory_label=report.memory_counter.capitalize(),
        reasons=report.recommendation.reasons,
        rows=tuple(_row(row, report.rows) for row in report.rows),
        method=(
            f"The first {report.warmup_steps} steps of each run are dropped; data order and seed "
            f"are the same in all. (1.20x) is measured / predicted. Memory is the "
            f"{report.memory_counter} of the fullest rank. Measured tokens are counted without "
            f"padding, predicted ones with it. Losses that differ by at most {PARITY:g} count as "
            f"equal."
        ),
        failures=tuple(Failure(o.cell.name, o.error) for o in report.outcomes if o.error),
        facts=tuple(Fact(name, value) for name, value in facts.items()),
    )


def _row(row: Row, rows: tuple[Row, ...]) -> RowText:
    """The texts of one strategy."""
    step, memory = row.step_s, row.memory_bytes
    longest = max(_ends(r.step_s) for r in rows)
    largest = max(_ends(r.memory_bytes) for r in rows)
    return RowText(
        variant=row.variant,
        strategy=row.strategy,
        step=_step(row),
        predicted_step=f"{seconds(step.predicted.likely)} "
        f"({seconds(step.predicted.low)} to {seconds(step.predicted.high)})",
        tokens=_measured(row.tokens_per_s, lambda value: f"{value:,.0f}"),
        predicted_tokens=f"{row.tokens_per_s.predicted.likely:,.0f}",
        memory=_measured(memory, gib),
        predicted_memory=f"{gib(memory.predicted.likely)} "
        f"({gib(memory.predicted.low)} to {gib(memory.predicted.high)})",
        sent=_measured(row.sent_bytes, gib),
        predicted_sent=gib(row.sent_bytes.predicted.likely),
        loss=NONE if row.final_loss is None else f"{row.final_loss:.4f}",
        parity=NONE if row.parity is None else f"{row.parity:.2g}",
        runs=f"{row.runs} of {row.runs + row.failures}",
        step_percent=_percent(step.measured, longest),
        predicted_step_percent=_percent(step.predicted.likely, longest),
        memory_percent=_percent(memory.measured, largest),
        predicted_memory_percent=_percent(memory.predicted.likely, largest),
    )


def _step(row: Row) -> str:
    """Median step time with its quartiles."""
    if row.step_s.measured is None or row.spread_s is None:
        return NONE
    low, high = row.spread_s
    return f"{seconds(row.step_s.measured)} ({seconds(low)} to {seconds(high)})"


def _measured(figure: Figure, show: Callable[[float], str]) -> str:
    """The measured value, and how it stands to the prediction."""
    if figure.measured is None:
        return NONE
    return show(figure.measured) + (f" ({figure.ratio:.2f}x)" if figure.ratio else "")


def _ends(figure: Figure) -> float:
    """The longer of the two bars of a figure."""
    return max(figure.measured or 0.0, figure.predicted.likely)


def _percent(value: float | None, whole: float) -> int:
    """The length of a bar."""
    return round(100 * (value or 0.0) / whole) if whole else 0
