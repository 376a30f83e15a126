"""The rule of choice, which fits on a card.

1. Memory. A plan counts if even the upper end of its memory estimate fits. Where none does, those
   count whose upper end is least beyond. With `risk` all count that likely fit.
2. Time. The best is the smallest predicted step of any kind, on all of the machines or fewer.
3. Ease. Of what counts and takes at most `prefer` times the best, the easiest is chosen: all
   machines before fewer, no offload before offload, the whole model on each rank before a cut one,
   DeepSpeed before Megatron, whole samples before shared ones (Ulysses), its stages 0 to 2 before
   ZeRO-3, no second copy of the weights; then the clock. One digit tells stages 0 to 2 apart, and
   FSDP is made to shard its weights: neither asks anything of its user.

What follows: better hardware never makes the best step longer. A strategy takes no more memory and
no more time on a faster link, more adapters, a faster or larger card, more RAM (random ones are
asked in tests/unit/test_invariants.py), so all that counted counts still, no slower; and machines
may stay idle, so the plans of fewer are among those of more. The minimum over a set that only
grows, of values that only fall, never rises. The choice takes at most `prefer` times that minimum,
so it is never more than `prefer` times slower than the choice on lesser hardware, however many
steps lie between, and with `--prefer 1` never slower at all.

More cannot be had from any rule that prefers ease: where an easy plan falls behind a quick one as
the network gets slower, there is a point at which it is given up, and across that point the better
network has the slower plan, by the factor at which it is given up. `prefer` bounds that factor.
Where nothing fits for sure, more memory, too, brings no slower plan: all excesses shrink alike, so
the plan that counted is among the first to fit for sure. Other hardware may: it can buy certainty,
a new plan that fits better. That is what `risk` is for.
"""

from __future__ import annotations

from math import inf, log

from dsforge.plan import Request
from dsforge.planner.back_ends import BACK_ENDS
from dsforge.planner.explore import Candidate
from dsforge.strategy import Strategy
from dsforge.zero_stages import FULLY_SHARDED

PLACES = ("none", "cpu", "nvme")
TICK = 100  # times the logarithm of a step: steps within about 1 % tie


def counted(request: Request, fitting: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """The plans that fit likewise: for sure, or least in doubt; all of them with `risk`."""
    most = doubt(request, fitting)
    return tuple(candidate for candidate in fitting if candidate.excess_bytes <= most)


def doubt(request: Request, fitting: tuple[Candidate, ...]) -> float:
    """Bytes that an upper estimate may lie beyond the device: 0 where anything fits for sure."""
    if request.risk:
        return inf
    return min((candidate.excess_bytes for candidate in fitting), default=0.0)


def choice(request: Request, fitting: tuple[Candidate, ...]) -> Candidate:
    """The easiest plan within the preference of the fastest, of those that fit likewise."""
    pool = counted(request, fitting)
    best_s = min(request.part_step_s, *(candidate.step_s for candidate in pool))
    near = [candidate for candidate in pool if candidate.step_s <= request.prefer * best_s]
    return min(near, key=lambda candidate: (ease(candidate.family), *_figures(candidate)))


def tight_and_faster(request: Request, fitting: tuple[Candidate, ...]) -> Candidate | None:
    """The fastest plan that fits less surely than those that count, where it beats them all."""
    least = doubt(request, fitting)
    limit_s = min(c.step_s for c in fitting if c.excess_bytes <= least)
    tight = [c for c in fitting if c.excess_bytes > least and c.step_s < limit_s]
    return min(tight, key=lambda c: (c.step_s, c.device_bytes), default=None)


def rank(request: Request, fitting: tuple[Candidate, ...]) -> list[Candidate]:
    """The choice, then all that fit likewise, fastest first."""
    first = choice(request, fitting)
    rest = [candidate for candidate in counted(request, fitting) if candidate is not first]
    return [first, *sorted(rest, key=lambda candidate: candidate.step_s)]


def ease(family: Strategy) -> tuple[int, bool, bool, bool, bool, bool]:
    """What a way to train asks of its user, the greatest demand first; less is easier."""
    moved = PLACES.index(family.offload_optimizer) + 3 * PLACES.index(family.offload_parameters)
    on_megatron = family.back_end != BACK_ENDS[0]
    return (
        moved,
        _is_cut(family),
        on_megatron,
        not on_megatron and family.layout.context_parallel_size > 1,
        _gathers_weights(family),
        family.hpz_partition_size > 1,
    )


def demand(mine: Strategy, other: Strategy) -> str:
    """What another way to train asks of its user beyond this one; empty where it asks no more."""
    pairs = enumerate(zip(ease(mine), ease(other), strict=True))
    place = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
    if place is None or ease(mine) > ease(other):
        return ""
    moved = [
        f"the {what} to {where}"
        for what, where in (
            ("optimizer", other.offload_optimizer),
            ("parameters", other.offload_parameters),
        )
        if where != PLACES[0]
    ]
    return (
        f"offloads {' and '.join(moved)}",
        _split(other),
        "needs the model and its checkpoints in Megatron-LM's format",
        f"splits each sequence over {other.layout.context_parallel_size} GPUs (Ulysses)",
        f"needs ZeRO-{FULLY_SHARDED}",
        "stores a second copy of the weights (hpZ)",
    )[place]


def _split(family: Strategy) -> str:
    """How a cut model is split."""
    stages = family.layout.pipeline_parallel_size
    if stages > 1:
        return f"splits the model into {stages} pipeline stages"
    return f"splits every layer over {family.layout.tensor_parallel_size} GPUs (AutoTP)"


def _is_cut(family: Strategy) -> bool:
    """Whether stages share the layers, or AutoTP the matrices, which Megatron is made for."""
    layout = family.layout
    split = family.back_end == BACK_ENDS[0] and layout.tensor_parallel_size > 1
    return layout.pipeline_parallel_size > 1 or split


def _gathers_weights(family: Strategy) -> bool:
    """Whether weights are whole only while they are used, in an engine that offers other ways."""
    return family.engine.name == BACK_ENDS[0] and family.zero_stage == FULLY_SHARDED


def _figures(candidate: Candidate) -> tuple[int, float, float]:
    """The clock, memory where the clock ties, and the clock again."""
    tick = round(TICK * log(candidate.step_s))
    return tick, candidate.device_bytes, candidate.step_s
