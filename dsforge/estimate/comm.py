"""Bytes and seconds of collectives over the links that they really cross.

Ring cost model (Thakur et al. 2005; nccl-tests, PERFORMANCE.md): a gather or scatter of V bytes
over n ranks sends V (n-1)/n, and a piece travels n-1 hops, most of them inside nodes; an all-reduce
is one of each, or goes up and down a tree where that is shorter. Ranks of different groups share a
node's adapters; a group that spans nodes moves at the pace of its share. As the cluster grows, the
bandwidth of a ring falls (congestion, stragglers): `CONGESTION` a doubling.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from dsforge.layout import Layout
from dsforge.specs import ClusterSpec

CONGESTION = 0.048  # bandwidth lost at each doubling of nodes


class Channel(NamedTuple):
    """What a group of ranks talks over: size, bytes/s of one rank, seconds of one message."""

    ranks: int
    bytes_per_s: float
    round_s: float  # a gather: once around the ring
    tree_s: float  # an all-reduce: up and down the tree

    def gather_s(self, payload_bytes: float, messages: float = 1.0) -> float:
        """Seconds to gather a payload of that whole size, sent in `messages`."""
        return gather_bytes(payload_bytes, self.ranks) / self.bytes_per_s + messages * self.round_s

    def scatter_s(self, payload_bytes: float, messages: float = 1.0) -> float:
        """Seconds to reduce a payload of that whole size and scatter it: the same way back."""
        return self.gather_s(payload_bytes, messages)

    def exchange_s(self, payload_bytes: float) -> float:
        """Seconds of an all-to-all in which each rank sends a payload of that whole size."""
        return self.gather_s(payload_bytes)

    def reduce_s(self, payload_bytes: float, messages: float = 1.0) -> float:
        """Seconds to all-reduce a payload."""
        moved = 2 * gather_bytes(payload_bytes, self.ranks) / self.bytes_per_s
        return moved + messages * self.tree_s

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
    intra, inter, per_node = cluster.intra_node, cluster.inter_node, cluster.gpus_per_node
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
    updates: Channel  # ranks that share one copy of the states: smaller than `shards` under MiCS
    expert: Channel
    pipeline: Channel


def channels(cluster: ClusterSpec, layout: Layout, shard_group: int | None = None) -> Channels:
    """Every channel of a layout; tensor ranks are closest, pipeline stages farthest."""
    tp, cp = layout.tensor_parallel_size, layout.context_parallel_size
    dp, pp = layout.data_parallel_size, layout.pipeline_parallel_size
    neighbours = min(2, pp)
    shards = channel(cluster, dp * cp, tp)
    whole = shard_group is None or shard_group >= dp * cp
    return Channels(
        tensor=channel(cluster, tp, 1),
        context=channel(cluster, cp, tp),
        shards=shards,
        updates=shards if whole else channel(cluster, shard_group or 1, tp),
        expert=channel(cluster, layout.expert_parallel_size, tp * cp),
        pipeline=channel(cluster, neighbours, dp * cp * tp),
    )
