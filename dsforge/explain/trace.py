"""A step as JSON of Chrome's trace format, which Perfetto and chrome://tracing open.

One process, and for each pipeline stage a thread of what it computes and waits for; collectives
beside compute have a thread of their own. Times are whole nanoseconds, written in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from dsforge.estimate.family_costs import family_costs
from dsforge.explain.timeline import AT_WORK, Slice, timeline
from dsforge.plan import Plan

LANES = ("", ": collectives overlapped with compute")
MOST_EVENTS = 400_000  # about 40 MB of text; parts are left out beyond it, then stages


def step_trace(plan: Plan) -> str:
    """The chosen strategy's step as trace JSON text; it spans the predicted step."""
    costs = family_costs(plan.model, plan.cluster, plan.workload, plan.strategy)
    slices = _drawn(timeline(costs, plan.strategy))
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "strategy": plan.strategy.label(),
            "step_s": plan.choice.time.step_s.likely,
            "stages drawn": sorted({piece.stage for piece in slices}),
            "note": "The last stage is drawn with the time of the slowest one, the others with "
            "the mean.",
        },
        "traceEvents": [*_names(plan, slices), *map(_event, slices)],
    }
    return json.dumps(document)


def _drawn(slices: tuple[Slice, ...]) -> list[Slice]:
    """All slices, or as many as a viewer takes: without parts, then only some stages."""
    found = list(slices)
    if len(found) > MOST_EVENTS:
        found = [piece for piece in found if not piece.depth]
    stages = 1 + max(piece.stage for piece in found)
    step = -(-len(found) // MOST_EVENTS)
    shown = {*range(0, stages, step), stages - 1}
    return [piece for piece in found if piece.stage in shown]


def _thread(stage: int, lane: int) -> int:
    return len(LANES) * stage + lane


def _names(plan: Plan, slices: Iterable[Slice]) -> Iterator[dict[str, Any]]:
    """The process, and the threads that have anything on them."""
    title = f"{plan.model.name}, {plan.strategy.label()}"
    yield _label("process_name", 0, title)
    stages = plan.strategy.layout.pipeline_parallel_size
    for stage, lane in sorted({(piece.stage, piece.lane) for piece in slices}):
        name = f"stage {stage}" if stages > 1 else "every rank"
        yield _label("thread_name", _thread(stage, lane), name + LANES[lane])


def _label(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}


def _event(piece: Slice) -> dict[str, Any]:
    start_ns, end_ns = round(piece.start_s * 1e9), round(piece.end_s * 1e9)
    return {
        "name": piece.name,
        "cat": "work" if piece.lane == AT_WORK else "beside",
        "ph": "X",
        "pid": 0,
        "tid": _thread(piece.stage, piece.lane),
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
    }
