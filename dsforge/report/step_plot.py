"""A step as a picture: what each pipeline stage computes and waits for, and what overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from dsforge.estimate.family_costs import family_costs
from dsforge.explain.chart import COLOURS, GRID, LETTER, Scale, legend, line, picture, text, ticks
from dsforge.explain.timeline import AT_WORK, Slice, timeline
from dsforge.plan import Plan

WIDTH, ROW, TOP, RIGHT = 1140.0, 26.0, 84.0, 24.0
MOST_STAGES = 8  # that are drawn: the first ones and the last, which is the slowest
NARROWEST = 1.2  # pixels of a mark; shorter slices are drawn with their neighbours
COMPUTE = "products and kernels"


class StepPicture(NamedTuple):
    """The picture of a step and the seconds of the slowest stage by activity."""

    svg: str
    seconds: dict[str, float]
    overlapped: dict[str, float]


class _Mark(NamedTuple):
    """An activity on a lane."""

    name: str
    start_s: float
    end_s: float


def step_picture(plan: Plan) -> StepPicture:
    """The step of a plan's choice, as the prediction lays it out."""
    costs = family_costs(plan.model, plan.cluster, plan.workload, plan.strategy)
    last = plan.strategy.layout.pipeline_parallel_size - 1
    stages = frozenset({*range(min(last, MOST_STAGES - 1)), last})
    slices = [s for s in timeline(costs, plan.strategy, stages) if s.stage in stages]
    lanes = {
        key: list(_named(pieces))
        for key, pieces in groupby(
            sorted(slices, key=lambda p: (p.stage, p.lane)), lambda p: (p.stage, p.lane)
        )
    }
    work = _totals(lanes[last, AT_WORK])
    beside = _totals(lanes.get((last, 1), []))
    names = sorted({**work, **beside}, key=lambda name: -work.get(name, beside.get(name, 0.0)))
    colours = dict(zip(names, COLOURS, strict=False))
    return StepPicture(_drawn(plan, lanes, colours, last), work, beside)


def _named(pieces: Iterable[Slice]) -> Iterator[_Mark]:
    """The innermost slices in order of time; compute says whether it is forward or backward."""
    listed = sorted(pieces, key=lambda piece: (piece.start_s, piece.depth))
    way = ""
    for place, piece in enumerate(listed):
        inner = place + 1 < len(listed) and listed[place + 1].depth > piece.depth
        if piece.depth == 0:
            way = piece.name.split()[0]
        if not inner:
            name = f"{way}: {piece.name}" if piece.depth and piece.name == COMPUTE else piece.name
            yield _Mark(name, piece.start_s, piece.end_s)


def _totals(marks: Iterable[_Mark]) -> dict[str, float]:
    """Seconds by activity."""
    found: dict[str, float] = {}
    for mark in marks:
        found[mark.name] = found.get(mark.name, 0.0) + mark.end_s - mark.start_s
    return found


def _drawn(
    plan: Plan, lanes: dict[tuple[int, int], list[_Mark]], colours: dict[str, str], last: int
) -> str:
    """All lanes below each other over one axis of seconds."""
    names = {key: _lane_name(key, last) for key in lanes}
    left = 24 + LETTER * max(map(len, names.values()))
    end_s = max(mark.end_s for marks in lanes.values() for mark in marks)
    along, bottom = Scale(0.0, end_s or 1.0, left, WIDTH - RIGHT), TOP + ROW * len(lanes)
    parts = []
    for tick in ticks(0.0, end_s or 1.0):
        x = along.at(tick)
        parts += [
            line((x, TOP - 4), (x, bottom), GRID),
            text(x, bottom + 18, f"{tick:g}", anchor="middle"),
        ]
    for place, (key, marks) in enumerate(lanes.items()):
        top = TOP + ROW * place
        parts.append(text(16, top + 17, names[key]))
        parts += _lane(marks, colours, along, top + 4)
    parts.append(text((left + WIDTH - RIGHT) / 2, bottom + 40, "seconds", anchor="middle"))
    rows = _legend(colours)
    return picture(WIDTH, bottom + 52, f"A step of {plan.strategy.label()}", [*rows, *parts])


def _legend(colours: dict[str, str]) -> Iterator[str]:
    """The names of the activities in two rows."""
    entries = list(colours.items())
    half = (len(entries) + 1) // 2
    yield from legend(entries[:half], 16, 46)
    yield from legend(entries[half:], 16, 66)


def _lane_name(key: tuple[int, int], last: int) -> str:
    stage, lane = key
    name = f"stage {stage}" if last else "every rank"
    return name if lane == AT_WORK else f"{name}, overlapped"


def _lane(marks: list[_Mark], colours: dict[str, str], along: Scale, top: float) -> Iterator[str]:
    """One path for each activity of a lane."""
    boxes: dict[str, list[str]] = {}
    for mark in _merged(marks, NARROWEST * along.high / (along.end - along.begin)):
        begin, end = along.at(mark.start_s), along.at(mark.end_s)
        box = f"M{begin:.1f} {top:.0f}h{max(0.3, end - begin):.1f}v18h{begin - end:.1f}z"
        boxes.setdefault(mark.name, []).append(box)
    for name, found in boxes.items():
        yield f'<path d="{"".join(found)}" fill="{colours.get(name, COLOURS[6])}"/>'


def _merged(marks: list[_Mark], least_s: float) -> Iterator[_Mark]:
    """Marks that can be seen: runs of short ones become one, named after most of its time."""
    run: list[_Mark] = []
    for mark in marks:
        if run and max(mark.start_s - run[-1].end_s, run[-1].end_s - run[0].start_s) >= least_s:
            yield _one(run)
            run = []
        run.append(mark)
    if run:
        yield _one(run)


def _one(run: list[_Mark]) -> _Mark:
    totals = _totals(run)
    return _Mark(max(totals, key=lambda name: totals[name]), run[0].start_s, run[-1].end_s)
