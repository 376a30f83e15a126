"""What a program that is asked for adds to the search: its ways, their stages, loss and groups."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.constraints import divisors
from dsforge.constraints.trainer import holds_whole_logits, is_split
from dsforge.engines import BY_NAME as ENGINES
from dsforge.estimate.dropout import drops
from dsforge.layout import Layout
from dsforge.plan import Request
from dsforge.programs import Way, way_of, ways_of
from dsforge.strategy import (
    AttentionKind,
    BackEnd,
    Constraints,
    Loss,
    Recompute,
    Strategy,
    ZeroStage,
)
from dsforge.zero_stages import FULLY_SHARDED, ZERO_STAGES


def ways(fixed: Constraints, back_end: BackEnd) -> tuple[Way, ...]:
    """How the program that is asked for may run; empty: no program, or one that cannot."""
    return () if fixed.program is None else ways_of(fixed.program, fixed.trainer, back_end)


def way_taken(fixed: Constraints, back_end: BackEnd, stage: ZeroStage) -> Way | None:
    """How the program that is asked for shards as a ZeRO stage; none: no program, or it cannot."""
    return None if fixed.program is None else way_of(fixed.program, fixed.trainer, back_end, stage)


def combines(fixed: Constraints, back_end: BackEnd) -> bool:
    """Whether a program takes several kinds of model parallelism, in whichever way."""
    return any(way.combines for way in ways(fixed, back_end))


def usual_loss(request: Request, layout: Layout, way: Way | None) -> Loss | None:
    """`chunked` where `dsforge train` chunks on an engine that others run without; none: theirs."""
    if way is None or not way.chunks_loss:
        return None
    whole = holds_whole_logits(request.model, split=is_split(layout))
    return "plain" if whole else "chunked"


def usual_attention(request: Request) -> AttentionKind:
    """What scripts run where nobody says it.

    FlashAttention has no kernel for cards before Ampere, the first with bf16; `dsforge train` has
    torch's, which keeps no scores there either.
    """
    gpu = request.cluster.gpu
    older = "bf16" not in gpu.peak_flops and not gpu.is_cpu
    return "eager" if older and request.constraints.software == "others" else "flash"


def usual_dropout(request: Request, way: Way | None) -> bool:
    """Whether dropout runs: as is said, or as the model's config has it in transformers' modules.

    A program with modules of its own, which names the kinds that it knows, has none in them.
    """
    if request.constraints.dropout is not None:
        return request.constraints.dropout
    return drops(request.model) and not (way is not None and way.kinds)


def stages_of_ways(fixed: Constraints, back_end: BackEnd, *, shared: bool) -> tuple[ZeroStage, ...]:
    """Stages of a program, each in the first way that has it; unshared: the lowest of each way."""
    found: dict[Way, list[ZeroStage]] = {}
    for stage in ZERO_STAGES:
        way = way_taken(fixed, back_end, stage)
        if way is not None and stage in way.stages:
            found.setdefault(way, []).append(stage)
    return tuple(n for stages in found.values() for n in (stages if shared else stages[:1]))


def hybrids(request: Request, family: Strategy) -> Iterator[Strategy]:
    """The family with full shards within a node, or a part of it, and replicas between (HSDP)."""
    way = way_taken(request.constraints, family.back_end, family.zero_stage)
    ranks, run = family.layout.data_parallel_size, family.runs_as
    if way is None or not way.hybrid or family.zero_stage != FULLY_SHARDED:
        return
    node = request.cluster.gpus_per_node // family.layout.tensor_parallel_size
    for size in divisors(ranks)[1:-1]:
        if node % size == 0:
            grouped = run.model_copy(update={"shard_group": size})
            yield family.model_copy(update={"execution": grouped})


def said_recompute(fixed: Constraints) -> Recompute | None:
    """What is said of recomputation, or follows from what is; none: nothing."""
    saved = fixed.trainer is not None and ENGINES[fixed.trainer].offloads_saved
    follows = fixed.tiled_mlp or (fixed.offload_activations and not saved)
    return fixed.recompute or ("full" if follows else None)


def recomputations(request: Request, family: Strategy) -> tuple[Recompute, ...]:
    """Lightest first. With flash attention `selective` saves nothing, so it must be asked for.

    Unless a program chooses among products, and not among scores.
    """
    fixed = said_recompute(request.constraints)
    if fixed:
        return (fixed,)
    way = way_taken(request.constraints, family.back_end, family.zero_stage)
    chooses = way is not None and family.engine.selective != "scores"
    return way.recompute if way is not None and chooses else ("none", "full")
