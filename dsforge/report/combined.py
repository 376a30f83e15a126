"""Reports of run folders, and several reports as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from dsforge import __version__
from dsforge.explain.plots import Total
from dsforge.plan import Plan
from dsforge.planner.figures import fit, headline
from dsforge.render.bundles import bundles
from dsforge.render.report import report_context
from dsforge.report.blocks import Chart, Report, Section, Stat, Table, TextFile, table
from dsforge.report.plan_sections import (
    Totals,
    files_section,
    plan_report,
    plan_sections,
    plan_stats,
    repeat_section,
)
from dsforge.report.run_folder import RunFolder
from dsforge.report.run_sections import Ran, run_sections, run_stats
from dsforge.units import GIB, gib, seconds


def run_report(found: RunFolder) -> Report:
    """The report of a run folder: measured values first, then the plan."""
    if found.plan is None:
        return _output_report(found.ran or Ran(None))
    if found.ran is None:
        return plan_report(found.plan, found.files)
    return _measured_report(found.plan, found.ran, found.files)


def _measured_report(plan: Plan, ran: Ran, files: tuple[TextFile, ...]) -> Report:
    """A plan and its run."""
    context = report_context(plan, bundles(plan))
    first, *others = plan_sections(plan, context, _totals(plan, ran))
    return Report(
        dsforge=__version__,
        title=context.title,
        headline=headline(plan),
        verdict=fit(plan.cluster, plan.choice),
        choice=_choice(plan, ran),
        stats=(*run_stats(ran), *plan_stats(plan)),
        sections=(
            first,
            *run_sections(ran),
            *others,
            files_section(files),
            repeat_section(context),
        ),
    )


def _choice(plan: Plan, ran: Ran) -> str:
    """The choice of the plan, and what was run where that is another strategy."""
    chosen = plan.strategy.label()
    if ran.priced is None or ran.priced.strategy == plan.strategy:
        return chosen
    return f"{chosen}; this run: {ran.priced.strategy.label()}"


def _totals(plan: Plan, ran: Ran) -> Totals:
    """Measured totals of a run that the plan prices, for the charts of terms."""
    run = ran.measurement
    if run is None or ran.priced is None:
        return Totals()
    name, step_s = f"measured: {ran.priced.strategy.label()}", median(run.step_s)
    used = run.memory.host_bytes if plan.cluster.gpu.is_cpu else run.memory.device_bytes
    memory = Total(name, used / GIB, gib(used))
    return Totals(memory, Total(name, step_s, seconds(step_s)))


def _output_report(ran: Ran) -> Report:
    """A run without a plan."""
    run = ran.measurement
    ranks = f"ZeRO stage {run.zero_stage} on {run.world_size} ranks" if run else "unfinished run"
    return Report(
        dsforge=__version__,
        title=f"Training run: {ranks}",
        headline=f"{len(ran.steps):,} optimizer steps in metrics.jsonl",
        verdict="measured",
        choice=ranks,
        stats=run_stats(ran),
        sections=run_sections(ran),
    )


def combined(reports: tuple[Report, ...]) -> Report:
    """One report: the head of the first, then the sections of all of them."""
    first, *others = reports
    if not others:
        return first
    parts = [
        section
        for number, report in enumerate(others, start=2)
        for section in _numbered(report, number)
    ]
    return replace(first, sections=(*first.sections, *parts))


def _numbered(report: Report, number: int) -> Iterable[Section]:
    """The sections of a further report under names of their own, its key figures first."""
    yield Section(
        id=f"source-{number}",
        title=report.title,
        lines=(report.headline, report.choice),
        tables=(_figures(report.stats),),
    )
    for section in report.sections:
        charts = tuple(_renamed(chart, number) for chart in section.charts)
        title = f"{report.title}: {section.title}"
        yield replace(section, id=f"{section.id}-{number}", title=title, charts=charts)


def _figures(stats: tuple[Stat, ...]) -> Table:
    rows = tuple((stat.label, stat.value, stat.span, stat.note) for stat in stats)
    return table("Key figures", "Quantity | #Value | #80 % interval | Note", rows)


def _renamed(chart: Chart, number: int) -> Chart:
    return replace(chart, name=f"{chart.name}-{number}")
