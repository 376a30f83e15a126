"""Bytes and seconds of collectives over the links that they really cross.

Ring cost model (Thakur et al. 2005; nccl-tests, PERFORMANCE.md): a gather or scatter of V bytes
over n ranks sends V (n-1)/n, and a piece travels n-1 hops, most of them inside nodes; an all-reduce
is one of each, or goes up and down a tree where that is shorter. Ranks of different groups share a
node's adapters; a group that spans nodes moves at the pace of its share. As the cluster grows, the
bandwidth of a ring falls (congestion, stragglers): `CONGESTION` a doubling.

Where a cluster card holds measured collectives, they correct this model by their ratio to it at the
measured group: that group gets exactly what was measured, by kind of collective, and any other
keeps its share of adapters, its congestion and its hops.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from dsforge.layout import Layout
from dsforge.specs import ClusterSpec, Collective, MeasuredLink

CONGESTION = 0.048  # bandwidth lost at each doubling of nodes


class Channel(NamedTuple):
    """What a group of ranks talks over: size, bytes/s of one rank, seconds of one message."""

    ranks: int
    bytes_per_s: float
    round_s: float  # a gather: once around the ring
    tree_s: float  # an all-reduce: up and down the tree
    reduce_share: float = 1.0  # of bytes_per_s; other than 1 where it was measured
    scatter_share: float = 1.0
    exchange_share: float = 1.0

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

    def send_s(self, payload_bytes: float) -> float:
        """Seconds to send a payload to one neighbour."""
        return payload_bytes / self.bytes_per_s + self.round_s


def gather_bytes(payload_bytes: float, ranks: int) -> float:
    """Bytes that one rank sends to gather or scatter a payload over so many ranks."""
    return payload_bytes * (ranks - 1) / ranks


def channel(cluster: ClusterSpec, ranks: int, stride: int) -> Channel:
    """The channel of a group of ranks that lie `stride` apart in the grid.

    Groups side by side share the adapters of a node: with stride 8 on nodes of 8, eight groups do.
    """
    if ranks == 1:
        return ALONE
    per_node = cluster.gpus_per_node
    rated = _rated(cluster, ranks, stride, per_node)
    link = cluster.intra_node if ranks <= per_node // stride else cluster.inter_node
    return rated if link.measured is None else _corrected(rated, cluster, link.measured)


def _corrected(rated: Channel, cluster: ClusterSpec, found: MeasuredLink) -> Channel:
    """The channel with what a card says of its link, in proportion to the measured group."""
    same = _rated(cluster, found.ranks, 1, found.ranks // found.nodes)

    def rate(kind: Collective) -> float:
        pace = found.paces.get(kind)
        return same.bytes_per_s if pace is None else pace.bytes_per_s

    gather, reduce = found.paces.get("all_gather"), found.paces.get("all_reduce")
    base = rate("all_gather")
    return rated._replace(
        bytes_per_s=rated.bytes_per_s * base / same.bytes_per_s,
        round_s=rated.round_s * (gather.message_s / same.round_s if gather else 1.0),
        tree_s=rated.tree_s * (reduce.message_s / same.tree_s if reduce else 1.0),
        reduce_share=rate("all_reduce") / base,
        scatter_share=rate("reduce_scatter") / base,
        exchange_share=rate("all_to_all") / base,
    )


def _rated(cluster: ClusterSpec, ranks: int, stride: int, per_node: int) -> Channel:
    """The channel by the ratings of its links, with so many ranks on each node."""
    intra, inter = cluster.intra_node, cluster.inter_node
    local = max(1, min(ranks, per_node // stride))
    nodes = -(-ranks // local)
    intra_rate = intra.bytes_per_s * intra.efficiency
    inside_s = (ranks - nodes) * intra.latency_s
    if nodes == 1:
        return Channel(ranks, intra_rate, inside_s, 2 * inside_s)
    sharing = max(1, min(stride, per_node) if local == 1 else per_node // local)
    inter_rate = cluster.inter_node_bytes_per_s * inter.efficiency / sharing
    inter_rate /= 1 + CONGESTION * log2(nodes)
    rate = inter_rate if local == 1 else min(intra_rate, inter_rate)
    round_s = (nodes - 1) * inter.latency_s + inside_s
    depth_s = log2(nodes) * inter.latency_s + (local - 1) * intra.latency_s
    return Channel(ranks, rate, round_s, 2 * min(round_s, depth_s))


ALONE = Channel(1, 1.0, 0.0, 0.0)


class Channels(NamedTuple):
    """The channels of one layout."""

    tensor: Channel
    context: Channel
    shards: Channel
    updates: Channel  # ranks that weights are gathered from: fewer than `shards` under MiCS, hpZ
    expert: Channel
    pipeline: Channel


def channels(cluster: ClusterSpec, layout: Layout, weight_group: int | None = None) -> Channels:
    """Every channel of a layout; tensor ranks are closest, pipeline stages farthest."""
    tp, cp = layout.tensor_parallel_size, layout.context_parallel_size
    dp, pp = layout.data_parallel_size, layout.pipeline_parallel_size
    neighbours = min(2, pp)
    shards = channel(cluster, dp * cp, tp)
    whole = weight_group is None or weight_group >= dp * cp
    return Channels(
        tensor=channel(cluster, tp, 1),
        context=channel(cluster, cp, tp),
        shards=shards,
        updates=shards if whole else channel(cluster, weight_group or 1, tp),
        expert=channel(cluster, layout.expert_parallel_size, tp * cp),
        pipeline=channel(cluster, neighbours, dp * cp * tp),
    )
