"""Words for a choice: what was preferred, and by how much. Every figure is that of its row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NamedTuple

from dsforge.plan import Priced, Reason, Request
from dsforge.planner.candidates import BACK_ENDS, base, layouts
from dsforge.planner.explore import Candidate, Explored
from dsforge.planner.preference import doubt, tight_and_faster
from dsforge.planner.pricing import is_safe, missing_bytes, price, shortage
from dsforge.rules import check
from dsforge.strategy import FULLY_SHARDED, Strategy
from dsforge.units import gb_per_s, gib, seconds

CLEARLY_FASTER = 0.9  # a step that takes this share of another's is worth a word
TIGHT = "tight-but-faster"


class Rivals(NamedTuple):
    """What else was found, the fastest member of each family standing for it."""

    explored: tuple[Explored, ...]
    likewise: tuple[Candidate, ...]  # of those that fit as surely as the choice
    kept: tuple[Candidate, ...]  # of those, recomputing nothing
    fitting: tuple[Candidate, ...]  # of all that likely fit
    tight: Candidate | None  # the fastest that fits less surely, where it beats all these

    def fastest(self, wanted: Callable[[Strategy], bool]) -> Candidate | None:
        """The fastest that fits likewise, of the families that are wanted."""
        return _fastest(c for c in self.likewise if wanted(c.family))


def rivals(request: Request, explored: tuple[Explored, ...]) -> Rivals:
    """What else was found; once for all rows of a search."""
    fitting = tuple(candidate for found in explored for candidate in found.fitting)
    most = doubt(request, fitting)
    members = [
        [candidate for candidate in found.fitting if candidate.excess_bytes <= most]
        for found in explored
    ]
    kept = ([c for c in group if c.recompute == "none"] for group in members)
    return Rivals(
        explored=explored,
        likewise=tuple(filter(None, map(_fastest, members))),
        kept=tuple(filter(None, map(_fastest, kept))),
        fitting=tuple(filter(None, (_fastest(found.fitting) for found in explored))),
        tight=tight_and_faster(request, fitting) if fitting else None,
    )


def _fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=attrgetter("step_s"), default=None)


def choice_reasons(request: Request, best: Priced, found: Rivals) -> tuple[Reason, ...]:
    """Why this one: against faster ones, the next ZeRO stage, the other back end, in memory."""
    reasons = (
        _preferred(request, best, found),
        _tight(request, best, found),
        _against_back_end(request, best, found),
        _against_stage(request, best, found.explored),
        _over_stage(request, best, found),
        _against_cut(best, found),
        _placement(request, best),
        _offload(request, best, found),
        _recompute(request, best, found),
        _headroom(request, best),
    )
    return tuple(reason for reason in reasons if reason is not None)


def risk_of(request: Request, priced: Priced, than_s: float) -> str:
    """`takes 0.27x the time, but is tight: ...` for a plan whose upper estimate does not fit."""
    memory, cluster = priced.memory, request.cluster
    room = gib(-missing_bytes(cluster, memory))
    ratio = priced.time.step_s.likely / than_s
    return (
        f"takes {seconds(priced.time.step_s.likely)}, {ratio:.2f}x the time, but is tight: {room} "
        f"left by the likely estimate, and the upper one ({gib(memory.device_bytes.high)}) does "
        f"not fit; `--risk` takes it"
    )


def _preferred(request: Request, best: Priced, found: Rivals) -> Reason | None:
    """The fastest that fits likewise, where an easier one is taken."""
    fastest, mine = _fastest(found.likewise), best.time.step_s.likely
    if fastest is None or fastest.step_s >= mine:
        return None
    return Reason(
        rule="easier-than-the-fastest",
        message=(
            f"the fastest ({fastest.strategy.label()}) takes {seconds(fastest.step_s)}, "
            f"{fastest.step_s / mine:.2f}x the time of this one; up to {request.prefer:g}x the "
            f"fastest the easier plan is taken, `--prefer 1` takes the fastest"
        ),
    )


def _tight(request: Request, best: Priced, found: Rivals) -> Reason | None:
    """A plan that is clearly faster, but fits less surely."""
    mine = best.time.step_s.likely
    if found.tight is None or found.tight.step_s > CLEARLY_FASTER * mine or not best.fits:
        return None
    other = price(request.model, request.cluster, request.workload, found.tight.strategy)
    words = risk_of(request, other, mine)
    return Reason(rule=TIGHT, message=f"{other.strategy.label()} {words}")


def _against_stage(request: Request, best: Priced, explored: tuple[Explored, ...]) -> Reason | None:
    """Against the next higher ZeRO stage without offload, at the same batching where it fits."""
    mine = best.strategy
    if mine.back_end != "deepspeed" or mine.zero_stage == FULLY_SHARDED or mine.offloads:
        return None
    stage = mine.zero_stage + 1
    alike = [
        found
        for found in explored
        if found.family.back_end == mine.back_end
        and found.family.zero_stage == stage
        and _cuts(found.family) == _cuts(mine)
        and not found.family.offloads
    ]
    same = (
        candidate
        for found in alike
        if found.family.layout == mine.layout
        for candidate in found.fitting
        if (candidate.batching, candidate.recompute) == (mine.batching, mine.recompute)
    )
    chosen = next(same, None) or _fastest(c for found in alike for c in found.fitting)
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


def _cuts(strategy: Strategy) -> tuple[int, int]:
    """How tensor ranks and stages cut the model."""
    return strategy.layout.tensor_parallel_size, strategy.layout.pipeline_parallel_size


def _over_stage(request: Request, best: Priced, found: Rivals) -> Reason | None:
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
        likely = any(lower(c.family) for c in found.fitting)
        sure = "fit only by the likely estimate, not by the upper one" if likely else "do not fit"
        return Reason(rule="zero3-to-fit", message=f"ZeRO 0, 1 and 2 {sure}")
    ratio = other.step_s / best.time.step_s.likely
    what = f"{other.strategy.label()} takes {ratio:.2f}x the time"
    return Reason(
        rule="zero3-over-zero2",
        message=f"{what}, with {gib(other.device_bytes)} on each accelerator",
    )


def _against_back_end(request: Request, best: Priced, found: Rivals) -> Reason | None:
    """Against the best plan of the other back end that fits likewise."""
    mine = best.strategy.back_end
    other = found.fastest(lambda s: s.back_end != mine)
    if other is None:
        if mine == "deepspeed" or request.constraints.back_end:
            return None
        return Reason(rule="megatron-only", message=_megatron_only(request, found))
    fastest = _fastest(found.likewise)
    if other is fastest and other.step_s < best.time.step_s.likely:  # said already
        return None
    back_end, label = other.family.back_end, other.strategy.label()
    words = f"the best {back_end} plan ({label}) takes {seconds(other.step_s)}, "
    words += f"{other.step_s / best.time.step_s.likely:.2f}x the time of this one"
    rule = "deepspeed-is-simpler" if mine == "deepspeed" else "megatron-is-faster"
    if mine == "megatron" and fastest and other.step_s > request.prefer * fastest.step_s:
        words += f"; DeepSpeed is taken up to {request.prefer:g}x the fastest"
    return Reason(rule=rule, message=words)


def _against_cut(best: Priced, found: Rivals) -> Reason | None:
    """Against DeepSpeed's own tensor or pipeline parallelism, where that is clearly faster."""
    mine = best.strategy
    if mine.back_end != "deepspeed" or mine.layout.model_ranks > 1:
        return None
    other = found.fastest(
        lambda s: s.back_end == "deepspeed" and s.layout.model_ranks > 1 and not s.offloads
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


def _megatron_only(request: Request, found: Rivals) -> str:
    """What keeps DeepSpeed out: a rule, else memory."""
    if any(candidate.family.back_end == BACK_ENDS[0] for candidate in found.fitting):
        return "DeepSpeed's plans fit only by the likely memory estimate, not by the upper one"
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
        across = cluster.nvlink_domains > 1
        rate = cluster.inter_node_bytes_per_s if across else inside.bytes_per_s
        words.append(
            f"{layout.pipeline_parallel_size} pipeline stages send activations only, the slowest "
            f"hop over {between.name if across else inside.name} ({gb_per_s(rate)}); "
            f"{best.time.terms.bubble_s / best.time.step_s.likely:.0%} of the step is bubble"
        )
    if not words:
        return None
    return Reason(rule="tensor-in-node", message="; ".join(words))


def _offload(request: Request, best: Priced, found: Rivals) -> Reason | None:
    """What offload costs, and why it is taken."""
    strategy, fixed = best.strategy, request.constraints
    if not strategy.offloads:
        return None
    asked = fixed.offload_optimizer or fixed.offload_parameters
    why = "offload was asked for" if asked else _why_offload(best, found)
    peak = max(value for _, value in best.memory.host_bytes)
    return Reason(
        rule="offload-asked" if asked else "offload-to-fit",
        message=(
            f"{why}; it costs {seconds(best.time.terms.offload_s)} of copies and "
            f"{seconds(best.time.terms.optimizer_s)} of optimizer per step, and {gib(peak)} of "
            f"host RAM on each node at its peak"
        ),
    )


def _why_offload(best: Priced, found: Rivals) -> str:
    """What becomes of the plans that leave everything on the device."""
    other = found.fastest(lambda s: not s.offloads)
    if other is not None:
        ratio = other.step_s / best.time.step_s.likely
        return f"without offload the fastest ({other.strategy.label()}) takes {ratio:.2f}x the time"
    if any(not candidate.family.offloads for candidate in found.fitting):
        return "without offload only the likely memory estimate fits, not the upper one"
    return "nothing fits without offload"


def _recompute(request: Request, best: Priced, found: Rivals) -> Reason | None:
    """What recomputation buys."""
    mine = best.strategy
    if mine.recompute != "full" or request.constraints.recompute:
        return None
    cut = mine.back_end, mine.layout, mine.zero_stage, mine.offloads

    def alike(s: Strategy) -> bool:
        return (s.back_end, s.layout, s.zero_stage, s.offloads) == cut

    other = _fastest(c for c in found.kept if alike(c.family))
    if other is not None:
        ratio = other.step_s / best.time.step_s.likely
        message = f"recomputation allows a larger micro batch; without it: {ratio:.2f}x the time"
        return Reason(rule="recompute", message=message)
    likely = any(
        candidate.recompute == "none"
        for explored in found.explored
        if explored.fitting and alike(explored.family)
        for candidate in explored.fitting
    )
    sure = "fit only by the likely estimate, not by the upper one" if likely else "do not fit"
    return Reason(rule="recompute", message=f"without recomputation the activations {sure}")


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
            f"not fit, {'and `--risk` was given' if request.risk else 'and nothing fits surely'}"
        ),
    )
