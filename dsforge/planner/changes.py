"""What a user could change about a request that does not fit: one step along one axis each.

The axes come in five kinds, in the order in which people want to hear of them: another strategy
for the same job on the same machines (only where the user has fixed one: else the search has tried
them all), perhaps of another engine, a batch that the machines can share, other machines, another
job. Along an axis the mildest change comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from dsforge.constraints import Case, allows, shape_of
from dsforge.constraints.checkpoints import tiled_mlp_model
from dsforge.constraints.deepspeed import offload_optimizer_stage, offload_parameters_stage
from dsforge.engines import BY_NAME
from dsforge.execution import BackEnd
from dsforge.plan import Request
from dsforge.planner.back_ends import BACK_ENDS, fine_tuned, needs_deepspeed
from dsforge.programs.converters import converter_of
from dsforge.specs import QLORA_BITS, ClusterSpec, LoraSpec, usual_disk
from dsforge.strategy import Offload, Strategy, ZeroStage
from dsforge.units import GIB

STAGES: tuple[ZeroStage, ...] = (1, 2, 3)
SHARES = (2, 4, 8, 16)  # by which sizes are multiplied or divided
MORE_NODES = (2, 4, 8, 16, 32)
MOST_RAM_BYTES = 4096 * GIB  # of a node: 32 modules of 128 GiB, what two-socket servers take
SPLITS = {
    "zero_stage": "{kind}, any ZeRO stage",
    "back_end": "--for {back_end}",
    "tensor_parallel_size": "tensor parallel {tensor_parallel_size}",
    "pipeline_parallel_size": "pipeline parallel {pipeline_parallel_size}",
    "context_parallel_size": "context parallel {context_parallel_size}",
    "expert_parallel_size": "expert parallel {expert_parallel_size}",
}


ENGINES = ("zero_stage", "back_end")  # left open, they may lead to the other engine
METHOD, ROOM = "method", ("host RAM", "NVMe")  # axes: adapters; where states may lie


class Kind(IntEnum):
    """What a change touches."""

    strategy = 0
    engine = 1
    batch = 2
    machines = 3
    job = 4


class Change(NamedTuple):
    """One change: its axis, the request after it, its name with sizes of the plan in braces."""

    kind: Kind
    axis: str
    name: str
    request: Request

    def named(self, strategy: Strategy) -> str:
        """The name, with what the plan after the change has."""
        engine = strategy.engine
        kind = f"ZeRO-{strategy.zero_stage}" if engine.has_zero_stages else engine.short_label
        fields = {**vars(strategy.layout), "back_end": strategy.back_end}
        return self.name.format_map({**fields, "kind": f"{kind} {strategy.layout.label()}"})


def changes(request: Request, host_bytes: int) -> Iterator[Change]:
    """Every single change. `host_bytes` of RAM on each node would do; 0: none would."""
    yield from _of_strategy(request)
    yield from _of_batch(request)
    yield from _of_machines(request, host_bytes)
    yield from _of_job(request)


def _of_strategy(request: Request) -> Iterator[Change]:
    """What is fixed, set to what needs less."""
    fixed = request.constraints
    if fixed.loss == "plain":
        yield _strategy(request, "loss", "chunked loss (as Liger's)", loss="chunked")
    if fixed.recompute not in (None, "full"):
        yield _strategy(request, "recompute", "recompute full", recompute="full")
    yield from _long_samples(request)
    for share in SHARES:
        micro, rest = divmod(fixed.micro_batch_size or 0, share)
        if micro and not rest:
            yield _strategy(request, "micro batch", f"micro batch {micro}", micro_batch_size=micro)
    yield from _buffers(request)
    if fixed.zero_stage is not None and _has_stages(fixed.back_end):
        for stage in STAGES[fixed.zero_stage :]:
            yield _strategy(request, "ZeRO stage", f"ZeRO-{stage}", zero_stage=stage)
    yield from _offloads(request)
    freed = [field for field in SPLITS if getattr(fixed, field) is not None]
    for field in freed:
        change = _strategy(request, field, SPLITS[field], **{field: None})
        yield change._replace(kind=Kind.engine) if field in ENGINES else change
    if not fixed.back_end and not needs_deepspeed(request) and fine_tuned(request):
        has = converter_of(request.model.model_type) is not None
        asks = "requires converted weights and data" if has else "nothing converts its weights"
        name = f"--for megatron ({asks})"
        change = _strategy(request, "back_end", name, back_end=BACK_ENDS[1])
        yield change._replace(kind=Kind.engine)


def _long_samples(request: Request) -> Iterator[Change]:
    """What ALST has for samples of more tokens than the hidden size (Bekman et al. 2025)."""
    fixed, model = request.constraints, request.model
    checkpointed = fixed.recompute in (None, "full") and _has_stages(fixed.back_end)
    if not checkpointed or request.workload.sequence_length <= model.hidden_size:
        return
    if fixed.offload_activations is None:
        name = "activation checkpoints in host RAM (--offload-activations)"
        yield _strategy(request, "checkpoints", name, recompute="full", offload_activations=True)
    dense = allows(Case(tiled_mlp=True, shape=shape_of(model)), tiled_mlp_model)
    if fixed.tiled_mlp is None and dense:
        yield _strategy(
            request, "MLP", "tiled MLPs (--tiled-mlp)", recompute="full", tiled_mlp=True
        )


def _has_stages(back_end: BackEnd | None) -> bool:
    """Whether ZeRO stages mean anything under a back end that is fixed, or left open."""
    return back_end is None or BY_NAME[back_end].has_zero_stages


def _buffers(request: Request) -> Iterator[Change]:
    """Smaller buckets, no hpZ (secondary copy of the weights)."""
    fixed = request.constraints
    if fixed.buckets not in (None, "sized"):
        yield _strategy(request, "buckets", "buckets sized to the model", buckets="sized")
    if (fixed.hpz_partition_size or 1) > 1:
        yield _strategy(
            request, "hpZ", "no hpZ (secondary copy of the weights)", hpz_partition_size=1
        )


def _offloads(request: Request) -> Iterator[Change]:
    """Optimizer state, then parameters too, into RAM and onto the disk, where that is forbidden."""
    fixed = request.constraints
    asked = fixed.offload_optimizer, fixed.offload_parameters
    if "none" not in asked:
        return
    places: tuple[Offload, ...] = ("cpu", "nvme") if request.cluster.nvme else ("cpu",)
    for place in places:
        state: dict[str, Any] = {"offload_optimizer": place}
        both: dict[str, Any] = {**state, "offload_parameters": place}
        on = Case(zero_stage=fixed.zero_stage, offload_optimizer=place, offload_parameters=place)
        if asked[0] == "none" and allows(on, offload_optimizer_stage):
            yield _strategy(request, "offload", f"optimizer on {place}", **state)
        if asked[1] == "none" and allows(on, offload_parameters_stage):
            yield _strategy(request, "offload", f"optimizer and parameters on {place}", **both)


def _of_machines(request: Request, host_bytes: int) -> Iterator[Change]:
    cluster = request.cluster
    if host_bytes > cluster.host_memory_bytes:
        now = cluster.host_memory_bytes / GIB
        name = f"{host_bytes // GIB:,} GiB of RAM on each node instead of {now:,.0f}"
        yield _machines(request, "host RAM", name, host_memory_bytes=host_bytes)
    if cluster.nvme is None:
        disk = usual_disk(cluster.intra_node)
        size, rate = disk.size_bytes / 1e12, disk.read_bytes_per_s / 1e9
        name = f"an NVMe disk on each node ({size:.2f} TB free, {rate:.1f} GB/s)"
        yield _machines(request, "NVMe", name, nvme=disk)
    for fewer in _fewer(cluster):
        gpus = fewer["nodes"] * fewer["gpus_per_node"]
        name = f"{gpus} of {cluster.gpus} accelerators"
        yield _machines(request, "fewer", name, **fewer, hosts=())
    for factor in MORE_NODES:
        nodes = cluster.nodes * factor
        yield _machines(request, "nodes", f"{nodes} nodes", nodes=nodes, hosts=())


def _fewer(cluster: ClusterSpec) -> Iterator[dict[str, int]]:
    """Half of the nodes, a quarter and so on to one, one accelerator of several."""
    nodes = cluster.nodes // 2
    while nodes:
        yield {"nodes": nodes, "gpus_per_node": cluster.gpus_per_node}
        nodes //= 2
    if cluster.gpus_per_node > 1:
        yield {"nodes": 1, "gpus_per_node": 1}


def _of_batch(request: Request) -> Iterator[Change]:
    """A batch of which every accelerator has a share, where this one leaves the model to be cut."""
    work, gpus = request.workload, request.cluster.gpus
    if work.global_batch_size % gpus:
        shared = -(-work.global_batch_size // gpus) * gpus
        name = f"a batch that all {gpus} accelerators share"
        change = _job(request, "batch", name, global_batch_size=shared)
        yield change._replace(kind=Kind.batch)


def _of_job(request: Request) -> Iterator[Change]:
    work = request.workload
    for share in SHARES:
        length, rest = divmod(work.sequence_length, share)
        if length and not rest:
            yield _job(request, "sequence", f"sequence length {length}", sequence_length=length)
    lora = work.lora or LoraSpec()
    if work.method == "full":
        yield _job(request, METHOD, "LoRA", method="lora", lora=lora)
    if not work.is_quantised:
        packed = lora.model_copy(update={"bits": QLORA_BITS})
        yield _job(request, METHOD, "QLoRA", method="lora", lora=packed)


def _strategy(request: Request, axis: str, name: str, **fields: Any) -> Change:
    """A change of what is fixed."""
    fixed = request.constraints.model_copy(update=fields)
    return Change(Kind.strategy, axis, name, request.model_copy(update={"constraints": fixed}))


def _machines(request: Request, axis: str, name: str, **fields: Any) -> Change:
    """A change of the cluster; a batch grows with it that more accelerators could not share."""
    cluster = request.cluster.model_copy(update=fields)
    work = request.workload
    if work.global_batch_size < cluster.gpus > request.cluster.gpus:
        work = work.model_copy(update={"global_batch_size": cluster.gpus})
    changed = request.model_copy(update={"cluster": cluster, "workload": work})
    return Change(Kind.machines, axis, name, changed)


def _job(request: Request, axis: str, name: str, **fields: Any) -> Change:
    """A change of the workload."""
    work = request.workload.model_copy(update=fields)
    return Change(Kind.job, axis, name, request.model_copy(update={"workload": work}))
