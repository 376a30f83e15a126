"""Report of a comparison -> report.html, report.md, report.json and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dsforge import __version__
from dsforge.artifacts import Artifact
from dsforge.bench.matrix import priced
from dsforge.bench.report import PARITY, Figure, Report, Row
from dsforge.explain.plots import Bars
from dsforge.plan import Plan
from dsforge.report import Chart, Section, Stat, Table, TextFile
from dsforge.report import Report as PageReport
from dsforge.report.blocks import table
from dsforge.report.pages import page_files
from dsforge.report.plan_sections import files_section, memory_chart, time_chart
from dsforge.report.plots import Curve, Span, span_plot
from dsforge.report.run_sections import curve_chart
from dsforge.units import GIB, Interval, count, gib, likely_text, seconds, span_text

NONE = "-"


class RowText(NamedTuple):
    """One strategy as the tables show it."""

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


def pages(
    report: Report, plan: Plan | None = None, files: tuple[TextFile, ...] = ()
) -> tuple[Artifact, ...]:
    """The report as HTML, Markdown with its pictures, and JSON."""
    page = bench_page(report, plan, files)
    return page_files(page, report.model_dump_json(indent=2) + "\n")


def bench_page(
    report: Report, plan: Plan | None = None, files: tuple[TextFile, ...] = ()
) -> PageReport:
    """The report of a comparison; with the plan also the predicted terms of its strategies."""
    choice = report.recommendation.variant
    return PageReport(
        dsforge=__version__,
        title=f"{', '.join(row.variant for row in report.rows)}: {report.model}",
        headline=workload(report),
        verdict="measured",
        choice=verdict(report),
        stats=tuple(_stats(report, choice)),
        sections=(*_compared(report), *_predicted(report, plan), *_ending(report, files)),
    )


def workload(report: Report) -> str:
    """Model, cluster and batch in one line."""
    return (
        f"{count(report.parameters)} parameters on {report.cluster}, "
        f"{report.global_batch_size} x {report.sequence_length} tokens per step"
    )


def verdict(report: Report) -> str:
    """Which strategy to use."""
    choice = report.recommendation.variant
    return f"Use {choice}." if choice else "No run was measured."


def row_texts(report: Report) -> tuple[RowText, ...]:
    """The strategies as the tables show them."""
    return tuple(map(_row, report.rows))


def _stats(report: Report, choice: str | None) -> Iterator[Stat]:
    """Figures of the strategy to use."""
    row = next((row for row in report.rows if row.variant == choice), None)
    if row is None:
        return
    texts = _row(row)
    label = report.memory_counter.capitalize()
    yield Stat(label="Step time", value=texts.step, note=f"predicted {texts.predicted_step}")
    yield Stat(label="Tokens/s", value=texts.tokens, note=f"predicted {texts.predicted_tokens}")
    yield Stat(label=label, value=texts.memory, note=f"predicted {texts.predicted_memory}")
    yield Stat(label="Final loss", value=texts.loss, note=f"runs differ by {texts.parity}")


def _compared(report: Report) -> Iterator[Section]:
    """The advice with its reasons, the table, and the curves of all runs."""
    rows = [(row.variant, row.step_s, row.spread_s) for row in report.rows]
    yield Section(
        id="comparison",
        title="Comparison of strategies",
        note=_method(report),
        lines=report.recommendation.reasons,
        charts=(
            _chart("bench-step", "Step time by strategy", "seconds", _spans(rows, seconds, 1.0)),
            _chart(
                "bench-memory",
                f"{report.memory_counter.capitalize()} by strategy",
                "GiB",
                _spans([(r.variant, r.memory_bytes, None) for r in report.rows], gib, GIB),
            ),
        ),
        tables=(_strategies(report),),
    )
    runs = [(o.cell.name, o.measurement) for o in report.outcomes if o.measurement]
    losses = tuple(Curve(name, tuple(enumerate(run.losses, start=1))) for name, run in runs)
    times = tuple(
        Curve(name, tuple(enumerate(run.step_s, start=run.warmup_steps + 1))) for name, run in runs
    )
    if any(curve.points for curve in losses):
        chart = curve_chart("bench-loss", "Loss by run", "loss", losses)
        note = f"All runs see the same samples; losses that differ by at most {PARITY:g} are equal."
        yield Section(id="bench-loss", title="Loss", note=note, charts=(chart,))
    if times:
        chart = curve_chart("bench-step-time", "Step time by run", "seconds", times)
        yield Section(id="bench-step-time", title="Step time", charts=(chart,))


def _method(report: Report) -> str:
    """How figures were measured and counted."""
    return (
        f"The first {report.warmup_steps} steps of each run are dropped; data order and seed are "
        f"the same in all. (1.20x) is measured / predicted. Memory is the {report.memory_counter} "
        f"of the fullest rank. Measured and predicted tokens/s both count "
        f"{report.tokens_per_step:,.0f} tokens per step."
    )


def _strategies(report: Report) -> Table:
    """Measured and predicted values of each strategy."""
    memory = f"{report.memory_counter.capitalize()}, peak of a rank"
    heads = (
        f"Strategy | #Step, median (quartiles) | #Tokens/s | #{memory} | #Sent per step and rank "
        "| #Final loss | #Losses differ by | #Runs"
    )
    rows: list[tuple[str, ...]] = []
    for t in row_texts(report):
        name = f"{t.variant}: {t.strategy}"
        rows.append((name, t.step, t.tokens, t.memory, t.sent, t.loss, t.parity, t.runs))
        beside = (t.predicted_step, t.predicted_tokens, t.predicted_memory, t.predicted_sent)
        rows.append((f"{t.variant}, predicted", *beside, "", "", ""))
    return table("Measured and predicted values", heads, tuple(rows))


def _spans(
    rows: Sequence[tuple[str, Figure, tuple[float, float] | None]],
    show: Callable[[float], str],
    unit: float,
) -> tuple[tuple[Span, str], ...]:
    """Two rows a strategy: the prediction, and the measured median with its quartiles."""
    found = []
    for name, figure, spread in rows:
        said = figure.predicted
        scaled = Interval(said.low / unit, said.likely / unit, said.high / unit)
        bounds = span_text(said, show)
        found.append((Span(f"{name}, predicted", scaled, show(said.likely)), bounds))
        if figure.measured is not None:
            low, high = spread or (figure.measured, figure.measured)
            own = Interval(low / unit, figure.measured / unit, high / unit)
            text = show(figure.measured)
            between = f"{show(low)} to {show(high)}" if spread else ""
            found.append((Span(f"{name}, measured", own, text, is_measured=True), between))
    return tuple(found)


def _chart(name: str, title: str, unit: str, spans: tuple[tuple[Span, str], ...]) -> Chart:
    """Predicted and measured values of all strategies."""
    rows = tuple((span.name, span.text, bounds) for span, bounds in spans)
    heads = "Strategy | #Likely or median | #80 % interval or quartiles"
    svg = span_plot(title, unit, tuple(span for span, _ in spans))
    return Chart(name=name, title=title, svg=svg, table=table(title, heads, rows))


def _predicted(report: Report, plan: Plan | None) -> Iterator[Section]:
    """Predicted memory and time by term of the strategies that were compared."""
    if plan is None:
        return
    bars = tuple(Bars(row.variant, priced(plan, row.variant)) for row in report.rows)
    charts = (memory_chart(plan, bars), time_chart(plan, bars))
    note = "Terms are predicted one by one, but only their totals can be measured."
    yield Section(id="terms", title="Predicted memory and time by term", note=note, charts=charts)


def _ending(report: Report, files: tuple[TextFile, ...]) -> Iterator[Section]:
    """Failed runs, where it ran, the configs, and the command that repeats it."""
    failed = tuple(TextFile(name=o.cell.name, text=o.error) for o in report.outcomes if o.error)
    if failed:
        yield Section(id="failed", title="Failed runs", files=failed)
    facts = {"cluster": report.cluster} | report.hardware | report.versions
    place = table("Hardware and versions", "Name | Value", tuple(facts.items()))
    yield Section(id="place", title="Where it ran", tables=(place,))
    yield files_section(files)
    yield Section(
        id="repeat",
        title="How to repeat it",
        note="In the run folder.",
        commands=(_command(report),),
    )


def _command(report: Report) -> TextFile:
    """The command that made the report."""
    runs = [o.measurement for o in report.outcomes if o.measurement]
    steps = max((len(run.losses) for run in runs), default=0) - report.warmup_steps
    repeats = max((o.cell.repeat for o in report.outcomes), default=1)
    names = ",".join(row.variant for row in report.rows)
    counted = f" --steps {steps}" if steps > 0 else ""
    text = f"dsforge bench . --stages {names}{counted} --warmup {report.warmup_steps}"
    return TextFile(name="Compare again", text=f"{text} --repeats {repeats}")


def _row(row: Row) -> RowText:
    """The texts of one strategy."""
    step, memory = row.step_s, row.memory_bytes
    return RowText(
        variant=row.variant,
        strategy=row.strategy,
        step=_step(row),
        predicted_step=likely_text(step.predicted, seconds),
        tokens=_beside(row.tokens_per_s, lambda value: f"{value:,.0f}"),
        predicted_tokens=f"{row.tokens_per_s.predicted.likely:,.0f}",
        memory=_beside(memory, gib),
        predicted_memory=likely_text(memory.predicted, gib),
        sent=_beside(row.sent_bytes, gib),
        predicted_sent=gib(row.sent_bytes.predicted.likely),
        loss=NONE if row.final_loss is None else f"{row.final_loss:.4f}",
        parity=NONE if row.parity is None else f"{row.parity:.2g}",
        runs=f"{row.runs} of {row.runs + row.failures}",
    )


def _step(row: Row) -> str:
    """Median step time with its quartiles."""
    if row.step_s.measured is None or row.spread_s is None:
        return NONE
    low, high = row.spread_s
    return f"{seconds(row.step_s.measured)} ({seconds(low)} to {seconds(high)})"


def _beside(figure: Figure, show: Callable[[float], str]) -> str:
    """The measured value, and how it stands to the prediction."""
    if figure.measured is None:
        return NONE
    return show(figure.measured) + (f" ({figure.ratio:.2f}x)" if figure.ratio else "")
