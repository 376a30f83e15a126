"""The search over families and batchings, and the choice among what fits."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from time import perf_counter
from typing import NamedTuple

from dsforge.errors import DoesNotFitError, LayoutError, Problem
from dsforge.estimate.params import parameters
from dsforge.plan import Plan, Priced, Rejected, Request, Search, Variant
from dsforge.planner.advice import choice_reasons
from dsforge.planner.candidates import BACK_ENDS, families, wanted
from dsforge.planner.explore import Explored, Explorer
from dsforge.planner.fitting import batch_problems, is_large
from dsforge.planner.pricing import is_safe, largest_term, missing_bytes, shortage
from dsforge.planner.variants import variants
from dsforge.strategy import FULLY_SHARDED

SIMPLER_MARGIN = 1.10  # a simpler plan may be this much slower and still be chosen
# How much slower DeepSpeed may be: Megatron asks for another model and checkpoint format. Where the
# weights alone exceed one device, model parallelism is what everybody needs, so the clock decides.
SMALL_MODEL_MARGIN = 2.5
LARGE_MODEL_MARGIN = 1.05


class _Found(NamedTuple):
    """Everything that a search has seen."""

    fitting: tuple[Priced, ...]
    tight: tuple[Priced, ...]  # the member of each family that comes nearest to fitting
    refused: tuple[Explored, ...]
    candidates: int


def choose(request: Request) -> Plan:
    """The best plan of a request, with its variants.

    Raises LayoutError where no combination is legal and DoesNotFitError where none fits.
    """
    explorer = Explorer(request)
    found = _look(explorer)
    best = rank(request, _required(request, found).fitting)[0]
    return _plan(request, best, found, variants(explorer))


def appraise(request: Request) -> Plan:
    """The best plan within the constraints, or the one nearest to fitting, without variants.

    Raises LayoutError where no combination is legal.
    """
    found = _look(Explorer(request))
    _refuse_misfit(request)
    if found.fitting:
        best = rank(request, found.fitting)[0]
    elif found.tight:
        best = min(found.tight, key=lambda p: missing_bytes(request.cluster, p.memory))
    else:
        raise LayoutError(_broken(found), "no legal combination for this request")
    return _plan(request, best, found, ())


def search(request: Request) -> Search:
    """All plans that fit, best first, and what was given up. Raises as `choose` does."""
    started = perf_counter()
    explorer = Explorer(request)
    found = _look(explorer)
    ranked = _best_of_each_family(rank(request, _required(request, found).fitting))
    others = variants(explorer)
    return Search(
        plans=tuple(_plan(request, priced, found, others) for priced in ranked),
        rejected=_rejected(request, found),
        candidates=found.candidates,
        seconds=perf_counter() - started,
    )


def rank(request: Request, fitting: tuple[Priced, ...]) -> list[Priced]:
    """Plans in the order in which we would choose them: the choice, its back end, the other one."""
    safe = [priced for priced in fitting if is_safe(request.cluster, priced)]
    by_time = sorted(safe or fitting, key=_step_s)
    first = _simplest(by_time, _megatron_margin(request))
    tight = [priced for priced in fitting if not is_safe(request.cluster, priced)] if safe else []
    rest = [priced for priced in (*by_time, *sorted(tight, key=_step_s)) if priced is not first]
    chosen = first.strategy.back_end
    rest.sort(key=lambda priced: priced.strategy.back_end != chosen)
    return [first, *rest]


def _step_s(priced: Priced) -> float:
    return priced.time.step_s.likely


def _simplest(by_time: list[Priced], megatron_margin: float) -> Priced:
    """The fastest plan, or a simpler one that is hardly slower."""
    best = by_time[0]
    for candidate in sorted(by_time, key=_complexity):
        simpler = best.strategy.back_end == candidate.strategy.back_end
        margin = SIMPLER_MARGIN if simpler else megatron_margin
        if _step_s(candidate) <= margin * _step_s(best):
            return candidate
    return best


def _megatron_margin(request: Request) -> float:
    """How much slower than Megatron a DeepSpeed plan may be."""
    large = is_large(request) and request.workload.data is None
    return LARGE_MODEL_MARGIN if large else SMALL_MODEL_MARGIN


def _complexity(priced: Priced) -> tuple[int, int, bool, int, float]:
    """How much a strategy asks of the user; then the clock, and memory where the clock ties.

    ZeRO 0, 1 and 2 ask the same of the user. Step times less than about 1 % apart are a tie.
    """
    strategy = priced.strategy
    offloads = (strategy.offload_optimizer != "none") + 2 * (strategy.offload_parameters != "none")
    back_end = BACK_ENDS.index(strategy.back_end)
    gathers = strategy.zero_stage == FULLY_SHARDED
    tick = round(100 * log(_step_s(priced)))
    return back_end, offloads, gathers, tick, priced.memory.device_bytes.likely


def _look(explorer: Explorer) -> _Found:
    """Every family of the wanted back ends; offload only where nothing fits without it."""
    request = explorer.request
    explored: list[Explored] = []
    for back_end in wanted(request):
        every = list(families(request, back_end))
        seen = [explorer.explore(family) for family in every if not family.offloads]
        if not any(found.fitting for found in seen):
            seen += [explorer.explore(family) for family in every if family.offloads]
        explored += seen
    return _Found(
        fitting=tuple(priced for found in explored for priced in found.fitting),
        tight=tuple(found.nearest for found in explored if found.nearest is not None),
        refused=tuple(found for found in explored if found.problems),
        candidates=sum(found.candidates for found in explored),
    )


def _rejected(request: Request, found: _Found) -> tuple[Rejected, ...]:
    """The first rule that each refused family broke, and what did not fit."""
    by_rule = [
        Rejected(
            strategy=explored.family,
            rule=explored.problems[0].rule,
            message=str(explored.problems[0]),
        )
        for explored in found.refused
    ]
    by_memory = [
        Rejected(
            strategy=priced.strategy,
            rule="memory",
            message=shortage(request.cluster, priced.memory),
        )
        for priced in found.tight
    ]
    return (*by_memory, *by_rule)


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
    _refuse_misfit(request)
    if found.fitting:
        return found
    if not found.tight:
        raise LayoutError(_broken(found), "no legal combination for this request")
    nearest = min(found.tight, key=lambda p: missing_bytes(request.cluster, p.memory))
    lacking = missing_bytes(request.cluster, nearest.memory)
    name = largest_term(nearest.memory)
    raise DoesNotFitError(
        f"{request.model.name} does not fit: the nearest strategy ({nearest.strategy.label()}) "
        f"{shortage(request.cluster, nearest.memory)}",
        _way_out(request, nearest),
        missing_bytes=lacking,
        largest_term=name,
    )


def _way_out(request: Request, nearest: Priced) -> str:
    """The cheapest changes that make it fit, one a line."""
    from dsforge.planner.remedies import remedies  # types that a plan that fits can do without

    found = remedies(request, nearest)
    if not found:
        return "no two changes make it fit: take a smaller model, or many more accelerators"
    return "\n    ".join(("what would make it fit:", *map(str, found)))


def _refuse_misfit(request: Request) -> None:
    """LayoutError where the batch alone keeps a small model from DeepSpeed."""
    problems = batch_problems(request)
    if problems:
        raise LayoutError(problems, "the global batch does not divide over the accelerators")


def _broken(found: _Found) -> tuple[Problem, ...]:
    """The rules broken by the families nearest to being legal, each rule once."""
    fewest = min((len(explored.problems) for explored in found.refused), default=0)
    by_rule: dict[str, Problem] = {}
    for explored in found.refused:
        if len(explored.problems) == fewest:
            for problem in explored.problems:
                by_rule.setdefault(problem.rule, problem)
    return tuple(by_rule.values())


def _plan(request: Request, best: Priced, found: _Found, others: tuple[Variant, ...]) -> Plan:
    """The plan around one priced strategy."""
    reasons = (*request.reasons, *choice_reasons(request, best, found.fitting))
    return Plan.model_construct(
        schema_version=1,
        model=request.model,
        parameters=parameters(request.model),
        cluster=request.cluster,
        workload=request.workload,
        choice=best.model_copy(update={"reasons": reasons}),
        variants=others,
    )
