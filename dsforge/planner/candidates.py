"""Families of strategies: every way to cut the model that could be legal, before batching.

A family fixes back end, layout, ZeRO stage and offload. Micro batch, interleaving and recomputation
are chosen inside it, so a family that breaks a rule is refused once and not for every batch. Left
out is only what is provably worse: Megatron without its distributed optimizer where there is
anything to shard (more bytes to send and more to keep), and `selective` recomputation, which saves
nothing where attention is fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Literal, NamedTuple

from dsforge.constraints import Case, allows, divisors, shape_of, tensor_sizes
from dsforge.constraints.deepspeed import (
    hpz_stage,
    hpz_with_offload,
    hpz_with_sequence,
    nvme_stage,
    offload_optimizer_stage,
    offload_parameters_stage,
    offload_ratio_stage,
    zero_with_pipeline,
    zero_with_tensor,
)
from dsforge.constraints.ulysses import shares_sequence
from dsforge.engines import BY_NAME, ENGINES
from dsforge.layout import Layout, layer_split
from dsforge.plan import Request
from dsforge.planner.ways import (
    combines,
    hybrids,
    said_recompute,
    stages_of_ways,
    usual_attention,
    usual_dropout,
    usual_loss,
    way_taken,
    ways,
)
from dsforge.strategy import (
    EXECUTIONS,
    AttentionKind,
    BackEnd,
    Batching,
    Buckets,
    BucketSizes,
    Constraints,
    Execution,
    Kernels,
    Loss,
    Offload,
    Software,
    Strategy,
    ZeroStage,
)
from dsforge.zero_stages import ZERO_STAGES

ZERO = next(engine for engine in ENGINES if engine.has_zero_stages)
LARGEST_TENSOR = 16
LEAST_STRETCH = 4096  # tokens of a sequence on a rank under Ulysses; fewer fit whole samples

Offloads = tuple[Offload, Offload]  # optimizer, parameters
KEPT: Offloads = ("none", "none")


def families(request: Request, back_end: BackEnd) -> Iterator[Strategy]:
    """Families of a back end that the constraints allow, as their smallest micro batch."""
    fixed = request.constraints
    for layout in layouts(request, back_end):
        for stage in _zero_stages(fixed, back_end, layout):
            for offloads in _offloads(request, back_end, stage):
                family = base(request, back_end, layout, stage=stage, offloads=offloads)
                yield from hybrids(request, family)
                yield from _second_copies(request, family)


def _second_copies(request: Request, family: Strategy) -> Iterator[Strategy]:
    """The family without a second copy of the weights (hpZ), and with one in groups of ranks.

    Groups are parts of nodes, or whole ones: others cross a network without need.
    """
    fixed, node = request.constraints.hpz_partition_size, request.cluster.gpus_per_node
    sizes: tuple[int, ...] = (fixed or 1,)
    copied = Case(
        zero_stage=family.zero_stage,
        context_parallel_size=family.layout.context_parallel_size,
        hpz_partition_size=2,  # any
        offload_optimizer=family.offload_optimizer,
        offload_parameters=family.offload_parameters,
        back_end=family.back_end,
    )
    way = way_taken(request.constraints, family.back_end, family.zero_stage)
    has = way is None or way.hpz
    if fixed is None and has and allows(copied, hpz_stage, hpz_with_offload, hpz_with_sequence):
        ranks = family.layout.data_parallel_size
        parts = [n for n in divisors(ranks)[1:-1] if node % n == 0 or n % node == 0]
        sizes = (*parts, 1)  # the lightest comes last
    for size in sizes:
        update = {"hpz_partition_size": size}
        yield family if size == 1 else family.model_copy(update=update)


def base(
    request: Request,
    back_end: BackEnd,
    layout: Layout,
    *,
    stage: ZeroStage,
    offloads: Offloads = KEPT,
) -> Strategy:
    """The member of a family with the smallest micro batch and the lightest recomputation."""
    fixed, workload = request.constraints, request.workload
    micro = fixed.micro_batch_size or 1
    split = allows(Case(zero_stage=stage, offload_ratio=0.5), offload_ratio_stage)
    tp, cp = layout.tensor_parallel_size, layout.context_parallel_size
    return Strategy.model_construct(
        back_end=back_end,
        layout=layout,
        micro_batch_size=micro,
        gradient_accumulation_steps=max(
            1, workload.global_batch_size // (micro * layout.data_parallel_size)
        ),
        zero_stage=stage,
        offload_optimizer=offloads[0],
        offload_parameters=offloads[1],
        recompute=said_recompute(fixed) or "none",
        virtual_stages=_judged_stages(fixed, layout),
        execution=_execution(request, layout, stage, partial=split and offloads[0] == "cpu")
        if BY_NAME[back_end].has_zero_stages
        else _of_megatron(fixed, back_end),
        sequence_parallel=_splits_activations(fixed, back_end, stage)
        and tp > 1
        and workload.sequence_length % (tp * cp) == 0,
    )


def _judged_stages(fixed: Constraints, layout: Layout) -> int:
    """The virtual stages that the rules judge: those that are asked for.

    Others share layers out by hand (`--pipeline-model-parallel-layout`), where no count divides.
    """
    by_hand = fixed.software == "others" and layout.pipeline_parallel_size > 1
    return 1 if by_hand else fixed.virtual_stages or 1


def _splits_activations(fixed: Constraints, back_end: BackEnd, stage: ZeroStage) -> bool:
    """Whether activations outside products are split over tensor ranks."""
    way = way_taken(fixed, back_end, stage)
    engine = BY_NAME[back_end if way is None else way.execution.trainer]
    return engine.sequence_parallel or (way is not None and way.sequence_parallel)


def _execution(
    request: Request, layout: Layout, stage: ZeroStage, *, partial: bool
) -> Execution | None:
    """How the engine runs where buckets or types are fixed; none: as dsforge sets them.

    `partial`: whether a part of the optimizer can be offloaded (`offload_ratio_check`: ZeRO-3).
    """
    fixed, half = request.constraints, request.workload.precision != "fp32"
    way = way_taken(fixed, ZERO.back_end, stage)
    usual = EXECUTIONS[fixed.trainer or ZERO.name] if way is None else way.execution
    how = _How(
        buckets=fixed.buckets or _usual_buckets(fixed),
        quantized_weights=bool(fixed.quantized_weights),
        quantized_gradients=bool(fixed.quantized_gradients),
        gradients=(fixed.gradient_type or usual.gradients) if half else "compute",
        reduced="fp32" if half and fixed.communication_type == "fp32" else "compute",
        offload_ratio=1.0 if fixed.offload_ratio is None or not partial else fixed.offload_ratio,
        loss=fixed.loss or usual_loss(request, layout, way) or usual.loss,
        attention=fixed.attention or usual_attention(request),
        kernels=fixed.kernels or usual.kernels,
        dropout=usual_dropout(request, way),
        trainer=usual.trainer,
        program=fixed.program,
        software=fixed.software or "dsforge",
        master_weights=usual.master_weights and not fixed.bf16_states,
        moments="bf16" if fixed.bf16_states else usual.moments,
        fused_backward=bool(fixed.optimizer_in_backward),
        offload_activations=bool(fixed.offload_activations),
        tiled_mlp=bool(fixed.tiled_mlp),
        loads_whole=bool(fixed.loads_whole),
        no_sync=bool(fixed.no_sync),
        expert_modules=bool(fixed.expert_modules),
    )
    return None if how == USUAL else _engine(how)


def _usual_buckets(fixed: Constraints) -> BucketSizes:
    """Nobody else sizes ZeRO's buffers to the model as dsforge does."""
    return "engine" if fixed.software == "others" else "sized"


@lru_cache(maxsize=8)
def _of_megatron(fixed: Constraints, back_end: BackEnd) -> Execution | None:
    """The back end with what is fixed of its loss, gradients and experts; none: as it is."""
    named = ("loss", "expert_dispatch", "overlaps_experts", "overlaps_tensor", "dropout")
    said = {name: getattr(fixed, name) for name in (*named, "software", "program")}
    said["gradients"] = fixed.gradient_type
    update = {field: value for field, value in said.items() if value is not None}
    return EXECUTIONS[back_end].model_copy(update=update) if update else None


class _How(NamedTuple):
    """Fields of an Execution that a person may fix."""

    buckets: BucketSizes | Buckets = "sized"
    quantized_weights: bool = False
    quantized_gradients: bool = False
    gradients: Literal["compute", "fp32"] = "compute"
    reduced: Literal["compute", "fp32"] = "compute"
    offload_ratio: float = 1.0
    loss: Loss | None = None
    attention: AttentionKind = "flash"
    kernels: Kernels = "eager"
    dropout: bool = False
    trainer: str = ZERO.name
    program: str | None = None
    software: Software = "dsforge"
    master_weights: bool = True
    moments: Literal["fp32", "bf16", "int8"] = "fp32"
    fused_backward: bool = False
    offload_activations: bool = False
    tiled_mlp: bool = False
    loads_whole: bool = False
    no_sync: bool = False
    expert_modules: bool = False


USUAL = _How()


@lru_cache(maxsize=8)
def _engine(how: _How) -> Execution:
    """The engine with these buckets, types and kernels."""
    return EXECUTIONS[how.trainer].model_copy(update=how._asdict())


def interleavings(request: Request, family: Strategy) -> tuple[tuple[Batching, ...], ...]:
    """The batchings of a family for each number of virtual stages, micro batches ascending."""
    data = family.layout.data_parallel_size
    share, rest = divmod(request.workload.global_batch_size, data)
    if rest:
        return ()
    fixed, pp = request.constraints.micro_batch_size, family.layout.pipeline_parallel_size
    sizes = (fixed,) if fixed else divisors(share)
    every = [(n, share // n) for n in sizes if share % n == 0]
    return tuple(
        tuple(Batching(n, steps, virtual) for n, steps in every if virtual == 1 or steps % pp == 0)
        for virtual in _virtual_stages(request, family)
    )


def layouts(request: Request, back_end: BackEnd) -> Iterator[Layout]:
    """Layouts that fill the cluster; what a back end cannot do is left to the rules."""
    gpus = request.cluster.gpus
    for tp in _tensor_sizes(request, back_end):
        for cp in _context_sizes(request, back_end, max(1, gpus // tp), tp):
            for pp in _pipeline_sizes(request, back_end, max(1, gpus // (tp * cp)), cp):
                data = max(1, gpus // (tp * cp * pp))
                for ep in _expert_sizes(request, back_end, data * cp):
                    yield _layout(dp=data, tp=tp, pp=pp, cp=cp, ep=ep)


@lru_cache(maxsize=16384)
def _layout(*, dp: int, tp: int, pp: int, cp: int, ep: int) -> Layout:
    """The same cuts come again for each model that is tried."""
    return Layout.model_construct(
        data_parallel_size=dp,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        context_parallel_size=cp,
        expert_parallel_size=ep,
    )


def _stays_whole(request: Request, back_end: BackEnd) -> bool:
    """Whether the model is not to be cut: who fixes a ZeRO stage or offload means ZeRO alone.

    So does who fixes a share of the sequence, as Ulysses takes whole models. Scripts of others that
    cut a model say so.
    """
    fixed = request.constraints
    asked = fixed.zero_stage, fixed.offload_optimizer, fixed.offload_parameters
    said = any(one is not None for one in asked) or (fixed.hpz_partition_size or 1) > 1
    said = said or (fixed.context_parallel_size or 1) > 1 or fixed.software == "others"
    if combines(fixed, back_end):
        return False
    return BY_NAME[back_end].has_zero_stages and said


def _tensor_sizes(request: Request, back_end: BackEnd) -> tuple[int, ...]:
    """Tensor parallelism stays inside a node, or an NVLink domain."""
    fixed = request.constraints.tensor_parallel_size
    if fixed or _stays_whole(request, back_end):
        return (fixed or 1,)
    sizes = tensor_sizes(request.cluster)
    return tuple(n for n in sizes if n <= LARGEST_TENSOR and request.cluster.gpus % n == 0)


def _pipeline_sizes(request: Request, back_end: BackEnd, ranks: int, cp: int) -> tuple[int, ...]:
    fixed = request.constraints.pipeline_parallel_size
    joined = BY_NAME[back_end].combines_context or combines(request.constraints, back_end)
    shared = cp > 1 and not joined
    if fixed or shared or _stays_whole(request, back_end):
        return (fixed or 1,)
    return tuple(n for n in divisors(ranks) if layer_split(request.model.layers, n))


def _context_sizes(request: Request, back_end: BackEnd, ranks: int, tp: int) -> tuple[int, ...]:
    """Every share of the sequence in two chunks a rank, for balance under the causal mask.

    Of DeepSpeed's (Ulysses) those that the heads allow and that leave a long stretch to each rank.
    """
    fixed, tokens = request.constraints.context_parallel_size, request.workload.sequence_length
    if fixed:
        return (fixed,)
    if BY_NAME[back_end].context_exchange == "ring":
        return tuple(n for n in divisors(ranks) if n == 1 or tokens % (2 * n) == 0)
    others = request.constraints.pipeline_parallel_size, request.constraints.hpz_partition_size
    if tp > 1 or any((size or 1) > 1 for size in others):
        return (1,)
    shape, most = shape_of(request.model), tokens // LEAST_STRETCH
    shared = (n for n in divisors(ranks)[1:] if n <= most and shares_sequence(shape, n))
    return (1, *(n for n in shared if tokens % n == 0))


def _expert_sizes(request: Request, back_end: BackEnd, ranks: int) -> tuple[int, ...]:
    fixed, moe = request.constraints.expert_parallel_size, request.model.moe
    if fixed or moe is None or not BY_NAME[back_end].expert_parallel:
        return (fixed or 1,)
    limit = min(ranks, moe.experts)
    return tuple(n for n in divisors(moe.experts) if n <= limit and ranks % n == 0)


def _zero_stages(fixed: Constraints, back_end: BackEnd, layout: Layout) -> tuple[ZeroStage, ...]:
    if fixed.zero_stage is not None:
        return (fixed.zero_stage,)
    if ways(fixed, back_end) and BY_NAME[back_end].has_zero_stages:
        return stages_of_ways(fixed, back_end, shared=layout.shard_ranks > 1)
    if not BY_NAME[back_end].has_zero_stages:
        return (1,) if layout.shard_ranks > 1 else (0,)
    if fixed.trainer is not None and BY_NAME[fixed.trainer].states == "fp32_replicas":
        return (0,)  # who shards its optimizer says so
    cut = Case(
        pipeline_parallel_size=layout.pipeline_parallel_size,
        tensor_parallel_size=layout.tensor_parallel_size,
    )
    rules = zero_with_pipeline, zero_with_tensor
    return tuple(n for n in ZERO_STAGES if allows(cut._replace(zero_stage=n), *rules))


def _offloads(request: Request, back_end: BackEnd, stage: ZeroStage) -> tuple[Offloads, ...]:
    """Offload only where the engine has it, unless it is asked for: then the rules answer."""
    fixed = request.constraints
    if not BY_NAME[back_end].has_zero_stages:
        return ((fixed.offload_optimizer or "none", fixed.offload_parameters or "none"),)
    places: tuple[Offload, ...] = (
        ("none", "cpu", "nvme") if request.cluster.nvme else ("none", "cpu")
    )
    on = Case(zero_stage=stage)
    optimizer = tuple(
        place
        for place in places
        if allows(on._replace(offload_optimizer=place), offload_optimizer_stage, nvme_stage)
    )
    placed = tuple(
        place
        for place in places
        if allows(on._replace(offload_parameters=place), offload_parameters_stage)
    )
    return tuple(
        product(
            (fixed.offload_optimizer,) if fixed.offload_optimizer else optimizer,
            (fixed.offload_parameters,) if fixed.offload_parameters else placed,
        )
    )


def _virtual_stages(request: Request, family: Strategy) -> tuple[int, ...]:
    """Chunks of layers that a stage may be cut into."""
    fixed, pp = request.constraints.virtual_stages, family.layout.pipeline_parallel_size
    if fixed is not None:
        return (fixed,)
    if pp == 1 or not family.engine.interleaves:
        return (1,)
    split = layer_split(request.model.layers, pp)
    return tuple(n for n in divisors(split.middle) if split.interleaves(n)) if split else (1,)
