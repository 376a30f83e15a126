"""Where the ranks of a group lie: on which nodes, or on which NVLink domains.

An NVLink domain joins several nodes (NVL72: 18 nodes of 4) at the speed of the link inside a node,
so it counts as one large node with the adapters of all its nodes. Nothing forces a job to use whole
domains, so a group has several placements: over nodes, over every part of a domain, over domains.
The widest counts that is nowhere worse than a narrower one; hence a larger domain is never slower.
Left out is that groups in parts that do not divide a domain have a member beyond its edge here and
there. The domain that is not full has the fewest adapters, and those count.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

from dsforge.specs import ClusterSpec


class Placement(NamedTuple):
    """Where a group of ranks lies: the worst of the equal groups of the grid."""

    ranks: int
    local: int  # of them on a node, or on the nodes that NVLink joins
    nodes: int  # those that NVLink joins count as one
    sharing: float  # groups that share the adapters there, each with a flow of its own
    hosts: int = 1  # nodes that the local ranks lie on
    ports: int = 1  # nodes whose adapters carry the outgoing traffic


class NetworkLinks(NamedTuple):
    """Nodes and what joins them, by the ratings of the links: equal links have equal placements."""

    nodes: int
    gpus_per_node: int
    nics_per_node: int
    domain_nodes: int
    inner_bytes_per_s: float  # that collectives reach inside a node or domain
    inner_latency_s: float
    outer_bytes_per_s: float  # of all adapters of a node
    outer_efficiency: float
    outer_latency_s: float


def network_links(cluster: ClusterSpec) -> NetworkLinks:
    """The links of a cluster."""
    intra, inter = cluster.intra_node, cluster.inter_node
    return NetworkLinks(
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        nics_per_node=cluster.nics_per_node,
        domain_nodes=min(cluster.nodes, cluster.nvlink_domain_nodes),
        inner_bytes_per_s=intra.bytes_per_s * intra.efficiency,
        inner_latency_s=intra.latency_s,
        outer_bytes_per_s=cluster.inter_node_bytes_per_s,
        outer_efficiency=inter.efficiency,
        outer_latency_s=inter.latency_s,
    )


class _Island(NamedTuple):
    """Nodes that NVLink joins: a domain, or a part of it; often a single node."""

    nodes: int
    gpus: int
    islands: int  # such in the cluster
    ports: int  # nodes of the one that has fewest


def _partitions(links: NetworkLinks) -> Iterator[_Island]:
    """The ways to see a cluster: nodes, ever larger parts of NVLink domains, whole domains."""
    for nodes in range(1, links.domain_nodes + 1):
        islands = -(-links.nodes // nodes)
        ports = links.nodes - (islands - 1) * nodes
        yield _Island(nodes, nodes * links.gpus_per_node, islands, ports)


def placements(links: NetworkLinks, ranks: int, stride: int) -> Iterator[Placement]:
    """Every placement of groups of ranks that lie `stride` apart in the grid, narrowest first."""
    for island in _partitions(links):
        yield _placement(links, island, ranks, stride)


def hop_placements(links: NetworkLinks, stages: int, stride: int) -> Iterator[Placement]:
    """Every placement of the slowest hop between stages of `stride` ranks, narrowest first.

    Stages that fill an island or less lie in it; of others some hop leaves it, and the ranks of the
    stage at its edge, or all of the island, send at once, over the adapters that are nearest.
    """
    for island in _partitions(links):
        if stages == 1:
            yield Placement(1, 1, 1, 1)
        elif island.islands == 1:
            yield Placement(2, 2, 1, 1)
        else:
            nics, edge = links.nics_per_node * island.nodes, min(stride, island.gpus)
            near = -(-nics * edge // island.gpus) / nics
            yield Placement(2, 1, 2, edge / near, ports=island.ports)


def _placement(links: NetworkLinks, island: _Island, ranks: int, stride: int) -> Placement:
    """The placement over such islands.

    `stride` groups lie side by side in one block; blocks follow each other. Where blocks and
    islands do not divide, some block begins inside an island, and two of them share its adapters.
    """
    gpus, block = island.gpus, ranks * stride
    step = gcd(block, gpus)
    nodes = min(island.islands, (gpus - step + block - 1) // gpus + 1)
    local = max(1, min(ranks, gpus // stride))
    on_a_node = max(1, links.gpus_per_node // stride)
    if nodes == 1:
        return Placement(
            ranks, ranks, 1, 1, hosts=-(-ranks // on_a_node) if island.nodes > 1 else 1
        )
    if local == ranks:  # a block that lies across two islands
        local = max(1, ranks // 2)
    sharing = min(stride, gpus) if local == 1 else gpus // max(1, gpus // stride)
    torn = block % gpus != 0 and island.islands > 2  # noqa: PLR2004 - one between two others
    return Placement(
        ranks,
        local,
        nodes,
        min(gpus, sharing * (1 + torn)),
        hosts=-(-local // on_a_node) if island.nodes > 1 else 1,
        ports=island.ports,
    )
