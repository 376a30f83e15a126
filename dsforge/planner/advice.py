"""Words for a choice: what was preferred, and by how much."""

from __future__ import annotations

from collections.abc import Callable

from dsforge.plan import Priced, Reason, Request
from dsforge.planner.candidates import base, layouts
from dsforge.planner.explore import Candidate, Explored
from dsforge.planner.pricing import is_safe, missing_bytes, price, shortage
from dsforge.rules import check
from dsforge.strategy import FULLY_SHARDED, Strategy
from dsforge.units import gb_per_s, gib, seconds

CLEARLY_FASTER = 0.9  # a step that takes this share of another's is worth a word


def choice_reasons(
    request: Request, best: Priced, explored: tuple[Explored, ...]
) -> tuple[Reason, ...]:
    """Why this one: against the next ZeRO stage, the other back end, and in memory and time."""
    found = (
        _against_stage(request, best, explored),
        _over_stage(request, best, explored),
        _against_back_end(request, best, explored),
        _against_cut(best, explored),
        _placement(request, best),
        _offload(request, best),
        _recompute(request, best, explored),
        _headroom(request, best),
    )
    return tuple(reason for reason in found if reason is not None)


def _fastest(
    explored: tuple[Explored, ...], wanted: Callable[[Strategy], bool], *, kept: bool = False
) -> Candidate | None:
    """The fastest candidate of the families that are wanted; `kept`: without recomputation."""
    best = (
        found.fastest(kept=kept) for found in explored if found.fitting and wanted(found.family)
    )
    return min(filter(None, best), key=lambda c: c.step_s, default=None)


def _against_stage(request: Request, best: Priced, explored: tuple[Explored, ...]) -> Reason | None:
    """Against the next higher ZeRO stage without offload, at the same batching where it fits."""
    mine = best.strategy
    if mine.back_end != "deepspeed" or mine.zero_stage == FULLY_SHARDED or mine.offloads:
        return None
    stage = mine.zero_stage + 1
    rivals = [
        found
        for found in explored
        if found.family.back_end == mine.back_end
        and found.family.zero_stage == stage
        and found.family.layout.model_ranks == mine.layout.model_ranks
        and not found.family.offloads
    ]
    same = (
        candidate
        for found in rivals
        if found.family.layout == mine.layout
        for candidate in found.fitting
        if (candidate.batching, candidate.recompute) == (mine.batching, mine.recompute)
    )
    chosen = next(same, None) or _fastest(tuple(rivals), lambda _: True)
    if chosen is None:
        return None
    other = price(request.model, request.cluster, request.workload, chosen.strategy)
    sent = other.time.sent_bytes / max(1, best.time.sent_bytes)
    longer = other.time.step_s.likely / best.time.step_s.likely
    saved = best.memory.device_bytes.likely - other.memory.device_bytes.likely
    return Reason(
        rule=f"zero{mine.zero_stage}-before-zero{stage}",
        message=(
            f"both fit; {other.strategy.label()} would send {sent:.2f}x the bytes, take "
            f"{longer:.2f}x the time and need {gib(abs(saved))} "
            f"{'less' if saved > 0 else 'more'} per accelerator"
        ),
    )


def _over_stage(request: Request, best: Priced, explored: tuple[Explored, ...]) -> Reason | None:
    """Why ZeRO-3, where it was chosen: no lower stage fits, or only much slower."""
    mine = best.strategy
    if request.constraints.zero_stage is not None:
        return None
    if mine.back_end != "deepspeed" or mine.zero_stage != FULLY_SHARDED or mine.offloads:
        return None
    cut = mine.back_end, mine.layout.model_ranks
    other = _fastest(
        explored,
        lambda s: (
            (s.back_end, s.layout.model_ranks) == cut
            and s.zero_stage < FULLY_SHARDED
            and not s.offloads
        ),
    )
    if other is None:
        return Reason(rule="zero3-to-fit", message="ZeRO 0, 1 and 2 do not fit")
    ratio = other.step_s / best.time.step_s.likely
    what = f"{other.strategy.label()} takes {ratio:.2f}x the time"
    return Reason(
        rule="zero3-over-zero2",
        message=f"{what}, with {gib(other.device_bytes)} on each accelerator",
    )


def _against_back_end(
    request: Request, best: Priced, explored: tuple[Explored, ...]
) -> Reason | None:
    other = _fastest(explored, lambda s: s.back_end != best.strategy.back_end)
    if other is None:
        if best.strategy.back_end == "deepspeed" or request.constraints.back_end:
            return None
        return Reason(rule="megatron-only", message=_megatron_only(request))
    ratio = other.step_s / best.time.step_s.likely
    if best.strategy.back_end == "deepspeed":
        rule, trade = "deepspeed-is-simpler", "DeepSpeed trains the model as it is"
    else:
        rule, trade = "megatron-is-faster", "worth another model and checkpoint format"
    back_end, label = other.family.back_end, other.strategy.label()
    return Reason(
        rule=rule,
        message=(
            f"the best {back_end} plan ({label}) takes {ratio:.2f}x the time of this one; {trade}"
        ),
    )


def _against_cut(best: Priced, explored: tuple[Explored, ...]) -> Reason | None:
    """Against DeepSpeed's own tensor or pipeline parallelism, where that is clearly faster."""
    mine = best.strategy
    if mine.back_end != "deepspeed" or mine.layout.model_ranks > 1:
        return None
    other = _fastest(
        explored,
        lambda s: s.back_end == "deepspeed" and s.layout.model_ranks > 1 and not s.offloads,
    )
    if other is None or other.step_s > CLEARLY_FASTER * best.time.step_s.likely:
        return None
    ratio = other.step_s / best.time.step_s.likely
    layout = other.family.layout
    stages = layout.pipeline_parallel_size
    if stages > 1:
        cut, flag = "the model into pipeline stages", f"--pp {stages}"
    else:
        cut, flag = "every layer (AutoTP)", f"--tp {layout.tensor_parallel_size}"
    return Reason(
        rule="whole-before-cut",
        message=(
            f"{other.strategy.label()} takes {ratio:.2f}x the time of this one, but cuts {cut}: "
            f"`dsforge train` can do that, few other trainers; `{flag}` asks for it"
        ),
    )


def _megatron_only(request: Request) -> str:
    """What keeps DeepSpeed out: a rule, else memory."""
    layout = next(layouts(request, "deepspeed"))
    plain = base(request, "deepspeed", layout, stage=1)
    broken = check(request.model, request.cluster, request.workload, plain)
    if broken:
        return f"DeepSpeed is out: {broken[0]}"
    return "no DeepSpeed strategy fits the memory; tensor and pipeline parallelism do"


def _placement(request: Request, best: Priced) -> Reason | None:
    """Why tensor and pipeline parallelism lie where they lie."""
    layout, cluster = best.strategy.layout, request.cluster
    if layout.model_ranks == 1:
        return None
    inside, between = cluster.intra_node, cluster.inter_node
    words = []
    if layout.tensor_parallel_size > 1:
        words.append(
            f"tensor parallelism {layout.tensor_parallel_size} stays on {inside.name} "
            f"({gb_per_s(inside.bytes_per_s)})"
        )
    if layout.pipeline_parallel_size > 1:
        across = cluster.nodes > 1
        rate = cluster.inter_node_bytes_per_s if across else inside.bytes_per_s
        words.append(
            f"{layout.pipeline_parallel_size} pipeline stages send activations only, "
            f"{'at most ' if across else ''}over {between.name if across else inside.name} "
            f"({gb_per_s(rate)}); "
            f"{best.time.terms.bubble_s / best.time.step_s.likely:.0%} of the step is bubble"
        )
    if not words:
        return None
    return Reason(rule="tensor-in-node", message="; ".join(words))


def _offload(request: Request, best: Priced) -> Reason | None:
    strategy, fixed = best.strategy, request.constraints
    if strategy.offload_optimizer == "none" and strategy.offload_parameters == "none":
        return None
    asked = fixed.offload_optimizer or fixed.offload_parameters
    why = "offload was asked for" if asked else "nothing fits without offload"
    return Reason(
        rule="offload-asked" if asked else "offload-to-fit",
        message=(
            f"{why}; it costs {seconds(best.time.terms.offload_s)} of copies and "
            f"{seconds(best.time.terms.optimizer_s)} of optimizer per step, and "
            f"{gib(best.memory.host_bytes.step)} of host RAM on each node"
        ),
    )


def _recompute(request: Request, best: Priced, explored: tuple[Explored, ...]) -> Reason | None:
    if best.strategy.recompute != "full" or request.constraints.recompute:
        return None
    mine = best.strategy
    cut = mine.back_end, mine.layout, mine.zero_stage
    other = _fastest(explored, lambda s: (s.back_end, s.layout, s.zero_stage) == cut, kept=True)
    if other is None:
        message = "without recomputation the activations do not fit"
    else:
        ratio = other.step_s / best.time.step_s.likely
        gain = "a larger micro batch" if ratio >= 1 else "headroom for the upper memory estimate"
        message = f"recomputation allows {gain}; without it: {ratio:.2f}x the time"
    return Reason(rule="recompute", message=message)


def _headroom(request: Request, best: Priced) -> Reason:
    memory, cluster = best.memory, request.cluster
    room = -missing_bytes(cluster, memory)
    if not best.fits:
        return Reason(rule="does-not-fit", message=shortage(cluster, memory))
    if is_safe(cluster, memory):
        return Reason(rule="fits", message=f"{gib(room)} of headroom on each accelerator")
    return Reason(
        rule="fits-tightly",
        message=(
            f"{gib(room)} of headroom; the upper estimate ({gib(memory.device_bytes.high)}) does "
            f"not fit, and nothing else fits better"
        ),
    )
