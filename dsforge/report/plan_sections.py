"""Sections of a plan: choice and reasons, memory and time by term, strategies, a step, files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dsforge import __version__
from dsforge.estimate.run import DAY_S
from dsforge.explain.plots import Bars, Total, memory_plot, time_plot
from dsforge.plan import Plan, Priced
from dsforge.planner.figures import fit, headline, memory_label, room
from dsforge.planner.pricing import HOST_SHARE, device_room, room_left
from dsforge.render.bundles import bundles
from dsforge.render.report import ReportContext, Row, report_context
from dsforge.report.blocks import Chart, Report, Section, Stat, Table, TextFile, gauge, table
from dsforge.report.step_plot import step_picture
from dsforge.units import Interval, amount, count, gib, seconds, span_text

MOST_BARS = 8  # strategies in the charts of terms


def plan_report(plan: Plan, files: tuple[TextFile, ...]) -> Report:
    """The report of a plan alone; `files` are those of its run folder."""
    context = report_context(plan, bundles(plan))
    return Report(
        dsforge=__version__,
        title=context.title,
        headline=headline(plan),
        verdict=fit(plan.cluster, plan.choice),
        choice=plan.strategy.label(),
        stats=plan_stats(plan),
        sections=(*plan_sections(plan, context), files_section(files), repeat_section(context)),
    )


class Totals(NamedTuple):
    """Measured totals beside the predicted terms; none where nothing was measured."""

    memory: Total | None = None
    step: Total | None = None


NO_TOTALS = Totals()


def plan_sections(
    plan: Plan, context: ReportContext, totals: Totals = NO_TOTALS
) -> tuple[Section, ...]:
    """Sections of the prediction, from the choice to the timeline."""
    return (
        _choice(context),
        _memory(plan, context, totals.memory),
        _time(plan, context, totals.step),
        _strategies(context),
        _step(plan),
    )


def plan_stats(plan: Plan) -> tuple[Stat, ...]:
    """Memory, step time, rate, host RAM and, with a token budget, days and cost."""
    cluster, memory, step = plan.cluster, plan.choice.memory, plan.choice.time.step_s
    device, on_cpu = memory.device_bytes, cluster.gpu.is_cpu
    have = device_room(cluster, memory.host_bytes)
    unit = "CPU rank" if on_cpu else "GPU"
    found = [
        Stat(
            label=f"Predicted {memory_label('device', on_cpu=on_cpu)} per {unit}",
            value=gib(device.likely),
            span=span_text(device, gib),
            note=f"of {gib(have)}, {room(cluster, plan.choice)}",
            gauge=gauge(device.low, device.likely, device.high, have),
        ),
        Stat(
            label="Predicted step time",
            value=seconds(step.likely),
            span=span_text(step, seconds),
        ),
        Stat(
            label=f"Predicted tokens/s per {unit}",
            value=amount(plan.choice.time.tokens_per_s_per_gpu),
            note=f"every sequence full; MFU {plan.speed.mfu.likely:.0%}",
        ),
    ]
    if not on_cpu:
        usable = cluster.host_memory_bytes * HOST_SHARE
        lacks = "" if room_left(cluster, memory)["host"] >= 0 else ": too much"
        note = f"of {gib(usable)} usable{lacks}"
        found.append(
            Stat(label="Predicted host RAM per node", value=gib(memory.host_bytes.peak), note=note)
        )
    return (*found, *_run_stats(plan))


def _run_stats(plan: Plan) -> Iterable[Stat]:
    """Days and cost of the token budget."""
    run = plan.run
    if run is None:
        return
    note = f"for {count(run.tokens)} tokens, {run.steps:,} steps"
    if run.days.likely < 1:
        spent = Interval(run.days.low * DAY_S, run.days.likely * DAY_S, run.days.high * DAY_S)
        whole, span = seconds(spent.likely), span_text(spent, seconds)
    else:
        whole, span = f"{amount(run.days.likely)} days", span_text(run.days, amount)
    yield Stat(label="Duration of the run", value=whole, span=span, note=note)
    if run.money is not None:
        price = f"at {plan.cluster.gpu_hour_price:g} per GPU-hour"
        money = amount(run.money.likely)
        yield Stat(label="Cost", value=money, span=span_text(run.money, amount), note=price)


def _choice(context: ReportContext) -> Section:
    """The decision and the reasons, those with the largest effect first."""
    settings = tuple((row.name, row.value) for row in context.choice)
    kinds = (
        ("Warning: ", context.warnings),
        ("", context.reasons),
        ("Assumed: ", context.assumed),
    )
    return Section(
        id="choice",
        title="Choice and reasons",
        note="Reasons are sorted by their effect on the step time; rule ids are in brackets.",
        lines=tuple(f"{kind}{r.message} [{r.rule}]" for kind, rs in kinds for r in rs),
        tables=(
            table("The job", "Input | Value | Details", _cells(context.facts)),
            table("The choice", "Setting | Value", settings),
        ),
    )


def _cells(rows: Iterable[Row]) -> tuple[tuple[str, ...], ...]:
    return tuple((row.name, row.value, row.note) for row in rows)


def bars_of(plan: Plan) -> tuple[Bars, ...]:
    """The choice and the other configurations that are priced."""
    others = [
        Bars(variant.name, variant.priced)
        for variant in plan.variants
        if variant.priced is not None and variant.priced.strategy != plan.strategy
    ]
    return (Bars(f"choice: {plan.strategy.label()}", plan.choice), *others)[:MOST_BARS]


def _memory(plan: Plan, context: ReportContext, total: Total | None) -> Section:
    """Memory by term: a picture of all strategies, the terms of the choice in words."""
    return Section(
        id="memory",
        title="Memory by term",
        note="Predicted memory of the fullest rank at the peak of a step.",
        charts=(memory_chart(plan, bars_of(plan), total),),
        tables=(table("Memory of the choice", "Term | #Bytes | Meaning", _cells(context.memory)),),
    )


def memory_chart(plan: Plan, bars: tuple[Bars, ...], total: Total | None = None) -> Chart:
    """Memory by term of strategies."""
    title = "Predicted memory of the fullest rank by term"
    label = memory_label("device", on_cpu=plan.cluster.gpu.is_cpu)

    def sizes(priced: Priced) -> dict[str, str]:
        terms = {name.replace("_", " "): gib(value) for name, value in priced.memory.terms}
        span = priced.memory.device_bytes
        return {**terms, label: gib(span.likely), "80 % interval": span_text(span, gib)}

    return Chart(
        name="memory",
        title=title,
        svg=memory_plot(plan, bars, total),
        table=_by_strategy(title, {bar.name: sizes(bar.priced) for bar in bars}, label, total),
    )


def time_chart(plan: Plan, bars: tuple[Bars, ...], total: Total | None = None) -> Chart:
    """Time by term of strategies."""
    title = "Predicted time of an optimizer step by term"

    def spans(priced: Priced) -> dict[str, str]:
        terms = {name.removesuffix("_s"): seconds(value) for name, value in priced.time.terms}
        span = priced.time.step_s
        return {**terms, "step": seconds(span.likely), "80 % interval": span_text(span, seconds)}

    return Chart(
        name="time",
        title=title,
        svg=time_plot(plan, bars, total),
        table=_by_strategy(title, {bar.name: spans(bar.priced) for bar in bars}, "step", total),
    )


def _by_strategy(
    title: str, values: dict[str, dict[str, str]], whole: str, total: Total | None
) -> Table:
    """A row for each strategy and a measured total, a column for each term and their sum."""
    names = list(next(iter(values.values())))
    rows = [(strategy, *found.values()) for strategy, found in values.items()]
    if total is not None:
        rows.append((total.name, *(total.text if name == whole else "" for name in names)))
    heads = " | ".join(("Strategy", *(f"#{name}" for name in names)))
    return table(title, heads, tuple(rows))


def _time(plan: Plan, context: ReportContext, total: Total | None) -> Section:
    """Time by term, rates, and the whole run."""
    whole = (
        table("Predicted run", "Quantity | #low / likely / high | Scope", _cells(context.run)),
    )
    return Section(
        id="time",
        title="Time by term",
        note="Predicted time of one optimizer step, every sequence full.",
        charts=(time_chart(plan, bars_of(plan), total),),
        tables=(
            table("Time of the choice", "Term | #Time | Meaning", _cells(context.time)),
            *(whole if context.run else ()),
        ),
    )


def _strategies(context: ReportContext) -> Section:
    """The other configurations of the folder, and why each was not chosen."""
    rows = tuple((v.file, v.label, v.memory, v.step, v.verdict) for v in context.variants)
    columns = f"File | Strategy | #{context.memory_label} | #Step time | Compared with the choice"
    return Section(
        id="strategies",
        title="Comparison of strategies",
        tables=(table("Predicted memory and time of each strategy", columns, rows),),
    )


def _step(plan: Plan) -> Section:
    """Where the time of a step goes."""
    found = step_picture(plan)
    whole = sum(found.seconds.values()) or 1.0
    rows = [(name, "in turn", s) for name, s in found.seconds.items()]
    rows += [(name, "overlapped", s) for name, s in found.overlapped.items()]
    cells = tuple((name, how, seconds(s), f"{s / whole:.1%}") for name, how, s in rows)
    title = "Seconds of a step by activity, slowest rank"
    chart = Chart(
        name="step",
        title="Timeline of a step",
        svg=found.svg,
        table=table(title, "Activity | Lane | #Time | #Share of the busy time", cells),
    )
    return Section(
        id="step",
        title="Timeline of a step",
        note="The predicted terms in time; the last stage is the slowest, the others are the mean.",
        charts=(chart,),
    )


def files_section(files: tuple[TextFile, ...]) -> Section:
    """Every config, to be copied."""
    note = "Secrets are masked." if files else "No files were found next to the plan."
    return Section(id="files", title="Configs", note=note, files=files)


def repeat_section(context: ReportContext, *commands: TextFile) -> Section:
    """Commands that make the folder and start the run again."""
    folder = TextFile(
        name="Write the run folder again from plan.json",
        text="python -c 'import dsforge; "
        'dsforge.gen(dsforge.load_plan("plan.json"), out="again")\'',
    )
    ways = tuple(
        TextFile(name=f"Launch {way.name} ({way.note})" if way.note else way.name, text=way.value)
        for way in context.chosen.ways
    )
    return Section(
        id="repeat",
        title="How to repeat it",
        note=f"With dsforge {__version__}, in the run folder.",
        commands=(folder, *ways, *commands),
    )
