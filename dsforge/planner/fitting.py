"""Whether anything fits at all: the planner's question without its ranking.

The inverse questions ask it dozens of times, so it prices no step time and stops at the first
member that fits. Of a family it looks at the smallest micro batch with the most recomputation, and
at pipelines that are not interleaved: nothing of the family needs less.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.constraints import check
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.memory import MemoryEstimate, estimate_memory
from dsforge.estimate.params import parameters
from dsforge.plan import Request
from dsforge.planner.back_ends import BACK_ENDS, can_build, wanted
from dsforge.planner.candidates import families, interleavings
from dsforge.planner.pricing import Bound, missing_bytes
from dsforge.planner.ways import recomputations
from dsforge.strategy import Strategy


class Nearest(NamedTuple):
    """A strategy and what it lacks; negative: room left."""

    missing_bytes: int
    strategy: Strategy
    memory: MemoryEstimate


def is_large(request: Request) -> bool:
    """Whether the weights alone exceed one device."""
    weights = element_bytes(request.workload) * parameters(request.model)
    return weights > request.cluster.gpu.memory_bytes


def preferred(request: Request) -> Request:
    """The request with DeepSpeed fixed for a small model: its answer comes first.

    A batch that does not divide keeps nobody from DeepSpeed: another batch is a smaller change.
    """
    if len(wanted(request)) == 1 or is_large(request) or all(_kept_from_deepspeed(request)):
        return request
    fixed = request.constraints.model_copy(update={"back_end": BACK_ENDS[0]})
    return request.model_copy(update={"constraints": fixed})


def nearest(request: Request, bound: Bound = "likely") -> Nearest | None:
    """The first legal strategy found that fits, else the nearest; none where none is legal."""
    best: Nearest | None = None
    for back_end in wanted(request):
        if not can_build(request, back_end):
            continue
        seen = set()  # cuts that were legal with more context ranks: with fewer nothing is lighter
        for family in reversed(tuple(families(request, back_end))):  # the lightest come last
            cut = _without_context(family)
            found = None if cut in seen else _lightest(request, family, bound)
            if found is None:
                continue
            seen.add(cut)
            if best is None or found.missing_bytes < best.missing_bytes:
                best = found
                if best.missing_bytes <= 0:
                    return best
    return best


def _without_context(family: Strategy) -> tuple[object, ...]:
    """What a family fixes beside the share of a sequence, and of a batch, on a rank.

    A second copy of the weights is left out: without it nothing is heavier.
    """
    layout = family.layout
    sizes = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.expert_parallel_size
    return *sizes, family.zero_stage, family.offload_optimizer, family.offload_parameters


def _kept_from_deepspeed(request: Request) -> list[bool]:
    """Whether more than the batch forbids each DeepSpeed family that cuts the model least."""
    inputs = request.model, request.cluster, request.workload
    every = tuple(families(request, BACK_ENDS[0]))
    least = min(family.layout.model_ranks for family in every)
    return [
        any(problem.rule != "batch-product" for problem in check(*inputs, family))
        for family in every
        if family.layout.model_ranks == least
    ]


def _lightest(request: Request, family: Strategy, bound: Bound) -> Nearest | None:
    """The lightest member of a family; none where the family is not legal."""
    inputs = request.model, request.cluster, request.workload
    batchings = next(iter(interleavings(request, family)), ())
    if not batchings or check(*inputs, family):
        return None
    micro, steps, _ = batchings[0]
    member = family.model_copy(
        update={
            "micro_batch_size": micro,
            "gradient_accumulation_steps": steps,
            "recompute": recomputations(request, family)[-1],
        }
    )
    memory = estimate_memory(*inputs, member)
    return Nearest(missing_bytes(request.cluster, memory, bound), member, memory)
