"""Four charts of a plan: memory by term, time by term, the Pareto front, scaling over GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsforge.explain.chart import (
    COLOURS,
    GRID,
    INK,
    LETTER,
    Box,
    Scale,
    area,
    bar,
    dot,
    legend,
    line,
    log_ticks,
    path,
    picture,
    text,
    ticks,
)
from dsforge.plan import Plan, Priced
from dsforge.planner.front import FrontPoint
from dsforge.units import GIB, amount, count, gib, seconds

WIDTH, ROW, TOP, RIGHT = 1140.0, 34.0, 78.0, 100.0
PLOT = Box(80.0, 60.0, 1060.0, 560.0)
MOST_FREE = 12.0  # radius of the mark with the most memory free
MEASURED = "measured"
BOLD_LETTER = 1.15 * LETTER
ROOM = 1.12  # around the marks of a logarithmic axis


class Bars(NamedTuple):
    """A strategy and the estimate that its bars show."""

    name: str
    priced: Priced


class Total(NamedTuple):
    """A measured total, which has no terms."""

    name: str
    value: float  # in the unit of the chart
    text: str


def memory_plot(plan: Plan, rows: tuple[Bars, ...], measured: Total | None = None) -> str:
    """Memory of the fullest rank by term in GiB, against the memory of the card."""
    have = plan.cluster.gpu.memory_bytes / GIB
    terms = [_memory_terms(row.priced) for row in rows]
    ends = [
        (row.priced.memory.device_bytes.low / GIB, row.priced.memory.device_bytes.high / GIB)
        for row in rows
    ]
    title = f"{plan.model.name} on {_machines(plan)}: predicted memory of the fullest rank"
    labels = [gib(row.priced.memory.device_bytes.likely) for row in rows]
    said = "figure: likely device memory; thin line: 80 % interval"
    chart = _Stacked(tuple(r.name for r in rows), terms, ends, labels, "GiB", said)
    return _stacked(title, _with_total(chart, measured), limit=have)


def _memory_terms(priced: Priced) -> dict[str, float]:
    """GiB by term, with the allocator cache: the sum is device memory."""
    terms = {name: value / GIB for name, value in priced.memory.terms}
    kept = priced.memory.device_bytes.likely / GIB - sum(terms.values())
    return {**terms, "allocator cache": max(0.0, kept)}


def time_plot(plan: Plan, rows: tuple[Bars, ...], measured: Total | None = None) -> str:
    """Seconds of a step by term; the whisker is the 80 % interval of the step."""
    terms = [{n.removesuffix("_s"): v for n, v in row.priced.time.terms} for row in rows]
    ends = [(row.priced.time.step_s.low, row.priced.time.step_s.high) for row in rows]
    work = plan.workload
    job = f"{work.global_batch_size} x {work.sequence_length} tokens"
    title = f"{plan.model.name} on {_machines(plan)}: predicted time of a step of {job}"
    labels = [seconds(row.priced.time.step_s.likely) for row in rows]
    said = "figure: likely; thin line: 80 % interval"
    chart = _Stacked(tuple(r.name for r in rows), terms, ends, labels, "seconds", said)
    return _stacked(title, _with_total(chart, measured))


class _Stacked(NamedTuple):
    """Rows of stacked bars with a whisker each."""

    names: tuple[str, ...]
    terms: list[dict[str, float]]
    ends: list[tuple[float, float]]
    labels: list[str]
    unit: str
    said: str


def _with_total(chart: _Stacked, measured: Total | None) -> _Stacked:
    """The chart with a further row for a measured total."""
    if measured is None:
        return chart
    without = [{**terms, MEASURED: 0.0} for terms in chart.terms]
    total = dict.fromkeys(chart.terms[0], 0.0) | {MEASURED: measured.value}
    return chart._replace(
        names=(*chart.names, measured.name),
        terms=[*without, total],
        ends=[*chart.ends, (measured.value, measured.value)],
        labels=[*chart.labels, measured.text],
    )


def _machines(plan: Plan) -> str:
    cluster = plan.cluster
    return f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.name}"


def _stacked(title: str, chart: _Stacked, limit: float = 0.0) -> str:
    """Horizontal stacked bars, one row a strategy; a limit is drawn across all of them."""
    shown = [n for n in chart.terms[0] if any(terms[n] > 0 for terms in chart.terms)]
    left = 30 + BOLD_LETTER * max(map(len, chart.names))
    bottom = TOP + ROW * len(chart.names)
    most = max(limit, *(high for _, high in chart.ends))
    scale = Scale(0.0, most * 1.1, left, WIDTH - RIGHT)
    every = {**dict(zip(chart.terms[0], COLOURS, strict=False)), MEASURED: INK}
    colours = {name: every[name] for name in shown}
    parts = legend(((n.replace("_", " "), colours[n]) for n in shown), 16, 50)
    for tick in ticks(0.0, most * 1.1):
        x = scale.at(tick)
        parts += [
            line((x, TOP - 6), (x, bottom)),
            text(x, bottom + 18, f"{tick:g}", anchor="middle"),
        ]
    parts.append(text((left + WIDTH - RIGHT) / 2, bottom + 40, chart.unit, anchor="middle"))
    for index in range(len(chart.names)):
        parts += _row(chart, index, scale, colours)
    if limit:
        x = scale.at(limit)
        parts.append(
            line((x, TOP - 10), (x, bottom), INK, stroke_dasharray="5 3", stroke_width="2")
        )
        parts.append(text(x, TOP - 14, f"{limit:.0f} {chart.unit} on the card", anchor="middle"))
    parts.append(text(16, bottom + 40, chart.said, size=11))
    return picture(WIDTH, bottom + 52, title, parts)


def _row(chart: _Stacked, index: int, scale: Scale, colours: dict[str, str]) -> Iterator[str]:
    """One strategy: its name, its bar, its whisker, its sum."""
    top = TOP + ROW * index
    yield text(16, top + 19, chart.names[index], bold=index == 0)
    reached = 0.0
    for name, colour in colours.items():
        value = chart.terms[index][name]
        box = Box(scale.at(reached), top + 5, scale.at(reached + value), top + 24)
        if value > 0:
            yield bar(box, colour, f"{name.replace('_', ' ')}: {value:.3g} {chart.unit}")
        reached += value
    low, high = (scale.at(end) for end in chart.ends[index])
    yield line((low, top + 28), (high, top + 28), INK)
    for x in (low, high):
        yield line((x, top + 25), (x, top + 31), INK)
    yield text(WIDTH - 16, top + 19, chart.labels[index], anchor="end")


def front_plot(plan: Plan, points: tuple[FrontPoint, ...]) -> str:
    """Step time against GPU-seconds; colour shows the number of GPUs, size the free memory."""
    sizes = sorted({point.gpus for point in points})
    colours = {gpus: COLOURS[index % len(COLOURS)] for index, gpus in enumerate(sizes)}
    priced = all(point.run is not None and point.run.money is not None for point in points)
    costs = [_cost(point) if priced else point.gpu_s for point in points]
    across = _log_scale([p.step_s.likely for p in points], PLOT.left, PLOT.right)
    up = _log_scale(costs, PLOT.bottom, PLOT.top)
    unit = "price of the run" if priced else "GPU-seconds of a step (cost is proportional)"
    parts = [*_axes(across, up, "seconds of a step", unit)]
    names = ((f"{gpus} GPU{'s' if gpus > 1 else ''}", colours[gpus]) for gpus in sizes)
    parts += legend(names, PLOT.left, 46)
    free = max(1, *(point.free_bytes for point in points))
    marks = sorted(zip(points, costs, strict=True), key=lambda mark: mark[0].chosen)
    for point, cost in marks:
        radius = 3 + (MOST_FREE - 3) * max(0.0, point.free_bytes / free) ** 0.5
        hint = f"{point.label} on {point.gpus}: {seconds(point.step_s.likely)}, "
        hint += f"{amount(cost)}, {gib(point.free_bytes)} free"
        x, y = across.at(point.step_s.likely), up.at(cost)
        parts.append(dot(x, y, radius, colours[point.gpus], hint=hint, ring=point.chosen))
    said = f"ring: chosen for that number of GPUs; size: memory left, at most {gib(free)} of a GPU"
    parts.append(text(PLOT.left, PLOT.bottom + 62, said, size=11))
    title = f"{plan.model.name}, {_job(plan)}: the Pareto front of time, GPUs, cost and memory"
    return picture(WIDTH, PLOT.bottom + 74, title, parts)


def _cost(point: FrontPoint) -> float:
    return point.run.money.likely if point.run and point.run.money else point.gpu_s


def _job(plan: Plan) -> str:
    work = plan.workload
    return f"{work.global_batch_size} x {work.sequence_length} tokens a step, {work.precision}"


def scaling_plot(plan: Plan, points: tuple[FrontPoint, ...]) -> str:
    """Tokens/s by number of GPUs: the choice with its interval, the fastest, ideal scaling."""
    chosen = sorted((p for p in points if p.chosen), key=lambda p: p.gpus)
    fastest = [
        min((p for p in points if p.gpus == one.gpus), key=lambda p: p.step_s.likely)
        for one in chosen
    ]
    each = fastest[0].tokens_per_s.likely / fastest[0].gpus  # of a GPU, where they are fewest
    gpus = [float(one.gpus) for one in chosen]
    rates = [rate for p in chosen for rate in (p.tokens_per_s.low, p.tokens_per_s.high)]
    rates += [point.tokens_per_s.likely for point in fastest]
    across = _log_scale(gpus, PLOT.left, PLOT.right)
    up = _log_scale([*rates, *(each * n for n in gpus)], PLOT.bottom, PLOT.top)
    lows = [(across.at(p.gpus), up.at(p.tokens_per_s.low)) for p in chosen]
    highs = [(across.at(p.gpus), up.at(p.tokens_per_s.high)) for p in chosen]
    ideal = [(across.at(n), up.at(each * n)) for n in gpus]
    entries = (("chosen plan, 80 % interval", COLOURS[0]), ("fastest", COLOURS[5]), ("ideal", INK))
    parts = [
        *_axes(across, up, "GPUs", "tokens/s", marks=gpus),
        area([*lows, *reversed(highs)], COLOURS[0]),
        path(ideal, INK, stroke_dasharray="4 4"),
        *_labelled_line(fastest, each, (across, up), COLOURS[5]),
        *_labelled_line(chosen, each, (across, up), COLOURS[0], said=True),
        *legend(entries, PLOT.left, 46),
        text(PLOT.left, PLOT.bottom + 62, SCALING_NOTE, size=11),
    ]
    title = f"{plan.model.name}, {_job(plan)}: scaling over {plan.cluster.gpu.name}"
    return picture(WIDTH, PLOT.bottom + 74, title, parts)


SCALING_NOTE = "percent: tokens/s per GPU relative to the fastest plan on the fewest GPUs"


def _labelled_line(
    points: list[FrontPoint],
    each: float,
    axes: tuple[Scale, Scale],
    colour: str,
    *,
    said: bool = False,
) -> Iterator[str]:
    """A line through points; `said` labels each with its share of ideal scaling."""
    places = [(axes[0].at(p.gpus), axes[1].at(p.tokens_per_s.likely)) for p in points]
    yield path(places, colour)
    for (x, y), point in zip(places, points, strict=True):
        share = f"{point.tokens_per_s.likely / point.gpus / each:.0%}"
        hint = f"{point.label}: {amount(point.tokens_per_s.likely)} tokens/s, {share} of ideal"
        yield dot(x, y, 5, colour, hint=hint)
        if said:
            yield text(x + 8, y + 18, share, size=11)


def _log_scale(values: Iterable[float], begin: float, end: float) -> Scale:
    found = list(values)
    return Scale(min(found) / ROOM, max(found) * ROOM, begin, end, logarithmic=True)


def _axes(
    across: Scale, up: Scale, below: str, beside: str, *, marks: list[float] | None = None
) -> Iterator[str]:
    """Both axes with their values and units."""
    for value in marks or log_ticks(across.low, across.high):
        x = across.at(value)
        yield line((x, PLOT.top), (x, PLOT.bottom))
        yield text(x, PLOT.bottom + 18, _tick(value), anchor="middle")
    for value in log_ticks(up.low, up.high):
        y = up.at(value)
        yield line((PLOT.left, y), (PLOT.right, y), GRID)
        yield text(PLOT.left - 8, y + 4, _tick(value), anchor="end")
    yield text((PLOT.left + PLOT.right) / 2, PLOT.bottom + 40, below, anchor="middle")
    yield text(18, (PLOT.top + PLOT.bottom) / 2, beside, anchor="middle", turned=True)


def _tick(value: float) -> str:
    return f"{value:g}" if value < 10_000 else count(value)  # noqa: PLR2004
