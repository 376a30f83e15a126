"""Parts of the cluster for the same job: fewer nodes, or fewer accelerators of one node.

A plan for a part is taken by itself only where the whole cluster is clearly slower: a slow network
between nodes, a batch too small to share. Where half of the machines or fewer are nearly as fast, a
reason says so. Where hosts differ, `hosts.py` chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from dsforge.plan import Reason, Request
from dsforge.planner.explore import Candidate, Explorer
from dsforge.planner.hosts import HOSTS, fastest_hosts
from dsforge.planner.pieces import fitting, pieces, quickest_s
from dsforge.planner.preference import choice
from dsforge.units import seconds

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
    best_s = min((candidate.step_s for candidate in whole), default=0.0)
    found = tuple(_quick_parts(request, best_s)) if whole else ()
    if not found:
        return explorer
    quickest = min(found, key=lambda looked: looked[1])
    clearly = quickest[1] * request.prefer < best_s
    if clearly and not request.cluster.hosts:
        words = f"with all {request.cluster.gpus} the fastest takes {seconds(best_s)}"
        message = f"{_named(request, quickest)}; {words}"
        return quickest[0].because(Reason(rule=FEWER, message=message))
    least = quickest if clearly else min(found, key=lambda looked: looked[0].request.cluster.gpus)
    mine_s, share = choice(request, whole).step_s, _gpus(least) / request.cluster.gpus
    if not clearly and (share > 1 / 2 or least[1] > request.prefer * mine_s):
        return explorer
    words = f"{least[1] / mine_s:.2f}x the time of this one with {share:.0%} of the accelerators"
    ways = f"; `--objective {'fastest' if clearly else 'cheapest'}` takes fewer machines"
    message = f"{_named(request, least)}, {words}{ways}"
    return explorer.because(Reason(rule=NEARLY, message=message))


_Looked = tuple[Explorer, float]  # families of a part, and its fastest step


def _gpus(looked: _Looked) -> int:
    """Accelerators of a part."""
    return looked[0].request.cluster.gpus


def _quick_parts(request: Request, best_s: float) -> Iterator[_Looked]:
    """Parts that could be clearly faster, or that are small and nearly as fast."""
    for asked in pieces(request):
        least_s = quickest_s(asked)
        small = 2 * asked.cluster.gpus <= request.cluster.gpus
        if least_s * request.prefer < best_s or (small and least_s <= best_s * request.prefer):
            looked = Explorer(asked)
            found = fitting(looked)
            if found:
                yield looked, min(candidate.step_s for candidate in found)


def _named(request: Request, looked: _Looked) -> str:
    """`1 of 2 nodes, 8 accelerators: a step takes 87.4 s`."""
    part, whole = looked[0].request.cluster, request.cluster
    what = f"{part.nodes} of {whole.nodes} nodes, {part.gpus} accelerators"
    if part.nodes == whole.nodes or part.gpus_per_node < whole.gpus_per_node:
        what = f"{part.gpus} of {whole.gpus} accelerators"
    return f"{what}: a step takes {seconds(looked[1])}"
