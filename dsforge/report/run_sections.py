"""Sections of a finished run: measured beside predicted values, loss and step-time curves.

Predicted and measured figures are counted alike: tokens/s of both count the same tokens of a step,
those of the data without padding; memory is compared counter by counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import NamedTuple

from dsforge.estimate.run import rate_of
from dsforge.measurement import Evaluation, Measurement, StepMetrics, quartiles
from dsforge.plan import Plan, Priced
from dsforge.planner.figures import Counter, memory_label
from dsforge.report.blocks import MOST_ROWS, Chart, Section, Stat, Table, table
from dsforge.report.plots import Curve, Span, curve_plot, span_plot
from dsforge.units import Interval, amount, digits, gib, seconds, span_text

COUNTERS: tuple[Counter, ...] = ("allocated", "reserved", "device")
Record = StepMetrics | Evaluation


class Ran(NamedTuple):
    """A finished run and what a plan predicted for it."""

    measurement: Measurement | None
    metrics: tuple[Record, ...] = ()
    priced: Priced | None = None  # none: the run is not one that the plan prices
    plan: Plan | None = None
    why_not: str = ""  # why there is no prediction

    @property
    def steps(self) -> tuple[StepMetrics, ...]:
        """Metrics of optimizer steps."""
        return tuple(record for record in self.metrics if isinstance(record, StepMetrics))


class Compared(NamedTuple):
    """A predicted and a measured quantity, counted alike."""

    name: str
    predicted: Interval
    measured: float
    text: Callable[[float], str]  # of a value, with its unit
    scope: str


def run_sections(ran: Ran) -> tuple[Section, ...]:
    """Measured beside predicted, curves, and where the run took place."""
    found = [*_comparison(ran), *_curves(ran)]
    if ran.measurement is not None:
        facts = {**ran.measurement.hardware, **ran.measurement.versions}
        rows = tuple(facts.items())
        place = table("Hardware and versions", "Name | Value", rows)
        found.append(Section(id="place", title="Where it ran", tables=(place,)))
    return tuple(found)


def run_stats(ran: Ran) -> tuple[Stat, ...]:
    """Measured step time, rate, memory and the last losses."""
    stats = []
    if ran.measurement is not None:
        beside: dict[str, Compared] = {}
        if ran.priced is not None and ran.plan is not None:
            beside = {c.name: c for c in compared(ran.plan, ran.priced, ran.measurement)}
        for name, value in _measured(ran.measurement):
            said = beside.get(name)
            note = f"predicted {said.text(said.predicted.likely)}" if said else ""
            stats.append(Stat(label=f"Measured {name}", value=value, note=note))
    if ran.steps:
        last = ran.steps[-1]
        stats.append(
            Stat(label="Training loss", value=f"{last.loss:.4f}", note=f"at step {last.step:,}")
        )
    return tuple(stats)


def _measured(run: Measurement) -> Iterator[tuple[str, str]]:
    step_s = median(run.step_s)
    yield "step time", seconds(step_s)
    yield "tokens/s", amount(run.tokens_per_step / step_s)


def compared(plan: Plan, priced: Priced, run: Measurement) -> tuple[Compared, ...]:
    """Each quantity that is both predicted and measured."""
    on_cpu, memory, step = plan.cluster.gpu.is_cpu, priced.memory, priced.time.step_s
    step_s, tokens = median(run.step_s), run.tokens_per_step
    rate = rate_of(tokens, step)
    found = [
        Compared("step time", step, step_s, seconds, "median of the counted steps"),
        Compared(
            "tokens/s",
            rate,
            tokens / step_s,
            amount,
            f"all ranks; both count {tokens:,.0f} tokens per step, without padding",
        ),
    ]
    if on_cpu:
        label, size = memory_label("device", on_cpu=True), run.memory.host_bytes
        scope = "peak of the fullest rank"
        found.append(Compared(label, memory.device_bytes, size, gib, scope))
    else:
        for counter in COUNTERS:
            size = getattr(run.memory, f"{counter}_bytes")
            if size:
                span: Interval = getattr(memory, f"{counter}_bytes")
                scope = "peak of the fullest rank" if counter != "device" else "at the end"
                label = memory_label(counter, on_cpu=False)
                found.append(Compared(label, span, size, gib, scope))
    sent = float(priced.time.sent_bytes)
    if sent:
        span = Interval(sent, sent, sent)
        scope = "by one rank in a step"
        found.append(Compared("sent", span, run.sent_bytes, gib, scope))
    return tuple(found)


def _comparison(ran: Ran) -> Iterator[Section]:
    """Measured values, beside the prediction where there is one."""
    run = ran.measurement
    if run is None:
        return
    if ran.plan is None or ran.priced is None:
        rows = tuple((*each, "-") for each in _measured(run))
        yield Section(
            id="measured",
            title="Measured",
            note=ran.why_not,
            tables=(table("Measured values", "Quantity | #Measured | #Predicted", rows),),
        )
        return
    found = compared(ran.plan, ran.priced, run)
    yield Section(
        id="measured",
        title="Predicted and measured",
        note=f"Run under {ran.priced.strategy.label()}; the first {run.warmup_steps} steps are not "
        "counted. Terms are predicted one by one, but only their totals can be measured.",
        charts=(_ratio_chart(found),),
    )


def _ratio_chart(found: tuple[Compared, ...]) -> Chart:
    """Measured over predicted, with the 80 % interval of the prediction."""
    spans = []
    for each in found:
        likely = each.predicted.likely or 1.0
        ends = Interval(each.predicted.low / likely, 1.0, each.predicted.high / likely)
        ratio = each.measured / likely
        spans.append(Span(f"{each.name}, predicted", ends, each.text(likely)))
        exact = Interval(ratio, ratio, ratio)
        shown = f"{each.text(each.measured)} ({ratio:.2f}x)"
        spans.append(Span(f"{each.name}, measured", exact, shown, is_measured=True))
    rows = tuple(
        (
            each.name,
            each.text(each.predicted.likely),
            span_text(each.predicted, each.text),
            each.text(each.measured),
            f"{each.measured / each.predicted.likely:.2f}x" if each.predicted.likely else "-",
            each.scope,
        )
        for each in found
    )
    heads = "Quantity | #Predicted | #80 % interval | #Measured | #Measured / predicted | Scope"
    title = "Measured relative to predicted values"
    return Chart(
        name="measured",
        title=title,
        svg=span_plot(title, "relative to the likely prediction", tuple(spans), 1.0),
        table=table(title, heads, rows),
    )


def _curves(ran: Ran) -> Iterator[Section]:
    """Loss, and step time with its prediction, over optimizer steps."""
    steps = ran.steps
    losses = [(record.step, record.loss) for record in steps]
    held_out = [(r.step, r.validation_loss) for r in ran.metrics if isinstance(r, Evaluation)]
    times = [(record.step, record.step_s) for record in steps]
    if not steps and ran.measurement is not None:
        losses = list(enumerate(ran.measurement.losses, start=1))
        begin = ran.measurement.warmup_steps + 1
        times = list(enumerate(ran.measurement.step_s, start=begin))
    curves = (Curve("training loss", tuple(losses)), Curve("validation loss", tuple(held_out)))
    if losses or held_out:
        chart = curve_chart("loss", "Loss", "loss", tuple(c for c in curves if c.points))
        note = "Mean loss per answer token of the global batch, before the step."
        yield Section(id="loss", title="Loss", note=note, charts=(chart,))
    if times:
        band = ran.priced.time.step_s if ran.priced else None
        shown = (Curve("measured step time", tuple(times)),)
        chart = curve_chart("step-time", "Step time", "seconds", shown, band=band)
        note = f"Median {seconds(median(y for _, y in times))}, {_quartiles(times)}."
        yield Section(id="step-time", title="Step time", note=note, charts=(chart,))


def _quartiles(points: list[tuple[int, float]]) -> str:
    low, high = quartiles([y for _, y in points]) or (0.0, 0.0)
    return f"quartiles {seconds(low)} and {seconds(high)}"


def curve_chart(
    name: str, title: str, unit: str, curves: tuple[Curve, ...], *, band: Interval | None = None
) -> Chart:
    """Curves over steps, with the values behind them."""
    return Chart(
        name=name,
        title=title,
        svg=curve_plot(title, unit, curves, band),
        table=_values(title, unit, curves),
    )


def _values(title: str, unit: str, curves: tuple[Curve, ...]) -> Table:
    """Values by step; of long curves evenly spaced steps, the first and the last among them."""
    by_curve = [dict(curve.points) for curve in curves]
    steps = sorted({step for values in by_curve for step in values})
    shown = list(_spread(steps))
    heads = " | ".join(("Step", *(f"#{curve.name}, {unit}" for curve in curves)))
    rows = tuple(
        (f"{step:g}", *(digits(v[step], 4) if step in v else "" for v in by_curve))
        for step in shown
    )
    said = f"{title}, {len(shown)} of {len(steps)} steps" if len(shown) < len(steps) else title
    return table(said, heads, rows)


def _spread(steps: list[float]) -> Iterable[float]:
    """At most `MOST_ROWS` evenly spaced values, both ends included."""
    if len(steps) <= MOST_ROWS:
        return steps
    last = len(steps) - 1
    return [steps[round(place * last / (MOST_ROWS - 1))] for place in range(MOST_ROWS)]
