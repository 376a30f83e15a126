"""Hosts that differ, as the sets that may train together: each as a cluster of equal nodes.

What trains together runs with the fewest slots, at the pace of the slowest card, within the
smallest memory and over the slowest links. A host that is at least as good in everything as one of
a set belongs to that set, too, so only such sets are listed: of hosts in one order of strength one
for each kind. Of a set's weakest hosts some may be left out, as a batch may not divide over all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import ge
from typing import NamedTuple

from dsforge.engines import ENGINES
from dsforge.errors import Problem, SpecError
from dsforge.estimate.rates import rates
from dsforge.plan import Reason
from dsforge.specs import ClusterSpec, GpuSpec

MOST_SETS = 40  # of hosts in no order of strength; more are not looked at


class Pool(NamedTuple):
    """Hosts as a cluster of equal nodes, and what reading chose for it."""

    cluster: ClusterSpec
    reasons: tuple[Reason, ...]
    alike: bool = True  # all hosts are equal
    listed_gpus: int | None = None  # of all hosts, where equal nodes leave some idle


Kinds = tuple[Pool, ...]


def whole(kinds: Kinds) -> Pool:
    """All hosts together. Raises SpecError where their cards cannot train together at all."""
    libraries = {kind.cluster.gpu.collectives: kind.cluster.gpu.name for kind in kinds}
    if len(libraries) > 1:
        said = ", ".join(f"{card} uses {library}" for library, card in libraries.items())
        message = f"`groups` contain accelerators that cannot train one model together: {said}"
        hint = "plan each kind of accelerator separately"
        raise SpecError((Problem("groups-apart", message, hint),))
    every = tuple(sorted(kinds, key=_strength, reverse=True))
    found = _merged_pool(every)
    slots = sum(kind.cluster.gpus for kind in kinds)
    idle = slots - found.cluster.gpus
    words = f"{found.cluster.nodes} hosts differ, and equal shares are limited by the weakest: "
    slowest = min((kind.cluster.gpu for kind in every), key=_rate)
    words += f"{found.cluster.gpus_per_node} GPUs on each, at the speed of {slowest.name}"
    words += f", {idle} of {slots} GPUs idle" if idle else ""
    why = Reason(rule="weakest-host", message=words)
    return found._replace(reasons=(why, *found.reasons), listed_gpus=slots)


def smaller(kinds: Kinds) -> tuple[Pool, ...]:
    """The sets of hosts that leave others idle, with their weakest hosts in part, too."""
    every = tuple(sorted(kinds, key=_strength, reverse=True))
    found: list[Pool] = []
    for chosen in _sets(every):
        members = tuple(kind for index, kind in enumerate(every) if index in chosen)
        if len(members) < len(every):
            found.append(_merged_pool(members))
        found += _without_some(members)
    return tuple(found)


def _sets(kinds: Kinds) -> Iterator[frozenset[int]]:
    """The sets of kinds that hold with each all that are at least as good; strongest first."""
    figures = [_figures(kind.cluster) for kind in kinds]
    found: list[frozenset[int]] = []
    for mine in figures:
        above = (i for i, other in enumerate(figures) if all(map(ge, other, mine)))
        least = frozenset(above)
        new = [least, *(known | least for known in found)]
        found += [one for one in dict.fromkeys(new) if one not in found]
        del found[MOST_SETS:]
    yield from found


def _figures(cluster: ClusterSpec) -> tuple[float, ...]:
    """What makes a host good, most important first."""
    gpu, intra = cluster.gpu, cluster.intra_node
    return (
        cluster.gpus_per_node,
        _rate(gpu),
        gpu.memory_bytes,
        gpu.memory_bytes_per_s,
        gpu.host_link_bytes_per_s,
        len(gpu.peak_flops),
        intra.bytes_per_s * intra.efficiency,
        _network(cluster),
        cluster.nvlink_domain_nodes,
        cluster.host_memory_bytes,
        cluster.cpu_cores,
    )


def _rate(gpu: GpuSpec) -> float:
    """FLOP/s of large products in 16 bits."""
    return rates(gpu, "bf16", ENGINES[0].execution).products


def _network(cluster: ClusterSpec) -> float:
    """Bytes/s that collectives of a node reach."""
    return cluster.inter_node_bytes_per_s * cluster.inter_node.efficiency


def _strength(kind: Pool) -> tuple[float, ...]:
    """The order of hosts: FLOP/s of a host, then memory."""
    cluster = kind.cluster
    return _rate(cluster.gpu) * cluster.gpus_per_node, cluster.gpu.memory_bytes, _network(cluster)


def _merged_pool(kinds: Sequence[Pool]) -> Pool:
    """Kinds of hosts as equal nodes, strongest hosts first."""
    if len(kinds) == 1:
        return kinds[0]
    each = tuple(kind.cluster for kind in kinds)
    slots, narrowest = min(c.gpus_per_node for c in each), min(each, key=_network)
    domain = min(c.nvlink_domain_nodes for c in each)
    adam = [c.cpu_adam_per_s for c in each]
    update = {
        "nodes": sum(c.nodes for c in each),
        "gpus_per_node": slots,
        "gpu": _weakest([c.gpu for c in each]),
        "intra_node": min(
            (c.intra_node for c in each), key=lambda link: link.bytes_per_s * link.efficiency
        ),
        "inter_node": narrowest.inter_node,
        "nics_per_node": narrowest.nics_per_node,
        "nvlink_domain_nodes": domain if all(c.nodes % domain == 0 for c in each) else 1,
        "host_memory_bytes": min(c.host_memory_bytes for c in each),
        "cpu_cores": min(c.cpu_cores for c in each),
        "cpu_adam_per_s": min(a for a in adam if a) if all(adam) else None,
        "hosts": tuple(host.narrowed(slots) for c in each for host in c.hosts),
    }
    by_rule = {(reason.rule): reason for kind in kinds for reason in kind.reasons}
    return Pool(each[0].model_copy(update=update), tuple(by_rule.values()), alike=False)


def _without_some(kinds: Kinds) -> Iterator[Pool]:
    """Several kinds together with a part of the hosts of the weakest."""
    from dsforge.planner.pieces import node_counts

    if len(kinds) == 1:
        return
    pool, weakest = _merged_pool(kinds), kinds[-1].cluster.nodes
    for nodes in node_counts(pool.cluster.nodes):
        if pool.cluster.nodes - weakest < nodes < pool.cluster.nodes:
            fewer = {"nodes": nodes, "hosts": pool.cluster.hosts[:nodes]}
            yield pool._replace(cluster=pool.cluster.model_copy(update=fewer))


def _weakest(cards: list[GpuSpec]) -> GpuSpec:
    """A card with the pace of the slowest and the memory of the smallest."""
    slowest = min(cards, key=_rate)
    if all(card == slowest for card in cards):
        return slowest
    names = dict.fromkeys((slowest.name, *(card.name for card in cards)))
    common = set.intersection(*(set(card.peak_flops) for card in cards))
    peaks = {kind: flops for kind, flops in slowest.peak_flops.items() if kind in common}
    return slowest.model_copy(
        update={
            "name": " + ".join(names),
            "memory_bytes": min(card.memory_bytes for card in cards),
            "memory_bytes_per_s": min(card.memory_bytes_per_s for card in cards),
            "peak_flops": peaks or slowest.peak_flops,
            "host_link_bytes_per_s": min(card.host_link_bytes_per_s for card in cards),
            "source": f"the weakest of {', '.join(names)}; {slowest.source}",
        }
    )
