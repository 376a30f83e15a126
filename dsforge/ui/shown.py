"""Answers as the page shows them: every figure as text, and the name that explains it.

The page formats no number itself: what it shows is what the command line prints. Names of figures
are those that `dsforge explain` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from dsforge.constraints.inputs import BACK_END_NAMES
from dsforge.plan import Plan, Rejected, Search
from dsforge.planner.alternatives import Alternative
from dsforge.planner.figures import (
    LABELS,
    Counter,
    decisive,
    figures,
    fit,
    headline,
    memory_label,
    room,
)
from dsforge.planner.front import FrontPoint
from dsforge.planner.pricing import HOST_SHARE, device_room, largest_term, room_left
from dsforge.strategy import Strategy
from dsforge.units import GIB, Interval, amount, count, gib, seconds, some, times

SHOWN_LOSERS = 40
COUNTERS: tuple[Counter, ...] = ("allocated", "reserved", "device")


class Row(NamedTuple):
    """One figure: its label, its text, its bounds, and the name that `explain` knows it by."""

    label: str
    text: str
    figure: str = ""
    value: float = 0.0  # for charts, in the unit of the chart
    low: str = ""
    high: str = ""
    note: str = ""


def shown_plan(plan: Plan) -> dict[str, Any]:
    """One priced plan, from the verdict to the last term."""
    memory, cluster = plan.choice.memory, plan.cluster
    step = plan.choice.time.step_s
    largest = largest_term(memory).replace("_", " ")
    device = memory_label("device", on_cpu=cluster.gpu.is_cpu)
    return {
        "headline": headline(plan),
        "strategy": plan.strategy.label(),
        "words": "; ".join(_words(plan.strategy)),
        "verdict": fit(cluster, plan.choice),
        "room": room(cluster, plan.choice),
        "device": _row("device_likely", device, memory.device_bytes, gib),
        "capacity": gib(device_room(cluster, memory.host_bytes)),
        "capacity_gib": device_room(cluster, memory.host_bytes) / GIB,
        "bounds_gib": [bound / GIB for bound in _ends(memory.device_bytes)],
        "largest": f"largest: {largest}",
        "step": _row("step_likely", "step time", step, seconds),
        "bounds_s": list(_ends(step)),
        "mfu": f"{plan.speed.mfu.likely:.0%}",
        "rate": amount(plan.choice.time.tokens_per_s_per_gpu),
        "sentences": [list(figure) for figure in figures(plan)],
        "assumed": list(decisive(plan)),
        "reasons": [_reason(reason) for reason in plan.choice.reasons],
        "memory": [row._asdict() for row in _memory_rows(plan)],
        "counters": [row._asdict() for row in _counter_rows(plan)],
        "host": [row._asdict() for row in _host_rows(plan)],
        "host_capacity": gib(cluster.host_memory_bytes * HOST_SHARE),
        "host_capacity_gib": cluster.host_memory_bytes * HOST_SHARE / GIB,
        "host_fits": room_left(cluster, memory)["host"] >= 0,
        "time": [row._asdict() for row in _time_rows(plan)],
        "speed": [row._asdict() for row in _speed_rows(plan)],
        "run": [row._asdict() for row in _run_rows(plan)],
    }


def shown_ranking(search: Search, top: int) -> list[dict[str, str]]:
    """The choice, then the plans that fit as surely, the fastest first."""
    best_s = search.plans[0].choice.time.step_s.likely
    return [
        {
            "strategy": plan.strategy.label(),
            "step": seconds(plan.choice.time.step_s.likely),
            "against": _against(plan.choice.time.step_s.likely, best_s),
            "memory": gib(plan.choice.memory.device_bytes.likely),
            "fit": fit(plan.cluster, plan.choice),
            "host": gib(plan.choice.memory.host_bytes.peak),
            "mfu": f"{plan.speed.mfu.likely:.0%}",
            "largest": largest_term(plan.choice.memory).replace("_", " "),
            "largest_figure": largest_term(plan.choice.memory),
        }
        for plan in search.plans[:top]
    ]


def shown_losers(search: Search) -> list[dict[str, str]]:
    """Why the others lost: the first that each rule or shortage struck."""
    first: dict[tuple[str, str], Rejected] = {}
    for lost in search.rejected:
        first.setdefault((lost.rule, lost.strategy.label()), lost)
    return [
        {"strategy": lost.strategy.label(), "why": lost.message, "rule": lost.rule}
        for lost in list(first.values())[:SHOWN_LOSERS]
    ]


def shown_alternatives(found: Iterable[Alternative]) -> list[dict[str, str]]:
    """The fastest plan of each other kind against the choice."""
    return [
        {
            "kind": other.kind,
            "strategy": other.label,
            "step": seconds(other.step_s),
            "against": times(other.slowdown, 1),
            "differs": f"{other.term} {_signed(other.term_s, seconds)}",
            "differs_figure": other.term,
            "memory": _signed(-other.saved_bytes, gib),
        }
        for other in found
    ]


def shown_front(found: Iterable[FrontPoint]) -> list[dict[str, Any]]:
    """The points of the Pareto front, with numbers for the chart."""
    return [
        {
            "strategy": point.label,
            "gpus": point.gpus,
            "chosen": point.chosen,
            "step_s": point.step_s.likely,
            "step": seconds(point.step_s.likely),
            "gpu_seconds": amount(point.gpu_s),
            "free_gib": point.free_bytes / GIB,
            "free": gib(point.free_bytes),
            "days": amount(point.run.days.likely) if point.run else "",
            "cost": amount(point.run.money.likely) if point.run and point.run.money else "",
        }
        for point in found
    ]


def _words(strategy: Strategy) -> Iterator[str]:
    """A strategy without abbreviations."""
    layout = strategy.layout
    yield f"{BACK_END_NAMES[strategy.back_end]}, ZeRO stage {strategy.zero_stage}"
    sizes = (
        ("data", layout.data_parallel_size),
        ("tensor", layout.tensor_parallel_size),
        ("pipeline", layout.pipeline_parallel_size),
        ("context", layout.context_parallel_size),
        ("expert", layout.expert_parallel_size),
    )
    yield ", ".join(f"{name} parallel {size:,}" for name, size in sizes if size > 1) or "one GPU"
    steps = strategy.gradient_accumulation_steps
    samples = some(strategy.micro_batch_size, "sample")
    yield f"micro batches of {samples}, {steps:,} per step"
    if strategy.recompute != "none":
        yield f"{strategy.recompute} activation checkpointing"
    for what, where in (
        ("optimizer", strategy.offload_optimizer),
        ("parameters", strategy.offload_parameters),
    ):
        if where != "none":
            yield f"{what} offloaded to {'NVMe' if where == 'nvme' else 'CPU memory'}"


def _memory_rows(plan: Plan) -> Iterator[Row]:
    """Memory of the fullest rank by term."""
    for name, size in plan.choice.memory.terms:
        yield Row(name.replace("_", " "), gib(size), name, size / GIB)


def _counter_rows(plan: Plan) -> Iterator[Row]:
    """Memory in all, by who counts it."""
    for counter in COUNTERS:
        bounds: Interval = getattr(plan.choice.memory, f"{counter}_bytes")
        low, likely, high = map(gib, _ends(bounds))
        name = f"{counter}_likely"
        yield Row(LABELS[counter], likely, name, bounds.likely / GIB, low, high)


def _host_rows(plan: Plan) -> Iterator[Row]:
    """RAM of a node by phase, then what lies on disk."""
    memory = plan.choice.memory
    for phase, size in memory.host_bytes:
        yield Row(f"host RAM, {phase}", gib(size), f"host_{phase}", size / GIB)
    if memory.nvme_bytes:
        yield Row("NVMe of a node", gib(memory.nvme_bytes), "nvme_of_node")
    yield Row("checkpoint on disk", gib(memory.checkpoint_bytes), "checkpoint")


def _time_rows(plan: Plan) -> Iterator[Row]:
    """One optimizer step by term."""
    for name, span in plan.choice.time.terms:
        yield Row(name.removesuffix("_s"), seconds(span), name, span)


def _speed_rows(plan: Plan) -> Iterator[Row]:
    """Rates with their intervals."""
    speed, per_gpu = plan.speed, 1 / plan.cluster.gpus
    yield _rate("tokens/s", "tokens_per_s", speed.tokens_per_s)
    yield _rate("tokens/s per GPU", "tokens_per_s", speed.tokens_per_s, per_gpu)
    yield _rate("model TFLOP/s per GPU", "model_tflops_per_gpu", speed.model_tflops_per_gpu)
    hardware = speed.hardware_tflops_per_gpu
    yield _rate("hardware TFLOP/s per GPU", "hardware_tflops_per_gpu", hardware)
    for label, share in (("MFU", speed.mfu), ("HFU", speed.hfu)):
        low, likely, high = (f"{end:.1%}" for end in _ends(share))
        yield Row(label, likely, label.lower(), share.likely, low, high)


def _run_rows(plan: Plan) -> Iterator[Row]:
    """What the token budget takes; nothing without one."""
    run = plan.run
    if run is None:
        return
    yield Row("tokens", count(run.tokens), "", run.tokens, note=f"{run.steps:,} steps")
    yield _rate("days", "days", run.days)
    yield _rate("GPU-hours", "gpu_hours", run.gpu_hours)
    if run.energy_kwh:
        yield _rate("energy of the GPUs, kWh", "energy_kwh", run.energy_kwh)
    if run.money:
        price = f"cost at {plan.cluster.gpu_hour_price:g} per GPU-hour"
        yield _rate(price, "money", run.money)


def _rate(label: str, figure: str, value: Interval, factor: float = 1.0) -> Row:
    low, likely, high = (amount(factor * end) for end in _ends(value))
    return Row(label, likely, figure, factor * value.likely, low, high)


def _row(figure: str, label: str, value: Interval, text: Callable[[float], str]) -> dict[str, Any]:
    """A figure with its interval."""
    low, likely, high = map(text, _ends(value))
    return Row(label, likely, figure, value.likely, low, high)._asdict()


def _reason(reason: Any) -> dict[str, str]:
    return {"kind": reason.kind, "rule": reason.rule, "message": reason.message}


def _ends(value: Interval) -> tuple[float, float, float]:
    return value.low, value.likely, value.high


def _against(other_s: float, mine_s: float) -> str:
    return times(other_s, mine_s) if other_s != mine_s else ""


def _signed(value: float, text: Any) -> str:
    return f"{'-' if value < 0 else '+'}{text(abs(value))}"
