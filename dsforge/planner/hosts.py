"""Which hosts train together where they differ in cards or slots.

Data parallel ranks take equal shares of each batch, tensor ranks of each matrix: neither DeepSpeed
nor Megatron-LM gives a rank more samples than another. So hosts that train together run at the pace
of the slowest card and within the smallest memory. Ours is that every host runs as many ranks, as
many as the fewest slots allow, and that stages of a pipeline hold equal shares of the layers: a
strong host gains nothing from weak ones but their number. The set of hosts with the fastest plan is
taken, of those that fit likewise: sets are only added by another host, so that it never makes the
plan slower. Tokens a second are compared, as each set has a batch of its own where nobody gave one.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Reason, Request
from dsforge.planner.explore import Explorer
from dsforge.planner.pieces import fitting, pieces, quickest_s
from dsforge.planner.preference import doubt
from dsforge.specs import ClusterSpec

HOSTS = "fastest-hosts"  # rule of the reason
NAMED = 4  # idle hosts that are named
WHY = "hosts differ; all hosts of a job run the same number of ranks at the speed of the slowest"


class _Tried(NamedTuple):
    """A set of hosts and the fastest plan for it; sets compare by how surely it fits, and speed."""

    doubt: float
    token_s: float
    explorer: Explorer

    @property
    def request(self) -> Request:
        """The job on these hosts."""
        return self.explorer.request

    @property
    def rank(self) -> tuple[float, float]:
        """How surely a plan fits, then its time for a token: less is better."""
        return self.doubt, self.token_s

    @property
    def pace(self) -> str:
        """`29,600 tokens/s`."""
        return f"{1 / self.token_s:,.0f} tokens/s"


def fastest_hosts(explorer: Explorer) -> Explorer:
    """The families of the hosts with the fastest plan; of all where nothing fits anywhere."""
    request, whole = explorer.request, _best_of_hosts(explorer)
    best, second = whole, None
    for asked in sorted(pieces(request), key=_least_token_s):
        if best and second and not best.doubt and _least_token_s(asked) >= best.token_s:
            break
        found = _best_of_hosts(Explorer(asked))
        if found is None:
            continue
        if best is None or found.rank < best.rank:
            best, second = found, best or found
        elif not _as_limited(asked, request) and (second is None or found.rank < second.rank):
            second = found
    if best is None:
        return explorer
    words = _all_of_them(best, second) if best is whole else _some_of_them(best, whole, request)
    return best.explorer.because(Reason(rule=HOSTS, message=words))


def _as_limited(asked: Request, request: Request) -> bool:
    """Whether the weakest of all hosts limit a set, which then does not tell what they add."""
    mine, every = asked.cluster, request.cluster
    return (mine.gpu, mine.gpus_per_node) == (every.gpu, every.gpus_per_node)


def _best_of_hosts(explorer: Explorer) -> _Tried | None:
    """What the hosts of a request can do; none where nothing fits, or divides."""
    found = fitting(explorer)
    if not found:
        return None
    least = doubt(explorer.request, found)
    excess = 0.0 if explorer.request.risk else least
    step_s = min(candidate.step_s for candidate in found)
    return _Tried(excess, step_s / explorer.request.workload.tokens_per_step, explorer)


def _least_token_s(request: Request) -> float:
    """Seconds for a token below which no plan can be."""
    return quickest_s(request) / request.workload.tokens_per_step


def _all_of_them(best: _Tried, second: _Tried | None) -> str:
    """What weaker hosts add, where all are used."""
    words = f"{WHY}: all {best.request.cluster.nodes} hosts reach {best.pace}"
    if second is None:
        return f"{words}; no plan fits on fewer hosts"
    times = second.token_s / best.token_s
    return f"{words}, {times:.2f}x those of {_named(second)} ({second.pace})"


def _some_of_them(best: _Tried, whole: _Tried | None, request: Request) -> str:
    """What the idle hosts would do to the plan."""
    cluster, used = request.cluster, {host.address for host in best.request.cluster.hosts}
    idle = [host.address for host in cluster.hosts if host.address not in used]
    rest = f"{request.all_gpus - best.request.cluster.gpus} GPUs stay idle"
    if idle:
        more = f" and {len(idle) - NAMED} more" if len(idle) > NAMED else ""
        rest += f" ({', '.join(idle[:NAMED])}{more})"
    every = f"all {cluster.nodes} hosts with {_gpus(cluster)} each"
    others = f"{every} {whole.pace}" if whole else f"no plan fits on {every}"
    reached = f"{'reach' if best.request.cluster.nodes > 1 else 'reaches'} {best.pace}"
    return f"{WHY}: {_named(best)} {reached}, {others}; {rest}"


def _named(tried: _Tried) -> str:
    """`2 hosts with 8 GPUs each (a100-80gb)`."""
    cluster = tried.request.cluster
    hosts = f"{cluster.nodes} host{'s' if cluster.nodes > 1 else ''}"
    each = " each" if cluster.nodes > 1 else ""
    return f"{hosts} with {_gpus(cluster)}{each} ({cluster.gpu.name})"


def _gpus(cluster: ClusterSpec) -> str:
    """`8 GPUs`: those used on each host."""
    return f"{cluster.gpus_per_node} GPU{'s' if cluster.gpus_per_node > 1 else ''}"
