"""The pieces of a cluster that a job could run on instead of all of it.

Of equal nodes every number up to eight is looked at, beyond them the powers of two and those that
divide the cluster: so the pieces of a cluster are among those of one of twice its size. Of a single
node it is the accelerators that divide it. Where hosts differ, the pieces are the sets of hosts
that reading found, and the pieces of those among them whose hosts are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from dsforge.constraints import divisors
from dsforge.engines import ENGINES
from dsforge.estimate.flops import step_flops
from dsforge.estimate.rates import rates
from dsforge.plan import Request
from dsforge.planner.explore import Candidate, Explorer
from dsforge.planner.preference import counted
from dsforge.specs import ClusterSpec

EVERY_COUNT = 8  # of nodes, up to which each is looked at


def fitting(explorer: Explorer) -> tuple[Candidate, ...]:
    """Every member of every family that fits likewise."""
    found = tuple(candidate for explored in explorer.every() for candidate in explored.fitting)
    return counted(explorer.request, found)


def pieces(request: Request) -> tuple[Request, ...]:
    """The job on each piece of its cluster but the whole, largest first, each once.

    What fewer machines take is known of the whole only: a piece is judged by its own plans.
    """
    request = request.model_copy(update={"part_step_s": inf})
    found = [] if request.others else _of_equal_nodes(request)
    for machines in request.others:
        asked = request.on(machines)
        found += [asked, *(_of_equal_nodes(asked) if machines.alike else ())]
    once = {_piece_key(asked.cluster): asked for asked in reversed(found)}
    return tuple(sorted(once.values(), key=lambda asked: -asked.cluster.gpus))


def _piece_key(cluster: ClusterSpec) -> tuple[object, ...]:
    """What tells two pieces apart: anything but the addresses of their hosts."""
    shape = cluster.nodes, cluster.gpus_per_node, cluster.nics_per_node, cluster.host_memory_bytes
    return *shape, cluster.gpu.name, cluster.intra_node.name, cluster.inter_node.name


def _of_equal_nodes(request: Request) -> list[Request]:
    return [_on_part(request, nodes, gpus) for nodes, gpus in shapes(request.cluster)[1:]]


def shapes(cluster: ClusterSpec) -> tuple[tuple[int, int], ...]:
    """Nodes and accelerators of each of the parts, the whole cluster first."""
    found = {(nodes, cluster.gpus_per_node) for nodes in node_counts(cluster.nodes)}
    found |= {(1, gpus) for gpus in divisors(cluster.gpus_per_node)}
    return tuple(sorted(found, key=lambda shape: -shape[0] * shape[1]))


def node_counts(nodes: int) -> set[int]:
    """The numbers of equal nodes that are looked at."""
    return {*range(1, min(EVERY_COUNT, nodes) + 1), *divisors(nodes), *_doubles(nodes)}


def quickest_s(request: Request) -> float:
    """Seconds below which no step can be: useful FLOPs at the full rate of every accelerator."""
    cluster = request.cluster
    held = rates(cluster.gpu, request.workload.precision, ENGINES[0].execution)
    return step_flops(request.model, request.workload) / (cluster.gpus * held.products)


def _doubles(most: int) -> Iterator[int]:
    """Powers of two up to a number."""
    size = 1
    while size <= most:
        yield size
        size *= 2


def _on_part(request: Request, nodes: int, gpus: int) -> Request:
    """The request on the first nodes of its cluster, with so many accelerators of each."""
    cluster = request.cluster
    hosts = tuple(host.narrowed(gpus) for host in cluster.hosts[:nodes])
    fewer = {"nodes": nodes, "gpus_per_node": gpus, "hosts": hosts}
    return request.model_copy(update={"cluster": cluster.model_copy(update=fewer)})
