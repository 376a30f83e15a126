"""The search over families and batchings, and the choice among what fits."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

from dsforge.errors import DoesNotFitError, LayoutError, Problem
from dsforge.estimate.params import parameters
from dsforge.plan import Plan, Priced, Rejected, Request, Search, Variant
from dsforge.planner.advice import choice_reasons, relaxations
from dsforge.planner.candidates import KEPT, batchings, families
from dsforge.planner.pricing import (
    is_safe,
    largest_term,
    missing_bytes,
    price,
    rounded_gib,
    shortage,
)
from dsforge.planner.variants import variants
from dsforge.rules import check
from dsforge.strategy import BackEnd, Strategy
from dsforge.units import gib

SIMPLER_MARGIN = 1.10  # a simpler plan may be this much slower and still be chosen
MEGATRON_MARGIN = 1.30  # Megatron must be this much faster to be worth another code base
BACK_ENDS: tuple[BackEnd, ...] = ("deepspeed", "megatron")


class _Found(NamedTuple):
    """Everything that a search has seen."""

    fitting: tuple[Priced, ...]
    tight: tuple[Priced, ...]  # the member of each family that comes nearest to fitting
    rejected: tuple[Rejected, ...]
    problems: tuple[Problem, ...]
    candidates: int


def choose(request: Request) -> Plan:
    """The best plan of a request, with its variants.

    Raises LayoutError where no combination is legal and DoesNotFitError where none fits.
    """
    found = _look(request)
    best = rank(request, _required(request, found).fitting)[0]
    return _plan(request, best, found, with_variants=True)


def search(request: Request) -> Search:
    """All plans that fit, best first, and what was given up. Raises as `choose` does."""
    started = perf_counter()
    found = _look(request)
    ranked = rank(request, _required(request, found).fitting)
    plans = tuple(
        _plan(request, priced, found, with_variants=index == 0)
        for index, priced in enumerate(_best_of_each_family(ranked))
    )
    return Search(
        plans=plans,
        rejected=found.rejected,
        candidates=found.candidates,
        seconds=perf_counter() - started,
    )


def rank(request: Request, fitting: tuple[Priced, ...]) -> list[Priced]:
    """Plans in the order in which we would choose them; the first is the choice."""
    cluster = request.cluster
    ordered = sorted(
        fitting, key=lambda priced: (not is_safe(cluster, priced), priced.time.step_s.likely)
    )
    safe = [priced for priced in ordered if is_safe(cluster, priced)] or ordered
    first = _simplest(safe)
    return [first, *(priced for priced in ordered if priced is not first)]


def _simplest(ordered: list[Priced]) -> Priced:
    """The fastest plan, or a simpler one that is hardly slower."""
    best = ordered[0]
    for candidate in sorted(ordered, key=_complexity):
        margin = SIMPLER_MARGIN
        if best.strategy.back_end == "megatron" and candidate.strategy.back_end == "deepspeed":
            margin = MEGATRON_MARGIN
        if candidate.time.step_s.likely <= margin * best.time.step_s.likely:
            return candidate
    return best


def _complexity(priced: Priced) -> tuple[int, int, int, float]:
    """How much a strategy asks of the user; then the clock."""
    strategy = priced.strategy
    offloads = (strategy.offload_optimizer != "none") + 2 * (strategy.offload_parameters != "none")
    back_end = BACK_ENDS.index(strategy.back_end)
    stage = strategy.zero_stage if strategy.back_end == "deepspeed" else 0
    return back_end, offloads, stage, priced.time.step_s.likely


def _look(request: Request) -> _Found:
    """Every family of the wanted back ends; offload only where nothing fits without it."""
    wanted = request.constraints.back_end
    back_ends = (wanted,) if wanted else BACK_ENDS
    fitting: list[Priced] = []
    tight: list[Priced] = []
    rejected: list[Rejected] = []
    problems: list[Problem] = []
    candidates = 0
    for family in _ordered(request, back_ends):
        offloaded = (family.offload_optimizer, family.offload_parameters) != KEPT
        if offloaded and any(_same_back_end(priced, family) for priced in fitting):
            continue
        broken = check(request.model, request.cluster, request.workload, family)
        if broken:
            candidates += 1
            problems += [problem for problem in broken if problem not in problems]
            rejected.append(_refused(family, broken))
            continue
        members = [_priced(request, member) for member in batchings(request, family)]
        candidates += len(members)
        good = [priced for priced in members if priced.fits]
        fitting += good
        if members and not good:
            nearest = min(members, key=lambda p: missing_bytes(request.cluster, p.memory))
            tight.append(nearest)
            message = shortage(request.cluster, nearest.memory)
            rejected.append(Rejected(strategy=nearest.strategy, rule="memory", message=message))
    return _Found(tuple(fitting), tuple(tight), tuple(rejected), tuple(problems), candidates)


def _ordered(request: Request, back_ends: tuple[BackEnd, ...]) -> Iterator[Strategy]:
    """Families without offload first."""
    every = [family for back_end in back_ends for family in families(request, back_end)]
    every.sort(key=lambda f: (f.offload_optimizer, f.offload_parameters) != KEPT)
    yield from every


def _same_back_end(priced: Priced, family: Strategy) -> bool:
    return priced.strategy.back_end == family.back_end


def _priced(request: Request, strategy: Strategy) -> Priced:
    return price(request.model, request.cluster, request.workload, strategy)


def _refused(family: Strategy, broken: tuple[Problem, ...]) -> Rejected:
    return Rejected(strategy=family, rule=broken[0].rule, message=str(broken[0]))


def _best_of_each_family(ranked: list[Priced]) -> Iterator[Priced]:
    """The best batching of each family; the others differ by micro batch only."""
    seen = set()
    for priced in ranked:
        strategy = priced.strategy
        key = (
            strategy.back_end,
            strategy.layout.label(),
            strategy.zero_stage,
            strategy.offload_optimizer,
            strategy.offload_parameters,
            strategy.virtual_stages,
        )
        if key not in seen:
            seen.add(key)
            yield priced


def _required(request: Request, found: _Found) -> _Found:
    """What was found. Raises where nothing can be chosen from it."""
    if found.fitting:
        return found
    if not found.tight:
        raise LayoutError(found.problems, "no legal combination for this request")
    nearest = min(found.tight, key=lambda p: missing_bytes(request.cluster, p.memory))
    lacking = missing_bytes(request.cluster, nearest.memory)
    name = largest_term(nearest.memory)
    message = (
        f"{request.model.name} does not fit: the nearest strategy ({nearest.strategy.label()}) "
        f"lacks {gib(lacking)} on each accelerator; it {shortage(request.cluster, nearest.memory)}"
    )
    raise DoesNotFitError(
        message,
        relaxations(request, nearest),
        missing_bytes=lacking,
        largest_term=f"{name} {rounded_gib(getattr(nearest.memory.terms, name))} GiB",
    )


def _plan(request: Request, best: Priced, found: _Found, *, with_variants: bool) -> Plan:
    reasons = (*request.reasons, *choice_reasons(request, best, found.fitting))
    return Plan.model_construct(
        model=request.model,
        parameters=parameters(request.model),
        cluster=request.cluster,
        workload=request.workload,
        choice=best.model_copy(update={"reasons": reasons}),
        variants=variants(request) if with_variants else (),
    )


__all__ = ["Variant", "choose", "rank", "search"]
