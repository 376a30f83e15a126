"""Bytes and seconds of collectives over the links that they really cross.

Ring cost model (Thakur et al. 2005; nccl-tests, PERFORMANCE.md): a gather or scatter of V bytes
over n ranks sends V (n-1)/n, and a piece travels n-1 hops, most of them inside nodes; an all-reduce
is one of each, or goes up and down a tree where that is shorter. Ranks of different groups share a
node's adapters; a group that spans nodes moves at the pace of its share. As the cluster grows, the
bandwidth of a ring falls (congestion, stragglers): `CONGESTION` a doubling.

A ring crosses a node's adapters once, whatever the ranks of the node; in an all-to-all each rank
sends to every other, so all of a node's ranks share the adapters. Groups that do not divide a node
lie across two of them, and the slowest group sets the pace. Pipeline stages pass activations to the
next one: as soon as the stages fill more than a node, some hops leave it, and the slowest counts.
Where NVLink joins several nodes (`group_placement.py`), all this holds of its domains in the place
of nodes.

Where a cluster card holds measured collectives, they correct this model by their ratio to it at the
measured group: that group gets exactly what was measured, by kind of collective, and any other
keeps its share of adapters, its congestion and its hops.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate.group_placement import (
    NetworkLinks,
    Placement,
    hop_placements,
    network_links,
    placements,
)
from dsforge.layout import Layout
from dsforge.specs import ClusterSpec, Collective, MeasuredLink
from dsforge.traced import Constant, Traced, counted, log2, minimum, named

CONGESTION = Constant(
    0.024, "congestion", "share", "estimate/comm.py: bandwidth lost at each doubling of nodes"
)
RING = "ring cost model (Thakur et al. 2005; nccl-tests, PERFORMANCE.md)"
AROUND = f"{RING}: hops around the ring"
ADAPTERS = "combined bandwidth of the network adapters of those nodes"
KIND = "measured rate of this collective relative to an all-gather"
EXCHANGE = "in an all-to-all every rank of a node sends to all others, over its adapters"
GROUP = "ranks of the group"
LOCAL = "ranks of the slowest group that share a node or NVLink domain"
NODES = "nodes or NVLink domains of the slowest group"
HOSTS = "nodes that its local ranks are on"
PORTS = "nodes whose adapters carry the outgoing traffic"
SHARING = "groups that use the adapters at the same time; for a hop, ranks relative to their share"
TREE = f"{RING}: up and down a tree, if that has fewer hops"
SLOWER = f"{RING}: the slowest link that it crosses"


class Channel(NamedTuple):
    """What a group of ranks talks over: size, bytes/s of one rank, seconds of one message."""

    ranks: int
    bytes_per_s: float
    round_s: float  # a gather: once around the ring
    tree_s: float  # an all-reduce: up and down the tree
    reduce_share: float = 1.0  # of bytes_per_s; other than 1 where it was measured
    scatter_share: float = 1.0
    exchange_share: float = 1.0
    nodes: int = 1  # or NVLink domains: hops of a ring that leave one

    def outdoes(self, other: Channel) -> bool:
        """Whether no collective takes longer than over another channel of the same ranks."""
        return (
            self.bytes_per_s >= other.bytes_per_s
            and self.bytes_per_s * self.exchange_share >= other.bytes_per_s * other.exchange_share
            and self.round_s <= other.round_s
            and self.tree_s <= other.tree_s
        )

    def gather_s(self, payload_bytes: float, messages: float = 1.0) -> float:
        """Seconds to gather a payload of that whole size, sent in `messages`."""
        return gather_bytes(payload_bytes, self.ranks) / self.bytes_per_s + messages * self.round_s

    def scatter_s(self, payload_bytes: float, messages: float = 1.0) -> float:
        """Seconds to reduce and scatter a payload of that whole size."""
        return self.gather_s(payload_bytes / self.scatter_share, messages)

    def exchange_s(self, payload_bytes: float, messages: float = 1.0) -> float:
        """Seconds of an all-to-all in which each rank has a payload of that whole size."""
        return self.gather_s(payload_bytes / self.exchange_share, messages)

    def reduce_s(self, payload_bytes: float, messages: float = 1.0) -> float:
        """Seconds to all-reduce a payload."""
        rate = self.bytes_per_s * self.reduce_share
        return 2 * gather_bytes(payload_bytes, self.ranks) / rate + messages * self.tree_s


def gather_bytes(payload_bytes: float, ranks: int) -> float:
    """Bytes that one rank sends to gather or scatter a payload over so many ranks."""
    return payload_bytes * (ranks - 1) / ranks


def placement(cluster: ClusterSpec, ranks: int, stride: int) -> Placement:
    """The placement of groups of ranks that lie `stride` apart in the grid."""
    return _placement(network_links(cluster), ranks, stride)


def hop_placement(cluster: ClusterSpec, stages: int, stride: int) -> Placement:
    """The placement of the slowest hop between stages of `stride` ranks."""
    return _hop_placement(network_links(cluster), stages, stride)


@lru_cache(maxsize=4096)
def _placement(links: NetworkLinks, ranks: int, stride: int) -> Placement:
    return _widest(links, placements(links, ranks, stride))


@lru_cache(maxsize=4096)
def _hop_placement(links: NetworkLinks, stages: int, stride: int) -> Placement:
    return _widest(links, hop_placements(links, stages, stride))


def _widest(links: NetworkLinks, ways: Iterable[Placement]) -> Placement:
    """The widest use of NVLink domains that is nowhere worse than a narrower one."""
    best, *wider = ways
    worth = _rated(links, best) if wider else ALONE
    for where in wider:
        link = _rated(links, where)
        if link.outdoes(worth):
            best, worth = where, link
    return best


def channel(cluster: ClusterSpec, ranks: int, stride: int) -> Channel:
    """The channel of a group of ranks that lie `stride` apart in the grid.

    Groups side by side share the adapters of a node: with stride 8 on nodes of 8, eight groups do.
    """
    return ALONE if ranks == 1 else _measured_channel(cluster, placement(cluster, ranks, stride))


def hop(cluster: ClusterSpec, stages: int, stride: int) -> Channel:
    """The channel of the slowest hop between pipeline stages of so many ranks."""
    return (
        ALONE if stages == 1 else _measured_channel(cluster, hop_placement(cluster, stages, stride))
    )


def _measured_channel(cluster: ClusterSpec, where: Placement) -> Channel:
    """The channel of a placement, corrected where its link was measured."""
    rated = _rated(network_links(cluster), where)
    link = cluster.intra_node if where.nodes == 1 else cluster.inter_node
    if link.measured is None:
        return _named(rated)
    return _named(_corrected(_named(rated, "rated_"), cluster, link.measured))


def _corrected(rated: Channel, cluster: ClusterSpec, found: MeasuredLink) -> Channel:
    """The channel with what a card says of its link, in proportion to the measured group."""
    links = network_links(cluster)
    same = _named(_rated(links, _measured_placement(links, found)), "measured_group_")

    def rate(kind: Collective) -> float:
        pace = found.paces.get(kind)
        return same.bytes_per_s if pace is None else pace.bytes_per_s

    gather, reduce = found.paces.get("all_gather"), found.paces.get("all_reduce")
    base = rate("all_gather")
    return rated._replace(
        bytes_per_s=rated.bytes_per_s * base / same.bytes_per_s,
        round_s=rated.round_s * (gather.message_s / same.round_s if gather else 1.0),
        tree_s=rated.tree_s * (reduce.message_s / same.tree_s if reduce else 1.0),
        reduce_share=named(rate("all_reduce") / base, "reduce_share", "share", KIND),
        scatter_share=named(rate("reduce_scatter") / base, "scatter_share", "share", KIND),
        exchange_share=rated.exchange_share * _exchanges(found, same) * same.bytes_per_s / base,
    )


def _measured_placement(links: NetworkLinks, found: MeasuredLink) -> Placement:
    """Where the ranks of a measured group lay: all of them on each node, or NVLink domain."""
    joined = min(links.domain_nodes, found.nodes)
    nodes = -(-found.nodes // joined)
    local = found.ranks // nodes
    return Placement(found.ranks, local, nodes, 1, hosts=joined, ports=joined)


def _exchanges(found: MeasuredLink, same: Channel) -> float:
    """Measured rate of an all-to-all over the rated one; 1 where it was not measured."""
    pace = found.paces.get("all_to_all")
    return pace.bytes_per_s / (same.bytes_per_s * same.exchange_share) if pace else 1.0


@lru_cache(maxsize=4096)
def _rated(links: NetworkLinks, where: Placement) -> Channel:
    """The channel by the ratings of its links."""
    if isinstance(links.inner_bytes_per_s, Traced):
        where = _counted(where, links.inner_bytes_per_s)
    ranks, local, nodes = where.ranks, where.local, where.nodes
    intra_rate = links.inner_bytes_per_s
    inside_s = (ranks - nodes) * links.inner_latency_s
    near_s = (log2(where.hosts) + local / where.hosts - 1) * links.inner_latency_s
    if nodes == 1:
        return Channel(ranks, intra_rate, inside_s, 2 * minimum(inside_s, near_s))
    inter_rate = links.outer_bytes_per_s * where.ports * links.outer_efficiency
    inter_rate /= 1 + CONGESTION * log2(nodes)
    inter_rate = named(inter_rate, "adapters_rate", "bytes/s", ADAPTERS)
    shared = inter_rate / where.sharing
    rate = shared if local == 1 else minimum(intra_rate, shared)
    round_s = (nodes - 1) * links.outer_latency_s + inside_s
    depth_s = log2(nodes) * links.outer_latency_s + near_s
    tree_s = 2 * minimum(round_s, depth_s)
    each = inter_rate / (where.sharing * local)  # all ranks of a node at once
    around_s = (local - 1) / intra_rate + (ranks - local) / each
    around_s = named(around_s, "exchange_byte_s", "s", "one byte to every other rank")
    return Channel(
        ranks, rate, round_s, tree_s, exchange_share=(ranks - 1) / around_s / rate, nodes=nodes
    )


def _named(link: Channel, prefix: str = "") -> Channel:
    """The channel with a name for each of its numbers, where they are traced."""
    if not isinstance(link.bytes_per_s, Traced):
        return link
    return link._replace(
        bytes_per_s=named(link.bytes_per_s, f"{prefix}rate", "bytes/s", SLOWER),
        round_s=named(link.round_s, f"{prefix}round_s", "s", AROUND),
        tree_s=named(link.tree_s, f"{prefix}tree_s", "s", TREE),
        exchange_share=named(link.exchange_share, f"{prefix}exchange_share", "share", EXCHANGE),
    )


def _counted(where: Placement, of: float) -> Placement:
    """The placement with a name for each number: how groups fall on nodes is no formula."""
    return Placement(
        ranks=counted(where.ranks, "ranks", "ranks", of=of, why=GROUP),
        local=counted(where.local, "local", "ranks", of=of, why=LOCAL),
        nodes=counted(where.nodes, "nodes", "nodes", of=of, why=NODES),
        sharing=counted(where.sharing, "sharing", "", of=of, why=SHARING),
        hosts=counted(where.hosts, "hosts", "nodes", of=of, why=HOSTS),
        ports=counted(where.ports, "ports", "nodes", of=of, why=PORTS),
    )


ALONE = Channel(1, 1.0, 0.0, 0.0)


class Channels(NamedTuple):
    """The channels of one layout."""

    tensor: Channel
    context: Channel
    shards: Channel
    updates: Channel  # ranks that weights are gathered from: fewer than `shards` under MiCS, hpZ
    expert: Channel
    expert_shards: Channel  # ranks that hold the same experts
    pipeline: Channel  # the slowest hop
    neighbours: Channel  # a hop inside a node, where there are any


def channels(cluster: ClusterSpec, layout: Layout, weight_group: int | None = None) -> Channels:
    """Every channel of a layout; tensor ranks are closest, pipeline stages farthest.

    Experts have a grid of their own, in which expert ranks are next after tensor ranks
    (megatron-core, `initialize_model_parallel`).
    """
    tp, cp = layout.tensor_parallel_size, layout.context_parallel_size
    pp, ep = layout.pipeline_parallel_size, layout.expert_parallel_size
    ranks = layout.shard_ranks
    shards = channel(cluster, ranks, tp)
    group = weight_group or ranks
    whole = group >= ranks
    return Channels(
        tensor=channel(cluster, tp, 1),
        context=channel(cluster, cp, tp),
        shards=shards,
        updates=shards if whole else channel(cluster, group, tp),
        expert=channel(cluster, ep, tp),
        expert_shards=shards if ep == 1 else channel(cluster, max(1, ranks // ep), tp * ep),
        pipeline=hop(cluster, pp, ranks * tp),
        neighbours=_measured_channel(cluster, Placement(2, 2, 1, 1)) if pp > 1 else ALONE,
    )
