"""What each group of ranks talks over, worked out from the links that it crosses."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate.comm import CONGESTION, Channel
from dsforge.estimate.spread import Spread
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan

RING = "estimate/comm.py: ring cost model (Thakur et al. 2005; nccl-tests, PERFORMANCE.md)"
MEASURED = "measured on this cluster (its card), in place of data sheets"


def take_links(sheet: Sheet, plan: Plan) -> None:
    """The two links of the cluster."""
    cluster = plan.cluster
    for name, link in (("intra", cluster.intra_node), ("inter", cluster.inter_node)):
        source = f"{link.name}: {link.source}"
        sheet.give(source, "bytes/s", **{f"{name}_bytes_per_s": link.bytes_per_s})
        sheet.give(source, "share", **{f"{name}_efficiency": link.efficiency})
        sheet.give(source, "s", **{f"{name}_latency_s": link.latency_s})
    sheet.give("cluster", nics_per_node=cluster.nics_per_node)
    sheet.give("estimate/comm.py: bandwidth lost at each doubling of nodes", congestion=CONGESTION)


def take_channel(sheet: Sheet, name: str, link: Channel, where: Spread) -> None:
    """Rate and latencies of one group of ranks that lies so."""
    source = f"of the slowest {name} group, {where.local} ranks lie on {_place(where)}"
    sheet.give(
        source,
        "ranks",
        **{
            f"{name}_ranks": where.ranks,
            f"{name}_local": where.local,
            f"{name}_nodes": where.nodes,
        },
    )
    source = "groups that share the adapters, each with a flow; of a hop, ranks over their share"
    sheet.give(source, **{f"{name}_sharing": where.sharing})
    source = "nodes that its local ranks lie on, and nodes whose adapters carry what leaves them"
    sheet.give(source, "nodes", **{f"{name}_hosts": where.hosts, f"{name}_ports": where.ports})
    sheet.give(
        "rate of others over that of a gather; not 1 where measured, and in an all-to-all of nodes",
        "share",
        **{
            f"{name}_reduce_share": link.reduce_share,
            f"{name}_scatter_share": link.scatter_share,
            f"{name}_exchange_share": link.exchange_share,
        },
    )
    sheet.work_out("links", tuple(_lines(name, where.local, where.nodes)))
    sheet.check(f"{name}_rate", link.bytes_per_s, MEASURED)
    sheet.check(f"{name}_round_s", link.round_s, MEASURED)
    sheet.check(f"{name}_tree_s", link.tree_s, MEASURED)


def _lines(name: str, local: int, nodes: int) -> Iterator[Line]:
    inside = f"({name}_ranks - {name}_nodes) * intra_latency_s"
    near = f"(log2({name}_hosts) + {name}_local / {name}_hosts - 1) * intra_latency_s"
    why = f"{RING}: up and down a tree, where that is shorter"
    if nodes == 1:
        yield Line(f"{name}_rate", "bytes/s", "intra_bytes_per_s * intra_efficiency", RING)
        yield Line(f"{name}_round_s", "s", inside, f"{RING}: hops around the ring")
        yield Line(f"{name}_tree_s", "s", f"2 * min({name}_round_s, {near})", why)
        return
    adapters = f"{name}_ports * nics_per_node"
    rate = f"{adapters} * inter_bytes_per_s * inter_efficiency / {name}_sharing"
    rate = f"{rate} / (1 + congestion * log2({name}_nodes))"
    rate = rate if local == 1 else f"min(intra_bytes_per_s * intra_efficiency, {rate})"
    yield Line(f"{name}_rate", "bytes/s", rate, f"{RING}: the slower of both links")
    around = f"({name}_nodes - 1) * inter_latency_s + {inside}"
    yield Line(f"{name}_round_s", "s", around, f"{RING}: hops around the ring")
    tree = f"log2({name}_nodes) * inter_latency_s + {near}"
    yield Line(f"{name}_tree_s", "s", f"2 * min({name}_round_s, {tree})", why)


def _place(where: Spread) -> str:
    """What the local ranks lie on, in words."""
    return "a node" if where.hosts == 1 else f"{where.hosts} nodes that NVLink joins"
