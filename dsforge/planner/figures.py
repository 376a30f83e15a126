"""The figures of a plan as people read them: one label for each quantity, everywhere.

Device memory is what `nvidia-smi` shows for a rank and what decides whether a plan fits; reserved
and allocated memory are torch's counters. CPU ranks have no device: theirs is resident memory. Host
RAM is that of the phase that needs the most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from dsforge.estimate.run import DAY_S
from dsforge.plan import Plan, Priced
from dsforge.planner.pricing import (
    HOST_SHARE,
    device_room,
    is_safe,
    largest_term,
    missing_bytes,
    room_left,
)
from dsforge.specs import ClusterSpec
from dsforge.units import (
    Interval,
    amount,
    count,
    gb_per_s,
    gib,
    likely_text,
    seconds,
    some,
    span_text,
)

Counter = Literal["allocated", "reserved", "device"]
LABELS: dict[Counter, str] = {
    "allocated": "allocated memory",
    "reserved": "reserved memory",
    "device": "device memory",
}
RESIDENT = "resident memory"  # of a CPU rank, whatever the counter
HOST, STEP, RUN = "host RAM", "step time", "run"
TIGHT = "tight"
SIZED_UP = 0.5  # share of an assumed RAM from which on it matters which it is


class Figure(NamedTuple):
    """A quantity in words."""

    label: str
    value: str


def memory_label(counter: Counter, *, on_cpu: bool) -> str:
    """What the memory of a rank by a counter is called."""
    return RESIDENT if on_cpu else LABELS[counter]


def headline(plan: Plan) -> str:
    """`llama-2-7b (6.74 B) on 2 x 8 a100-80gb, 64 x 4,096 tokens a step, bf16, full`."""
    work, cluster = plan.workload, plan.cluster
    return (
        f"{plan.model.name} ({count(plan.parameters)}) on {cluster.nodes} x "
        f"{cluster.gpus_per_node} {cluster.gpu.name}, {work.global_batch_size:,} x "
        f"{'2 x ' if work.preference else ''}{work.sequence_length:,} tokens per step, "
        f"{work.precision}, {', '.join(filter(None, (work.method_name, work.preference)))}"
    )


def decisive(plan: Plan) -> Iterator[str]:
    """Defaults that can change the choice: the network between nodes, RAM and disk where needed."""
    rules = {reason.rule for reason in plan.choice.reasons}
    cluster, host = plan.cluster, plan.choice.memory.host_bytes
    if cluster.nodes > 1 and rules & {"default-inter-node", "default-nics"}:
        flags = [
            flag
            for rule, flag in (
                ("default-inter-node", "--inter-node"),
                ("default-nics", "--nics-per-node"),
            )
            if rule in rules
        ]
        adapters = f"{cluster.nics_per_node} x {cluster.inter_node.name} per node"
        yield (
            f"{adapters} ({gb_per_s(cluster.inter_node_bytes_per_s)} for "
            f"{some(cluster.gpus_per_node, 'GPU')}), which can decide the choice: set "
            f"{' and '.join(flags)}"
        )
    if "default-host-memory" in rules and host.peak > SIZED_UP * cluster.host_memory_bytes:
        yield (
            f"{gib(cluster.host_memory_bytes)} of RAM per node, which can decide the choice: set "
            f"--host-memory"
        )
    if cluster.nvme and "default-nvme" in rules and plan.choice.memory.nvme_bytes:
        yield (
            f"{gib(cluster.nvme.size_bytes)} free on the disk of a node, "
            f"{gb_per_s(cluster.nvme.read_bytes_per_s)} to read and "
            f"{gb_per_s(cluster.nvme.write_bytes_per_s)} to write, which can decide the choice: "
            f"set `nvme` in the cluster file"
        )


def figures(plan: Plan) -> tuple[Figure, ...]:
    """Strategy, memory, host RAM, step time and, with a token budget, days and cost."""
    found = (
        Figure("strategy", plan.strategy.label()),
        *memory_figures(plan.cluster, plan.choice),
        Figure(STEP, _step(plan)),
        Figure(RUN, _run(plan)),
    )
    return tuple(figure for figure in found if figure.value)


def memory_figures(cluster: ClusterSpec, priced: Priced) -> tuple[Figure, ...]:
    """Memory of the fullest rank, and RAM and disk of a node, against what there is."""
    memory, on_cpu = priced.memory, cluster.gpu.is_cpu
    name = largest_term(memory)
    largest = f"{name.replace('_', ' ')} {gib(getattr(memory.terms, name))}"
    device = memory.device_bytes
    own = (
        f"{gib(device.likely)} of {gib(device_room(cluster, memory.host_bytes))} per "
        f"{_unit(cluster)} ({span_text(device, gib)}), {room(cluster, priced)}; "
        f"largest: {largest}"
    )
    found = [Figure(memory_label("device", on_cpu=on_cpu), own)]
    if not on_cpu:
        host = memory.host_bytes
        usable = gib(cluster.host_memory_bytes * HOST_SHARE)
        words = f"{gib(host.peak)} of {usable} usable per node at its peak ({host.peak_phase})"
        found.append(Figure(HOST, words + _too_much(room_left(cluster, memory)["host"])))
    if memory.nvme_bytes and cluster.nvme:
        words = f"{gib(memory.nvme_bytes)} of {gib(cluster.nvme.size_bytes)} per node"
        found.append(Figure("NVMe", words + _too_much(room_left(cluster, memory)["nvme"])))
    return tuple(found)


def room(cluster: ClusterSpec, priced: Priced) -> str:
    """`36.4 GiB left`, whether that is sure, or what is missing."""
    left = room_left(cluster, priced.memory)["device"]
    words = _too_much(left).removeprefix(", ") or f"{gib(left)} left"
    return f"{words}, {TIGHT}" if fit(cluster, priced) == TIGHT else words


def _too_much(left: int) -> str:
    """What is missing; nothing where there is enough."""
    return f", {gib(-left)} too much: DOES NOT FIT" if left < 0 else ""


def fit(cluster: ClusterSpec, priced: Priced) -> Literal["fits", "tight", "does not fit"]:
    """Whether a plan fits for sure, likely, or not."""
    if missing_bytes(cluster, priced.memory) > 0:
        return "does not fit"
    return "fits" if is_safe(cluster, priced.memory) else "tight"


def _unit(cluster: ClusterSpec) -> str:
    return "CPU rank" if cluster.gpu.is_cpu else "GPU"


def _step(plan: Plan) -> str:
    """Likely step, interval, rate and share of the peak, and the term that dominates."""
    time = plan.choice.time
    name, most = max(time.terms, key=lambda term: float(term[1]))
    return (
        f"{likely_text(time.step_s, seconds)}, {amount(time.tokens_per_s_per_gpu)} tokens/s per "
        f"{_unit(plan.cluster)}, MFU {plan.speed.mfu.likely:.0%}; largest: "
        f"{name.removesuffix('_s')} {seconds(most)}"
    )


def _run(plan: Plan) -> str:
    """Days, GPU hours and cost of the token budget; nothing without one."""
    run = plan.run
    if run is None:
        return ""
    hours = "rank-hours" if plan.cluster.gpu.is_cpu else "GPU-hours"
    words = f"{_span(run.days)} and {amount(run.gpu_hours.likely)} {hours}"
    if run.money is not None:
        price = f"{plan.cluster.gpu_hour_price:g} per GPU-hour"
        words += f", cost {amount(run.money.likely)} at {price}"
    return f"{words} for {count(run.tokens)} tokens ({run.steps:,} steps)"


def _span(days: Interval) -> str:
    """Days, or hours and minutes where it is less than one."""
    if days.likely < 1:
        return likely_text(days, lambda end: seconds(DAY_S * end))
    return f"{amount(days.likely)} days ({amount(days.low)} to {amount(days.high)})"
