"""The timeline of a step: as long as the step, nested, and from the terms of the prediction."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from planning import DISK, ask, cluster, strategy, workload

from dsforge.estimate.family_costs import family_costs
from dsforge.explain.pipeline import Shape, played
from dsforge.explain.timeline import AT_WORK, Slice, timeline
from dsforge.explain.trace import step_trace
from dsforge.plan import Plan
from dsforge.planner.pricing import price
from dsforge.strategy import Strategy

ETHERNET = cluster(2, inter="10gbe", nvme=DISK)
MEGATRON = {"back_end": "megatron", "zero_stage": 1, "sequence_parallel": True}
CASES: dict[str, dict[str, Any]] = {
    "zero1": {"zero_stage": 1},
    "zero2-accumulating": {"zero_stage": 2},
    "zero3": {"zero_stage": 3, "recompute": "full"},
    "zero3-offloaded": {
        "zero_stage": 3,
        "offload_optimizer": "nvme",
        "offload_parameters": "nvme",
    },
    "pipeline": {**MEGATRON, "dp": 2, "tp": 2, "pp": 4},
    "interleaved": {**MEGATRON, "dp": 4, "pp": 4, "virtual_stages": 4},
    "fewer-batches-than-stages": {**MEGATRON, "dp": 2, "pp": 8, "micro_batch_size": 16},
}


def planned(**named: Any) -> Plan:
    """A plan of Llama 2 7B on two nodes with that strategy, legal or not."""
    request = ask("llama-2-7b", ETHERNET, workload())
    choice: Strategy = strategy(**{"dp": 16, **named})
    priced = price(request.model, request.cluster, request.workload, choice)
    return Plan.model_construct(
        model=request.model, cluster=ETHERNET, workload=request.workload, choice=priced
    )


def slices_of(plan: Plan) -> tuple[Slice, ...]:
    """The timeline of a plan."""
    costs = family_costs(plan.model, plan.cluster, plan.workload, plan.strategy)
    return timeline(costs, plan.strategy)


@pytest.mark.parametrize("named", CASES.values(), ids=CASES)
def test_the_trace_spans_the_predicted_step(named: dict[str, Any]) -> None:
    """From 0 to the step, to the nanosecond that a trace is written in."""
    plan = planned(**named)
    events = [e for e in json.loads(step_trace(plan))["traceEvents"] if e["ph"] == "X"]

    assert min(event["ts"] for event in events) == 0
    assert max(event["ts"] + event["dur"] for event in events) / 1e6 == pytest.approx(
        plan.choice.time.step_s.likely, abs=2e-9
    )


@pytest.mark.parametrize("named", CASES.values(), ids=CASES)
def test_slices_of_a_thread_nest(named: dict[str, Any]) -> None:
    """No slice begins inside another one and ends after it: viewers would draw nonsense."""
    threads = defaultdict(list)
    for event in json.loads(step_trace(planned(**named)))["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            threads[event["tid"]].append((start, start + round(event["dur"] * 1000)))
    crossing = []
    for spans in threads.values():
        open_until: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            if open_until and end > open_until[-1]:
                crossing.append((start, end))
            open_until.append(end)

    assert crossing == []


@pytest.mark.parametrize("named", CASES.values(), ids=CASES)
def test_what_the_slowest_stage_does_sums_to_the_terms(named: dict[str, Any]) -> None:
    """Kernels are the compute term, waits and collectives the communication and offload terms."""
    plan = planned(**named)
    last = plan.strategy.layout.pipeline_parallel_size - 1
    sums: dict[str, float] = defaultdict(float)
    around = [p for p in slices_of(plan) if p.stage == last and p.lane == AT_WORK]
    for piece in around:
        sums[piece.name] += piece.end_s - piece.start_s
    terms = plan.choice.time.terms
    waits = sum(s for name, s in sums.items() if name.startswith(("waits", "send", "collectives")))

    assert sums["products and kernels"] + sums["recompute"] == pytest.approx(terms.compute_s)
    assert waits == pytest.approx(terms.communication_s + terms.offload_s)


def test_weights_are_gathered_after_the_optimizer() -> None:
    """ZeRO-1 hands out the new weights once they exist."""
    pieces = slices_of(planned(zero_stage=1))
    optimizer = next(p for p in pieces if p.name == "optimizer on the device")
    gather = next(p for p in pieces if p.name == "waits: updated weights gathered")

    assert gather.start_s == pytest.approx(optimizer.end_s)


@pytest.mark.parametrize(("stages", "batches", "chunks"), [(4, 8, 1), (4, 2, 1), (4, 8, 2)])
def test_no_stage_starts_before_its_neighbour_is_done(
    stages: int, batches: int, chunks: int
) -> None:
    """Every piece runs once, after what it waits for, one at a time on each stage."""
    shape = Shape(stages, batches, chunks)
    slots = {slot.piece: slot for slot in played(shape, [1.0] * stages, [2.0] * stages)}
    late = [
        slot
        for slot in slots.values()
        if (before := shape.awaited(slot.piece)) and slots[before].end_s > slot.start_s
    ]

    assert len(slots) == 2 * stages * batches * chunks
    assert late == []


def test_uniform_stages_take_the_textbook_bubble() -> None:
    """(m + (p-1)/v) micro batches of time (Narayanan et al. 2021, section 2.2)."""
    slots = played(Shape(4, 8, 2), [0.5] * 4, [1.0] * 4)

    assert max(slot.end_s for slot in slots) == pytest.approx((8 + 3 / 2) * 3)
