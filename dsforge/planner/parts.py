"""Parts of the cluster for the same job: fewer nodes, or fewer accelerators of one node.

A plan for a part is taken by itself only where the whole cluster is clearly slower: a slow network
between nodes, a batch too small to share. Where half of the machines or fewer are nearly as fast, a
reason says so. Where hosts differ, `hosts.py` chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter, itemgetter
from typing import NamedTuple

from dsforge.plan import Reason, Request
from dsforge.planner.explore import Candidate, Explorer
from dsforge.planner.fitting import nearest
from dsforge.planner.hosts import HOSTS, fastest_hosts
from dsforge.planner.pieces import fitting, pieces, quickest_s
from dsforge.planner.preference import choice
from dsforge.specs import ClusterSpec
from dsforge.units import seconds, times

FEWER, NEARLY = "fewer-accelerators", "fewer-would-do"  # rules of the reasons


class Part(NamedTuple):
    """A part of the cluster, and what fits there likewise."""

    request: Request
    fitting: tuple[Candidate, ...]

    @property
    def gpus(self) -> int:
        """Accelerators of the part."""
        return self.request.cluster.gpus

    @property
    def best(self) -> Candidate:
        """What we would take there."""
        return choice(self.request, self.fitting)

    def preferring(self, prefer: float) -> Part:
        """The part for somebody who prefers easy plans that are at most so many times slower."""
        return self._replace(request=self.request.model_copy(update={"prefer": prefer}))

    @property
    def fastest(self) -> Candidate:
        """What the clock alone would take there."""
        return min(self.fitting, key=attrgetter("step_s"))


def parts(request: Request, explorer: Explorer | None = None) -> Iterator[Part]:
    """The parts of the cluster on which the job fits, largest first."""
    for asked in (request, *pieces(request)):
        looked = explorer if explorer is not None and asked is request else Explorer(asked)
        found = fitting(looked)
        if found:
            yield Part(looked.request, found)


def settled(explorer: Explorer) -> Explorer:
    """The families of the machines to use: of all, unless fewer are clearly faster.

    With a reason where fewer are taken, or would do as well. Hosts that were listed by name are all
    used: of fewer the reason only tells. Who named an objective has chosen the machines already.
    """
    request = explorer.request
    if any(r.rule.startswith(("objective-", FEWER, HOSTS)) for r in request.reasons):
        return explorer
    if request.others:
        return fastest_hosts(explorer)
    whole = fitting(explorer)
    if not whole:
        return explorer if request.cluster.hosts else _legal_part(explorer)
    best_s = min(candidate.step_s for candidate in whole)
    doubt = max(candidate.excess_bytes for candidate in whole)
    found = tuple(_quick_parts(request, best_s, doubt))
    if not found:
        return explorer
    quickest = min(found, key=itemgetter(1))
    clearly = quickest[1] * request.prefer < best_s
    if clearly and not request.cluster.hosts:
        words = f"on all {request.cluster.gpus} it takes {seconds(best_s)}"
        message = f"{_named(request, quickest)}; {words}"
        return quickest[0].because(Reason(rule=FEWER, message=message))
    if not clearly:
        explorer = explorer.beside(quickest[1])
    return _with_fewer_named(explorer, quickest if clearly else min(found, key=_gpus), clearly)


def _with_fewer_named(explorer: Explorer, least: _Looked, clearly: bool) -> Explorer:
    """With a reason where fewer machines would do."""
    request = explorer.request
    mine_s = choice(request, fitting(explorer)).step_s
    share = _gpus(least) / request.cluster.gpus
    dearer = share * least[1] >= mine_s  # in GPU time
    if not clearly and (share > 1 / 2 or dearer or least[1] > request.prefer * mine_s):
        return explorer
    words = f"{times(least[1], mine_s)} with {share:.0%} of the accelerators"
    ways = f"; `--objective {'fastest' if clearly else 'cheapest'}` uses fewer machines"
    message = f"{_named(request, least)}, {words}{ways}"
    return explorer.because(Reason(rule=NEARLY, message=message))


def _legal_part(explorer: Explorer) -> Explorer:
    """The families of the largest part on which the job fits, where nothing fits on the whole.

    More machines cannot do all that fewer can: a batch that they do not share leaves pipelines
    alone, which may lack memory. Where more than half of the machines would be idle, the whole it
    is, for its error: another batch is the better answer then, and the error names the part.
    """
    asked = part_that_fits(explorer.request, least=1 / 2)
    looked = explorer if asked is None else Explorer(asked)
    if asked is None or not fitting(looked):
        return explorer
    message = f"{_machines(asked.cluster, explorer.request.cluster)}; {_why_not_all(explorer)}"
    return settled(looked).because(Reason(rule=FEWER, message=message))


def part_that_fits(request: Request, *, least: float = 0.0) -> Request | None:
    """The largest part with at least a share of the accelerators on which anything fits."""
    for asked in pieces(request):
        if asked.cluster.gpus < least * request.cluster.gpus:
            break
        found = nearest(asked)
        if found is not None and found.missing_bytes <= 0:
            return asked
    return None


def _why_not_all(explorer: Explorer) -> str:
    """Why all machines cannot do it: a rule that most nearly holds there, and memory."""
    every, words = explorer.every(), f"with all {explorer.request.cluster.gpus}"
    broken = [explored.problems for explored in every if explored.problems]
    if not broken:
        return f"{words} nothing fits"
    rest = any(explored.nearest is not None for explored in every)
    return f"{words}: {min(broken, key=len)[0]}" + "; what remains does not fit" * rest


_Looked = tuple[Explorer, float]  # families of a part, and its fastest step


def _gpus(looked: _Looked) -> int:
    """Accelerators of a part."""
    return looked[0].request.cluster.gpus


def _quick_parts(request: Request, best_s: float, doubt: float) -> Iterator[_Looked]:
    """Parts that could be faster, or that are small and nearly as fast, and fit as surely.

    `doubt`: bytes by which the upper estimate of a plan of the whole may exceed the device. A tight
    plan of a part would count until more RAM gives that part a surer and slower one.
    """
    for asked in pieces(request):
        least_s = quickest_s(asked)
        small = 2 * asked.cluster.gpus <= request.cluster.gpus
        if least_s < best_s or (small and least_s <= best_s * request.prefer):
            looked = Explorer(asked)
            found = [c.step_s for c in fitting(looked) if c.excess_bytes <= doubt]
            if found:
                yield looked, min(found)


def _named(request: Request, looked: _Looked) -> str:
    """`1 of 2 nodes, 8 accelerators: the fastest step there takes 87.4 s`."""
    machines = _machines(looked[0].request.cluster, request.cluster)
    return f"{machines}: the fastest step there takes {seconds(looked[1])}"


def _machines(part: ClusterSpec, whole: ClusterSpec) -> str:
    """`1 of 2 nodes, 8 accelerators`."""
    if part.nodes == whole.nodes or part.gpus_per_node < whole.gpus_per_node:
        return f"{part.gpus} of {whole.gpus} accelerators"
    return f"{part.nodes} of {whole.nodes} nodes, {part.gpus} accelerators"
