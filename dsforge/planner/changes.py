"""What a user could change about a job that does not fit: one step along one axis each.

The axes come in three kinds, in the order in which people want to hear of them: another strategy
for the same job on the same machines, more machines, another job. Along an axis the mildest change
comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from dsforge.rules.case import Case
from dsforge.specs import QLORA_BITS, LoraSpec
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Strategy, ZeroStage
from dsforge.units import gib

STAGES: tuple[ZeroStage, ...] = (1, 2, 3)
SHARES = (2, 4, 8, 16)  # by which sizes are multiplied or divided
MORE_NODES = (2, 4, 8, 16, 32)


class Kind(IntEnum):
    """What a change touches."""

    strategy = 0
    machines = 1
    job = 2


class Change(NamedTuple):
    """One change: its axis, its name, the case after it."""

    kind: Kind
    axis: str
    name: str
    case: Case


def changes(case: Case, host_bytes: int) -> Iterator[Change]:
    """Every single change of a case. `host_bytes` of RAM on each node are what it would need."""
    yield from _of_strategy(case)
    yield from _of_machines(case, host_bytes)
    yield from _of_job(case)


def _of_strategy(case: Case) -> Iterator[Change]:
    strategy = case.strategy
    if strategy.recompute != "full":
        yield _strategy(case, "recompute", "recompute full", recompute="full")
    for share in SHARES:
        micro, rest = divmod(strategy.micro_batch_size, share)
        if micro and not rest:
            steps = strategy.gradient_accumulation_steps * share
            sizes = {"micro_batch_size": micro, "gradient_accumulation_steps": steps}
            yield _strategy(case, "micro batch", f"micro batch {micro}", **sizes)
    if strategy.runs_as.buckets != "sized":
        smaller = strategy.runs_as.model_copy(update={"buckets": "sized"})
        yield _strategy(case, "buckets", "buckets sized to the model", execution=smaller)
    if strategy.hpz_partition_size > 1:
        yield _strategy(case, "hpZ", "no second copy of the weights", hpz_partition_size=1)
    if strategy.back_end == "deepspeed":
        for stage in STAGES[strategy.zero_stage :]:
            yield _strategy(case, "ZeRO stage", f"ZeRO-{stage}", zero_stage=stage)
        yield from _offloads(case)
    else:
        yield from _splits(case)


def _offloads(case: Case) -> Iterator[Change]:
    """Optimizer state, then parameters too, into RAM and onto the disk."""
    strategy = case.strategy
    for place in ("cpu", "nvme") if case.cluster.nvme else ("cpu",):
        state: dict[str, Any] = {"offload_optimizer": place}
        both: dict[str, Any] = {**state, "offload_parameters": place}
        if strategy.zero_stage >= GRADIENTS_SHARDED and strategy.offload_optimizer == "none":
            yield _strategy(case, "offload", f"optimizer on {place}", **state)
        if strategy.zero_stage == FULLY_SHARDED and strategy.offload_parameters == "none":
            yield _strategy(case, "offload", f"optimizer and parameters on {place}", **both)


def _splits(case: Case) -> Iterator[Change]:
    """The model over more ranks, with fewer replicas."""
    layout, steps = case.layout, case.strategy.gradient_accumulation_steps
    for axis in ("tensor", "pipeline", "context"):
        field = f"{axis}_parallel_size"
        for share in SHARES:
            data, rest = divmod(layout.data_parallel_size, share)
            if data and not rest:
                size = getattr(layout, field) * share
                split = layout.model_copy(update={field: size, "data_parallel_size": data})
                yield _strategy(
                    case,
                    axis,
                    f"{axis} parallel {size}",
                    layout=split,
                    gradient_accumulation_steps=steps * share,
                    sequence_parallel=split.tensor_parallel_size > 1,
                )


def _of_machines(case: Case, host_bytes: int) -> Iterator[Change]:
    cluster, layout = case.cluster, case.layout
    if host_bytes > cluster.host_memory_bytes:
        roomy = cluster.model_copy(update={"host_memory_bytes": host_bytes})
        name = f"{gib(host_bytes)} of RAM on each node"
        yield Change(Kind.machines, "host RAM", name, case._replace(cluster=roomy))
    for factor in MORE_NODES:
        nodes, dp = cluster.nodes * factor, layout.data_parallel_size * factor
        share = max(1, case.workload.global_batch_size // (dp * case.strategy.micro_batch_size))
        wider = case.strategy.model_copy(
            update={
                "layout": layout.model_copy(update={"data_parallel_size": dp}),
                "gradient_accumulation_steps": share,
            }
        )
        batch = {"global_batch_size": wider.global_batch_size}
        yield Change(
            Kind.machines,
            "nodes",
            f"{nodes} nodes",
            Case(
                case.model,
                cluster.model_copy(update={"nodes": nodes, "hosts": ()}),
                case.workload.model_copy(update=batch),
                wider,
            ),
        )


def _of_job(case: Case) -> Iterator[Change]:
    work = case.workload
    for share in SHARES:
        length, rest = divmod(work.sequence_length, share)
        if length and not rest:
            shorter = work.model_copy(update={"sequence_length": length})
            name = f"sequence length {length}"
            yield Change(Kind.job, "sequence", name, case._replace(workload=shorter))
    lora = work.lora or LoraSpec()
    if work.method == "full":
        adapters = work.model_copy(update={"method": "lora", "lora": lora})
        yield Change(Kind.job, "method", "LoRA", case._replace(workload=adapters))
    if not work.in_4_bits:
        yield _quantised(case, lora)


def _quantised(case: Case, lora: LoraSpec) -> Change:
    """The same job with frozen matrices in 4 bits, which no rank can hold a part of."""
    packed = lora.model_copy(update={"bits": QLORA_BITS})
    work = case.workload.model_copy(update={"method": "lora", "lora": packed})
    name, whole = "QLoRA", case.strategy
    if whole.zero_stage == FULLY_SHARDED:
        name = f"QLoRA under ZeRO-{GRADIENTS_SHARDED}"
        fields = {"offload_parameters": "none", "hpz_partition_size": 1}
        whole = whole.model_copy(update={"zero_stage": GRADIENTS_SHARDED, **fields})
    return Change(Kind.job, "method", name, case._replace(workload=work, strategy=whole))


def _strategy(case: Case, axis: str, name: str, **fields: Any) -> Change:
    """A change of the strategy's fields."""
    changed: Strategy = case.strategy.model_copy(update=fields)
    return Change(Kind.strategy, axis, name, case._replace(strategy=changed))
