"""The search over families and batchings, and the choice among what fits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import log
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

from dsforge.errors import DoesNotFitError, LayoutError, Problem
from dsforge.estimate.params import parameters
from dsforge.plan import Plan, Priced, Rejected, Request, Search, Variant
from dsforge.planner.advice import choice_reasons
from dsforge.planner.candidates import BACK_ENDS, families, wanted
from dsforge.planner.explore import Candidate, Explored, Explorer
from dsforge.planner.fitting import batch_problems, is_large
from dsforge.planner.pricing import largest_term, missing_bytes, price, shortage
from dsforge.planner.variants import variants
from dsforge.strategy import FULLY_SHARDED, Strategy

SIMPLER_MARGIN = 1.10  # a simpler plan may be this much slower and still be chosen
# How much slower DeepSpeed may be: Megatron asks for another model and checkpoint format. Where the
# weights alone exceed one device, model parallelism is what everybody needs, so the clock decides.
SMALL_MODEL_MARGIN = 2.5
LARGE_MODEL_MARGIN = 1.05
MOST_PLANS = 50  # of a search, the best of each family
MOST_TIGHT = 30  # of those that do not fit


class Found(NamedTuple):
    """Everything that a search has seen."""

    explored: tuple[Explored, ...]
    fitting: tuple[Candidate, ...]
    tight: tuple[Candidate, ...]  # the member of each family that comes nearest to fitting

    @property
    def refused(self) -> tuple[Explored, ...]:
        """Families that break a rule."""
        return tuple(found for found in self.explored if found.problems)


def choose(request: Request) -> Plan:
    """The best plan of a request, with its variants.

    Raises LayoutError where no combination is legal and DoesNotFitError where none fits.
    """
    explorer = Explorer(request)
    found = _look(explorer)
    best = choice(request, _required(request, found).fitting)
    return _plan(request, best.strategy, found, variants(explorer))


def appraise(request: Request) -> Plan:
    """The best plan within the constraints, or the one nearest to fitting, without variants.

    Raises LayoutError where no combination is legal.
    """
    found = _look(Explorer(request))
    _refuse_misfit(request)
    if found.fitting:
        best = choice(request, found.fitting)
    elif found.tight:
        best = _nearest(found)
    else:
        raise LayoutError(_broken(found), "no legal combination for this request")
    return _plan(request, best.strategy, found, ())


def search(request: Request, most: int = MOST_PLANS, *, explorer: Explorer | None = None) -> Search:
    """The best plans that fit, best first, and what was given up. Raises as `choose` does.

    `explorer` is the request's, where the caller wants to look at the same families again.
    """
    started = perf_counter()
    explorer = explorer or Explorer(request)
    found = _look(explorer)
    ranked = _best_of_each_family(rank(request, _required(request, found).fitting))
    others = variants(explorer)
    return Search(
        plans=tuple(
            _plan(request, candidate.strategy, found, others) for candidate in islice(ranked, most)
        ),
        rejected=tuple(_rejected(request, found)),
        candidates=sum(explored.candidates for explored in found.explored),
        seconds=perf_counter() - started,
    )


def choice(request: Request, fitting: tuple[Candidate, ...]) -> Candidate:
    """The one we would take: safe before tight, kept before offloaded, simple before fast.

    DeepSpeed's own tensor and pipeline parallelism ask for another engine set-up and other modules:
    they are taken where no DeepSpeed plan fits without them, or where they are asked for.
    """
    whole = [c for c in fitting if not _is_cut(c.family)]
    if any(c.family.back_end == BACK_ENDS[0] for c in whole):
        fitting = tuple(whole)
    pool = [c for c in fitting if c.safe] or list(fitting)
    pool = [c for c in pool if not c.family.offloads] or pool
    best = min(pool, key=_step_s)
    margin = _megatron_margin(request)
    simple = (
        candidate
        for candidate in pool
        if candidate.step_s
        <= best.step_s
        * (SIMPLER_MARGIN if candidate.family.back_end == best.family.back_end else margin)
    )
    return min(simple, key=_complexity)


def rank(request: Request, fitting: tuple[Candidate, ...]) -> list[Candidate]:
    """Candidates in the order in which we would choose them: the choice, its back end, the rest."""
    first = choice(request, fitting)
    chosen = first.family.back_end
    rest = [candidate for candidate in fitting if candidate is not first]
    rest.sort(key=lambda c: (c.family.back_end != chosen, not c.safe, c.step_s))
    return [first, *rest]


_step_s = attrgetter("step_s")


def _megatron_margin(request: Request) -> float:
    """How much slower than Megatron a DeepSpeed plan may be."""
    large = is_large(request) and request.workload.data is None
    return LARGE_MODEL_MARGIN if large else SMALL_MODEL_MARGIN


def _complexity(candidate: Candidate) -> tuple[int, int, bool, int, float, int]:
    """How much a strategy asks of the user; then the clock, and memory where the clock ties.

    ZeRO 0, 1 and 2 ask the same of the user. Step times less than about 1 % apart are a tie. Where
    memory ties as well, the optimizer is offloaded under ZeRO-2, as everybody does.
    """
    family = candidate.family
    offloads = (family.offload_optimizer != "none") + 2 * (family.offload_parameters != "none")
    back_end = BACK_ENDS.index(family.back_end)
    gathers = family.zero_stage == FULLY_SHARDED
    tick = round(100 * log(candidate.step_s))
    stage = -family.zero_stage if offloads else family.zero_stage
    return back_end, offloads, gathers, tick, candidate.device_bytes, stage


def _is_cut(family: Strategy) -> bool:
    """Whether DeepSpeed's own tensor or pipeline parallelism cuts the model."""
    return family.back_end == BACK_ENDS[0] and family.layout.model_ranks > 1


def _look(explorer: Explorer) -> Found:
    """Every family of the wanted back ends."""
    request = explorer.request
    explored = tuple(
        explorer.explore(family)
        for back_end in wanted(request)
        for family in families(request, back_end)
    )
    return Found(
        explored=explored,
        fitting=tuple(candidate for found in explored for candidate in found.fitting),
        tight=tuple(found.nearest for found in explored if found.nearest is not None),
    )


def _rejected(request: Request, found: Found) -> Iterator[Rejected]:
    """What came nearest to fitting, and for each rule one family that it refused."""
    for candidate in sorted(found.tight, key=attrgetter("missing_bytes"))[:MOST_TIGHT]:
        priced = _priced(request, candidate.strategy)
        message = shortage(request.cluster, priced.memory)
        yield Rejected(strategy=priced.strategy, rule="memory", message=message)
    seen = set()
    for explored in found.refused:
        problem = explored.problems[0]
        if (problem.rule, explored.family.back_end) not in seen:
            seen.add((problem.rule, explored.family.back_end))
            yield Rejected(strategy=explored.family, rule=problem.rule, message=str(problem))


def _best_of_each_family(ranked: list[Candidate]) -> Iterator[Candidate]:
    """The best batching of each family."""
    seen: set[int] = set()
    for candidate in ranked:
        if id(candidate.family) not in seen:
            seen.add(id(candidate.family))
            yield candidate


def _required(request: Request, found: Found) -> Found:
    """What was found. Raises where nothing can be chosen from it."""
    _refuse_misfit(request)
    if found.fitting:
        return found
    if not found.tight:
        raise LayoutError(_broken(found), "no legal combination for this request")
    nearest = _priced(request, _nearest(found).strategy)
    lacking = missing_bytes(request.cluster, nearest.memory)
    name = largest_term(nearest.memory)
    raise DoesNotFitError(
        f"{request.model.name} does not fit: the nearest strategy ({nearest.strategy.label()}) "
        f"{shortage(request.cluster, nearest.memory)}",
        _way_out(request, nearest),
        missing_bytes=lacking,
        largest_term=name,
    )


def _nearest(found: Found) -> Candidate:
    """What lacks least."""
    return min(found.tight, key=attrgetter("missing_bytes"))


def _priced(request: Request, strategy: Strategy) -> Priced:
    return price(request.model, request.cluster, request.workload, strategy)


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


def _broken(found: Found) -> tuple[Problem, ...]:
    """The rules broken by the families nearest to being legal, each rule once."""
    fewest = min((len(explored.problems) for explored in found.refused), default=0)
    by_rule: dict[str, Problem] = {}
    for explored in found.refused:
        if len(explored.problems) == fewest:
            for problem in explored.problems:
                by_rule.setdefault(problem.rule, problem)
    return tuple(by_rule.values())


def _plan(request: Request, strategy: Strategy, found: Found, others: tuple[Variant, ...]) -> Plan:
    """The plan around one strategy, priced."""
    best = _priced(request, strategy)
    reasons = (*request.reasons, *choice_reasons(request, best, found.explored))
    return Plan.model_construct(
        schema_version=1,
        model=request.model,
        parameters=parameters(request.model),
        cluster=request.cluster,
        workload=request.workload,
        choice=best.model_copy(update={"reasons": reasons}),
        variants=others,
    )
