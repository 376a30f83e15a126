"""The search over families and batchings, and the choice among what fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

from dsforge.errors import DoesNotFitError, LayoutError, Problem
from dsforge.estimate.params import parameters
from dsforge.plan import Plan, Priced, Rejected, Request, Search, Variant
from dsforge.planner.advice import TIGHT, choice_reasons, risk_of
from dsforge.planner.explore import Candidate, Explored, Explorer
from dsforge.planner.memory_advice import stacked_experts
from dsforge.planner.parts import part_that_fits, settled
from dsforge.planner.preference import choice, ease, rank
from dsforge.planner.pricing import largest_term, missing, missing_bytes, price, shortage
from dsforge.planner.rivals import Rivals, rivals
from dsforge.planner.variants import beside, variants
from dsforge.strategy import Strategy
from dsforge.units import gib

MOST_PLANS = 50  # of a search, the best of each family
ASSUMED_RAM = "default-host-memory"  # the rule of the reason that reading gives
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
    explorer = settled(Explorer(request))
    found = _explored(explorer)
    best = choice(explorer.request, _required(explorer.request, found).fitting)
    against = rivals(explorer.request, found.explored)
    return _plan(explorer.request, best.strategy, against, variants(explorer))


def appraise(request: Request) -> Plan:
    """The best plan within the constraints, or the one nearest to fitting, without variants.

    Raises LayoutError where no combination is legal.
    """
    found = _as_others_run(request, _explored(Explorer(request)))
    if found.fitting:
        best = choice(request, found.fitting)
    elif found.tight:
        best = _nearest(found)
    else:
        raise LayoutError(_broken(found), "no valid strategy for this request")
    return _plan(request, best.strategy, rivals(request, found.explored), ())


def _as_others_run(request: Request, found: Found) -> Found:
    """What was found without what is off in scripts of others unless they say so.

    Ulysses changes the model's code: who runs it says so, and without it a run that does not fit is
    one that does not fit. A second copy of the weights (hpZ, hybrid sharding) is a setting of its
    own; it stays where no run without it is possible.
    """
    fixed = request.constraints
    if fixed.software != "others":
        return found
    if fixed.context_parallel_size is None:
        found = _only(found, lambda family: not _is_split_by_ulysses(family))
    if fixed.hpz_partition_size is None:
        found = _only(found, lambda family: family.hpz_partition_size == 1)
    return found


def _only(found: Found, wanted: Callable[[Strategy], bool]) -> Found:
    """Candidates of some families; all of them where none is of those."""
    fitting = tuple(one for one in found.fitting if wanted(one.family))
    tight = tuple(one for one in found.tight if wanted(one.family))
    return found._replace(fitting=fitting, tight=tight) if fitting or tight else found


def _is_split_by_ulysses(family: Strategy) -> bool:
    """Whether ranks share the tokens of a sample, each with some heads of all of them."""
    exchanged = family.engine.context_exchange == "all_to_all"
    return exchanged and family.layout.context_parallel_size > 1


def search(
    request: Request,
    most: int = MOST_PLANS,
    *,
    explorer: Explorer | None = None,
    started: float | None = None,
) -> Search:
    """The best plans that fit, best first, and what was given up. Raises as `choose` does.

    `explorer` is the request's, where the caller has settled the machines and wants to look at the
    same families again; `started` is when the clock (`perf_counter`) began to do so.
    """
    started = perf_counter() if started is None else started
    explorer = explorer or settled(Explorer(request))
    request, found = explorer.request, _explored(explorer)
    ranked = _best_of_each_family(rank(request, _required(request, found).fitting))
    others, against = variants(explorer), rivals(request, found.explored)
    return Search(
        plans=tuple(
            _plan(request, candidate.strategy, against, others)
            for candidate in islice(ranked, most)
        ),
        rejected=tuple(_rejected(request, found, against)),
        candidates=sum(explored.candidates for explored in found.explored),
        seconds=perf_counter() - started,
    )


def _explored(explorer: Explorer) -> Found:
    """Every family of the wanted back ends."""
    explored = explorer.every()
    return Found(
        explored=explored,
        fitting=tuple(candidate for found in explored for candidate in found.fitting),
        tight=tuple(found.nearest for found in explored if found.nearest is not None),
    )


def _rejected(request: Request, found: Found, against: Rivals) -> Iterator[Rejected]:
    """What is faster but tight, what came nearest to fitting, one family for each broken rule."""
    if against.tight is not None:
        priced = _priced(request, against.tight.strategy)
        message = risk_of(request, priced, choice(request, found.fitting).step_s)
        yield Rejected(strategy=priced.strategy, rule=TIGHT, message=message)
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
    if found.fitting:
        return found
    if not found.tight:
        raise LayoutError(_broken(found), "no valid strategy for this request" + _on_part(request))
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


def _on_part(request: Request) -> str:
    """A part of the cluster that would do, and how to ask for it; empty where none would."""
    part = part_that_fits(request)
    if part is None:
        return ""
    few, every = part.cluster.gpus, request.cluster.gpus
    return f" on {every} accelerators; {few} of them can run it (`--objective fastest`)"


def _nearest(found: Found) -> Candidate:
    """What lacks least; where several lack the same, as in host RAM, the easiest."""
    return min(found.tight, key=lambda tight: (tight.missing_bytes, ease(tight.family)))


def _priced(request: Request, strategy: Strategy) -> Priced:
    return price(request.model, request.cluster, request.workload, strategy)


def _way_out(request: Request, nearest: Priced) -> str:
    """The cheapest changes that make it fit, one a line."""
    from dsforge.planner.remedies import remedies  # types that a plan that fits can do without

    found = remedies(request, nearest)
    short = missing(request.cluster, nearest.memory)
    assumed = any(reason.rule == ASSUMED_RAM for reason in request.reasons)
    head: tuple[str, ...] = ()
    if assumed and max(short, key=lambda name: short[name]) == "host":
        ram = gib(request.cluster.host_memory_bytes)
        head = (f"{ram} of RAM on each node is assumed: set --host-memory if there is more",)
    head += (experts,) if (experts := stacked_experts(request)) else ()
    if not found:
        none = "no one or two changes make it fit at up to 3x the GPU time: use a smaller model"
        return "\n  ".join((*head, none))
    return "\n    ".join(("\n  ".join((*head, "what would make it fit:")), *map(str, found)))


def _broken(found: Found) -> tuple[Problem, ...]:
    """The rules broken by the families nearest to being legal, each rule once."""
    fewest = min((len(explored.problems) for explored in found.refused), default=0)
    by_rule: dict[str, Problem] = {}
    for explored in found.refused:
        if len(explored.problems) == fewest:
            for problem in explored.problems:
                by_rule.setdefault(problem.rule, problem)
    return tuple(by_rule.values())


def _plan(
    request: Request, strategy: Strategy, against: Rivals, others: tuple[Variant, ...]
) -> Plan:
    """The plan around one strategy, priced."""
    best = _priced(request, strategy)
    reasons = (*request.reasons, *choice_reasons(request, best, against))
    return Plan.model_construct(
        schema_version=1,
        model=request.model,
        parameters=parameters(request.model),
        cluster=request.cluster,
        workload=request.workload,
        choice=best.model_copy(update={"reasons": reasons}),
        variants=beside(others, best),
    )
