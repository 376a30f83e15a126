"""Findings about a measurement, to be read before a plan relies on it. Pure."""

from __future__ import annotations

from dsforge.findings import Finding, worst_first
from dsforge.probe.launch import Found
from dsforge.probe.messages import Rate, Skipped
from dsforge.specs import ClusterSpec, LinkSpec, MeasuredLink
from dsforge.units import gb_per_s, gib

MIN_SHARE = 0.6  # of a link's rating
SLOW_RANK = 0.85  # of the fastest rank's products
LESS_MEMORY = 0.9


def findings(cluster: ClusterSpec, found: Found) -> tuple[Finding, ...]:
    """All findings about a measured cluster, the worst first; `cluster` as its card reads."""
    every = [
        *_sockets(cluster, found),
        *_through_host(found),
        *_unlike_nodes(cluster, found),
        *_slow_links(cluster),
        *_slow_ranks(found),
        *_described(cluster, found),
        *_incomplete(found),
    ]
    return worst_first(every)


def _sockets(cluster: ClusterSpec, found: Found) -> list[Finding]:
    """NCCL over TCP where a faster way is there, or was planned with."""
    if found.nccl.transport != "sockets" or cluster.nodes == 1:
        return []
    ports, link = found.world.most_rdma_ports, cluster.inter_node
    if not ports and not link.is_rdma:
        return []
    there = f"{ports} RDMA ports are active" if ports else f"{link.name} was planned with"
    fix = "look for NCCL_IB_DISABLE in .deepspeed_env and the shell, for libibverbs in the image, "
    fix += "and for `ibv_devinfo` on every host; NCCL_DEBUG=INFO says why NET/IB was left"
    return [Finding("probe-sockets", "error", f"NCCL fell back to sockets although {there}", fix)]


def _through_host(found: Found) -> list[Finding]:
    """RDMA that cannot reach the memory of the cards."""
    if found.nccl.transport != "rdma" or found.nccl.gpu_direct is not False:
        return []
    message = "RDMA goes through host memory: NCCL reports no channel with GDRDMA"
    fix = (
        "`lsmod | grep nvidia_peermem` on every host; ACS off in the BIOS; NCCL_NET_GDR_LEVEL unset"
    )
    return [Finding("probe-no-gpu-direct", "warning", message, fix)]


def _unlike_nodes(cluster: ClusterSpec, found: Found) -> list[Finding]:
    """Nodes whose interfaces or adapters differ from the rest."""
    world, said = found.world, []
    if cluster.nodes > 1 and len(world.interfaces) > 1:
        names = ", ".join(world.interfaces)
        message = f"the interface between the hosts has different names: {names}"
        fix = (
            "use one name; until then .deepspeed_env sets none, because all hosts get the same "
            "value"
        )
        said.append(Finding("probe-interfaces", "warning", message, fix))
    if world.rdma_ports != world.most_rdma_ports:
        message = f"one node has {world.rdma_ports} active RDMA ports, another "
        message += f"{world.most_rdma_ports}: NCCL runs at the speed of the first"
        fix = "check ports and cables there: `ibstat`"
        said.append(Finding("probe-rdma-uneven", "warning", message, fix))
    return said


def _slow_links(cluster: ClusterSpec) -> list[Finding]:
    """Links far below their rating."""
    links = (
        ("inside a node", cluster.intra_node, cluster.intra_node.bytes_per_s),
        ("between nodes", cluster.inter_node, cluster.inter_node_bytes_per_s),
    )
    return [
        _slow_link(where, link, link.measured, rating)
        for where, link, rating in links
        if link.measured and link.measured.paces and link.kind != "memory"
        if _best_bytes_per_s(link.measured) < MIN_SHARE * rating
    ]


def _slow_link(where: str, link: LinkSpec, measured: MeasuredLink, rating: float) -> Finding:
    best = _best_bytes_per_s(measured)
    message = f"{where}, collectives reach {gb_per_s(best)} at best: {best / rating:.0%} of the "
    message += f"{gb_per_s(rating)} that {link.name} is rated at"
    fix = "on the host `nvidia-smi topo -m`: check that the GPUs are connected as described"
    if where == "between nodes":
        fix = "`ethtool IFACE | grep Speed`, `ip -s link` for errors and MTU, `iperf3` between two "
        fix += "hosts; one TCP stream does not fill 25 GbE and more, RDMA does"
    return Finding("probe-slow-link", "warning", message, fix)


def _best_bytes_per_s(measured: MeasuredLink) -> float:
    return max(pace.bytes_per_s for pace in measured.paces.values())


def _slow_ranks(found: Found) -> list[Finding]:
    """A rank that computes slower than the others: everyone waits for it in every step."""
    products = [a for a in found.answers if isinstance(a, Rate) and a.what == "product"]
    slow = [rate for rate in products if rate.per_s < SLOW_RANK * rate.best_per_s]
    if not slow or found.world.device == "cpu":  # ranks of a CPU share it with whatever runs
        return []
    worst = min(slow, key=lambda rate: rate.per_s / rate.best_per_s)
    message = f"{worst.slowest} reaches {worst.per_s / worst.best_per_s:.0%} of the fastest rank"
    fix = "`nvidia-smi -q -d PERFORMANCE,CLOCK,POWER` there: heat, power cap, or another process"
    return [Finding("probe-slow-rank", "warning", f"{message} in matrix products", fix)]


def _described(cluster: ClusterSpec, found: Found) -> list[Finding]:
    """Hardware with less than the description says."""
    has, said = found.world.memory_bytes, cluster.host_memory_bytes
    if has >= LESS_MEMORY * said:
        return []
    message = f"a node has {gib(has)} of RAM, the cluster file says {gib(said)}"
    fix = f"host_memory_gib: {has / 2**30:.0f}"
    return [Finding("probe-less-memory", "warning", message, fix)]


def _incomplete(found: Found) -> list[Finding]:
    """What is missing from the measurement."""
    said = [
        Finding("probe-skipped", "info", f"not measured: {a.what} ({a.why})", "")
        for a in found.answers
        if isinstance(a, Skipped)
    ]
    if not found.complete:
        message = "the ranks were stopped before all measurements were done"
        said.append(Finding("probe-incomplete", "warning", message, "use a longer `--timeout`"))
    return said
