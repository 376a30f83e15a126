"""Reasons for a choice, those that cost most first; every figure is that of the row it names."""

from __future__ import annotations

from math import inf, log

from dsforge.constraints import check
from dsforge.errors import Problem
from dsforge.plan import Priced, Reason, Request
from dsforge.planner.back_ends import BACK_ENDS, wanted
from dsforge.planner.candidates import base, layouts
from dsforge.planner.explore import Explored
from dsforge.planner.megatron_advice import (
    CLEARLY_FASTER,
    conversion_reason,
    left_out_reason,
    unbuilt_reason,
)
from dsforge.planner.memory_advice import (
    experts_reason,
    headroom_reason,
    offload_reason,
    quantised_reason,
    recompute_reason,
    unstated_loss_reason,
    whole_logits_reason,
)
from dsforge.planner.preference import demand, ease
from dsforge.planner.pricing import price, room_left
from dsforge.planner.rivals import Rivals, fastest
from dsforge.planner.wording import LIKELY_ONLY, Said, against, memory_name, said
from dsforge.strategy import FULLY_SHARDED, Strategy
from dsforge.units import SAME, factor, gb_per_s, gib, seconds, times

COST_DIGITS = 9
NOTICED_BYTES = 1 << 24  # a smaller difference of memory shows as none
TIGHT = "tight-but-faster"


def choice_reasons(request: Request, best: Priced, found: Rivals) -> tuple[Reason, ...]:
    """Why this plan: what was given up for it, and what that costs, the most expensive first."""
    every = (
        _batch(request, best, found),
        _preferred(request, best, found),
        _tight(request, best, found),
        _against_back_end(request, best, found),
        left_out_reason(request, best, found),
        unbuilt_reason(request, best, found),
        _freely(request, best, found),
        conversion_reason(request, best),
        _against_stage(request, best, found.explored),
        _over_stage(request, best, found),
        _against_cut(best, found),
        _shared_sequences(request, best, found),
        _placement(request, best),
        offload_reason(request, best, found),
        quantised_reason(request, best, found),
        experts_reason(request, best),
        recompute_reason(request, best, found),
        unstated_loss_reason(request, best),
        whole_logits_reason(request, best),
        headroom_reason(request, best),
    )
    # Equal costs that differ in their last digit, by the machine, have the order above.
    ordered = sorted(filter(None, every), key=lambda one: -round(one.cost, COST_DIGITS))
    return tuple(one.reason for one in ordered)


def risk_of(request: Request, priced: Priced, than_s: float) -> str:
    """`is 3.70x faster (56.9 s), but tight: ...` for a plan whose upper estimate does not fit."""
    memory, cluster = priced.memory, request.cluster
    step_s = priced.time.step_s.likely
    left = gib(room_left(cluster, memory)["device"])
    return (
        f"is {times(step_s, than_s)} ({seconds(step_s)}), but tight: it leaves {left} on each "
        f"{cluster.gpu.name} by the likely estimate, and the upper estimate "
        f"({gib(memory.device_bytes.high)}) does not fit; `--risk` allows it"
    )


def _preferred(request: Request, best: Priced, found: Rivals) -> Said | None:
    """The fastest that fits likewise, where an easier one is taken."""
    other, mine = fastest(found.likewise), best.time.step_s.likely
    if other is None or other.step_s * SAME > mine:
        return None
    price_of = demand(best.strategy, other.strategy)
    more = other.device_bytes - best.memory.device_bytes.likely
    if not price_of and ease(best.strategy) == ease(other.strategy) and more > NOTICED_BYTES:
        but = f"but needs {gib(more)} more {memory_name(request)}"
        message = f"{against(other, mine)}, {but}; of plans that are about as fast, that decides"
        return said("easier-than-the-fastest", message, mine / other.step_s)
    but = f", but {price_of}" if price_of else ""
    message = (
        f"{against(other, mine)}{but}; a simpler plan is chosen if it is at most "
        f"{factor(request.prefer)} slower, `--prefer 1` chooses the fastest"
    )
    return said("easier-than-the-fastest", message, mine / other.step_s)


def _batch(request: Request, best: Priced, found: Rivals) -> Said | None:
    """The batches that ZeRO could share, where this one alone has the model cut."""
    others = found.likely(lambda s: s.back_end == BACK_ENDS[0])
    mine = best.strategy
    whole = mine.back_end == BACK_ENDS[0] and _model_splits(mine) == WHOLE
    if mine.layout.model_ranks == 1 or whole or BACK_ENDS[0] not in wanted(request) or not others:
        return None
    broken = _broken_by_zero(request)
    if [problem.rule for problem in broken] != ["batch-product"]:
        return None
    message = f"ZeRO cannot train the whole model here: {broken[0]}"
    return Said(inf, Reason(rule=broken[0].rule, message=message))


def _broken_by_zero(request: Request) -> tuple[Problem, ...]:
    """The rules that ZeRO-1 breaks on the layout that cuts the model least."""
    layout = next(layouts(request, BACK_ENDS[0]))
    plain = base(request, BACK_ENDS[0], layout, stage=1)
    return check(request.model, request.cluster, request.workload, plain)


def _tight(request: Request, best: Priced, found: Rivals) -> Said | None:
    """A plan that is clearly faster, but fits less surely."""
    mine = best.time.step_s.likely
    if found.tight is None or found.tight.step_s > CLEARLY_FASTER * mine or not best.fits:
        return None
    other = price(request.model, request.cluster, request.workload, found.tight.strategy)
    words = risk_of(request, other, mine)
    return said(TIGHT, f"{other.strategy.label()} {words}", mine / found.tight.step_s)


def _against_stage(request: Request, best: Priced, explored: tuple[Explored, ...]) -> Said | None:
    """Against the next higher ZeRO stage without offload, at the same batching where it fits."""
    mine = best.strategy
    if mine.back_end != "deepspeed" or mine.zero_stage == FULLY_SHARDED or mine.offloads:
        return None
    if mine.layout.shard_ranks == 1:  # nothing to shard: every stage is the same
        return None
    stage = mine.zero_stage + 1
    alike = [
        found
        for found in explored
        if found.family.back_end == mine.back_end
        and found.family.zero_stage == stage
        and _model_splits(found.family) == _model_splits(mine)
        and not found.family.offloads
    ]
    same = (
        candidate
        for found in alike
        if found.family.layout == mine.layout
        for candidate in found.fitting
        if (candidate.batching, candidate.recompute) == (mine.batching, mine.recompute)
    )
    chosen = next(same, None) or fastest(c for found in alike for c in found.fitting)
    if chosen is None:
        return None
    other = price(request.model, request.cluster, request.workload, chosen.strategy)
    saved = best.memory.device_bytes.likely - other.memory.device_bytes.likely
    size = f"{gib(abs(saved))} {'less' if saved > 0 else 'more'}"
    more = f"{size if abs(saved) >= NOTICED_BYTES else 'as much'} {memory_name(request)}"
    sent = other.time.sent_bytes / best.time.sent_bytes if best.time.sent_bytes else 1.0
    sends = f", sends {factor(sent)} the bytes" if abs(log(sent or 1.0)) > log(SAME) else ""
    mine_s = best.time.step_s.likely
    message = f"{against(chosen, mine_s)}{sends} and needs {more}"
    return said(f"zero{mine.zero_stage}-before-zero{stage}", message, chosen.step_s / mine_s)


WHOLE = (1, 1)  # one tensor rank, one stage


def _model_splits(strategy: Strategy) -> tuple[int, int]:
    """How tensor ranks and stages cut the model."""
    return strategy.layout.tensor_parallel_size, strategy.layout.pipeline_parallel_size


def _over_stage(request: Request, best: Priced, found: Rivals) -> Said | None:
    """Why ZeRO-3, where it was chosen: no lower stage fits, or only much slower."""
    mine = best.strategy
    if request.constraints.zero_stage is not None:
        return None
    if mine.back_end != "deepspeed" or mine.zero_stage != FULLY_SHARDED or mine.offloads:
        return None
    cut = mine.back_end, mine.layout.model_ranks

    def lower(s: Strategy) -> bool:
        alike = (s.back_end, s.layout.model_ranks) == cut and not s.offloads
        return alike and s.zero_stage < FULLY_SHARDED

    other = found.fastest(lower)
    if other is None:
        if not found.legal(lower):
            return None
        sure = f"fit {LIKELY_ONLY}" if found.likely(lower) else "do not fit"
        return said("zero3-to-fit", f"without offload, ZeRO stages 0, 1 and 2 {sure}")
    mine_s = best.time.step_s.likely
    message = (
        f"{against(other, mine_s)} and needs {gib(other.device_bytes)} of {memory_name(request)}"
    )
    return said("zero3-over-zero2", message, other.step_s / mine_s)


def _against_back_end(request: Request, best: Priced, found: Rivals) -> Said | None:
    """Against the best plan of the other back end that fits likewise."""
    if request.constraints.program is not None:
        return None  # the program has its engine
    mine, mine_s = best.strategy.back_end, best.time.step_s.likely
    other = found.fastest(lambda s: s.back_end != mine)
    if other is None:
        if mine == "deepspeed" or request.constraints.back_end:
            return None
        return said("megatron-only", _megatron_only(request, found))
    first = fastest(found.likewise)
    if other is first and other.step_s < mine_s:  # said already
        return None
    rule = "deepspeed-is-simpler" if mine == "deepspeed" else "megatron-is-faster"
    words = f"on {other.family.engine.label}, {against(other, mine_s)}"
    asks = demand(best.strategy, other.strategy)
    words += f", but {asks}" if asks and other.step_s < mine_s else ""
    if mine == "megatron" and first and other.step_s > request.prefer * first.step_s > first.step_s:
        words += f"; DeepSpeed is chosen if it is at most {factor(request.prefer)} slower"
    return said(rule, words, other.step_s / mine_s)


def _freely(request: Request, best: Priced, found: Rivals) -> Said | None:
    """What the program costs against dsforge's own engines."""
    other, mine_s, name = found.freely, best.time.step_s.likely, request.constraints.program
    if other is None:
        return None
    message = f"planned for {name}; without `--for {name}`, {against(other, mine_s)}"
    return said("program-price", message, max(1.0, mine_s / other.step_s))


def _against_cut(best: Priced, found: Rivals) -> Said | None:
    """Against DeepSpeed's own tensor or pipeline parallelism, where that is clearly faster."""
    mine, mine_s = best.strategy, best.time.step_s.likely
    if mine.back_end != "deepspeed" or mine.layout.model_ranks > 1:
        return None
    other = found.fastest(
        lambda s: s.back_end == "deepspeed" and _model_splits(s) != WHOLE and not s.offloads
    )
    if other is None or other.step_s > CLEARLY_FASTER * mine_s or other is fastest(found.likewise):
        return None
    layout = other.family.layout
    stages = layout.pipeline_parallel_size
    flag = f"--pp {stages}" if stages > 1 else f"--tp {layout.tensor_parallel_size}"
    message = (
        f"{against(other, mine_s)}, but {demand(mine, other.strategy)}: `dsforge train` "
        f"supports that, few other trainers do; `{flag}` selects it"
    )
    return said("whole-before-cut", message, mine_s / other.step_s)


def _shared_sequences(request: Request, best: Priced, found: Rivals) -> Said | None:
    """Why several GPUs share each sequence (Ulysses): what whole sequences would cost."""
    mine, mine_s = best.strategy, best.time.step_s.likely
    ranks = mine.layout.context_parallel_size
    asked = request.constraints.context_parallel_size is not None
    if mine.back_end != BACK_ENDS[0] or ranks == 1 or asked:
        return None
    work, gpus = request.workload, request.cluster.gpus
    other = found.fastest(_holds_whole_sequences)
    if other is not None:
        why = f"without it, {against(other, mine_s)}"
    elif found.likely(_holds_whole_sequences):
        why = f"without it, plans fit {LIKELY_ONLY}"
    elif found.legal(_holds_whole_sequences):
        why = "without it, no plan fits"
    elif work.global_batch_size < gpus:
        why = f"a global batch of {work.global_batch_size} is too small for {gpus} GPUs without it"
    else:
        why = "without it, no plan is valid"
    message = (
        f"{ranks} GPUs share each sequence (Ulysses), {work.sequence_length // ranks:,} tokens per "
        f"GPU; {why}"
    )
    return said("shared-sequences", message, other.step_s / mine_s if other else 1.0)


def _holds_whole_sequences(strategy: Strategy) -> bool:
    """Whether it is a plan of DeepSpeed in which no GPUs share a sequence."""
    return strategy.back_end == BACK_ENDS[0] and strategy.layout.context_parallel_size == 1


def _megatron_only(request: Request, found: Rivals) -> str:
    """What keeps DeepSpeed out: a rule, else memory."""
    if found.likely(lambda s: s.back_end == BACK_ENDS[0]):
        return f"DeepSpeed plans fit {LIKELY_ONLY}"
    broken = _broken_by_zero(request)
    if broken:
        return f"DeepSpeed cannot run this: {broken[0]}"
    return "no DeepSpeed plan fits in memory"


def _placement(request: Request, best: Priced) -> Said | None:
    """Why tensor and pipeline parallelism lie where they lie."""
    layout, cluster = best.strategy.layout, request.cluster
    inside, between = cluster.intra_node, cluster.inter_node
    words, bubble = [], best.time.terms.bubble_s / best.time.step_s.likely
    if layout.tensor_parallel_size > 1:
        words.append(
            f"{layout.tensor_parallel_size} tensor parallel ranks communicate over {inside.name} "
            f"({gb_per_s(inside.bytes_per_s)})"
        )
    if layout.pipeline_parallel_size > 1:
        across = cluster.nvlink_domains > 1
        rate = cluster.inter_node_bytes_per_s if across else inside.bytes_per_s
        words.append(
            f"{layout.pipeline_parallel_size} pipeline stages exchange only activations; the "
            f"slowest hop is {between.name if across else inside.name} ({gb_per_s(rate)}); the "
            f"pipeline bubble is {bubble:.0%} of the step"
        )
    return said("tensor-in-node", "; ".join(words), 1 - bubble) if words else None
