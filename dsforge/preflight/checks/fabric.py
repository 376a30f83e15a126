"""Fabric: RDMA adapters are as the job expects, and the network is as fast as planned."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.diagnose.slow_network import LEAST_SHARE, beside_one_node, step_at
from dsforge.findings import Hit
from dsforge.plan import Plan
from dsforge.preflight.case import Case, check
from dsforge.units import bit_rate, seconds

RDMA = ("infiniband", "roce")
# One TCP stream reaches 0.9 of the rating of 1 to 10 Gbit/s Ethernet.
STREAM_LIMIT = 1e9  # bytes/s; above it one stream of Python says more about the CPU than the link
UNPLANNED = 125e6  # bytes/s: 1 Gbit/s, the least that a plan without a network could mean
OFF = ("1", "true", "TRUE")


def _plans_rdma(case: Case) -> bool:
    plan = case.job.plan
    return plan is not None and plan.cluster.nodes > 1 and plan.cluster.inter_node.kind in RDMA


@check(
    "rdma-absent",
    "network",
    "error",
    why="NCCL silently falls back to sockets, at about a tenth of the planned rate.",
)
def rdma_absent(case: Case) -> Iterator[Hit]:
    """A plan for InfiniBand or RoCE, and a host without an active port."""
    if not _plans_rdma(case):
        return
    for host, facts in case.hosts.items():
        if not facts.has_rdma:
            down = ", ".join(port.name for port in facts.infiniband)
            state = f"its ports are down: {down}" if down else "it has no RDMA adapter"
            fix = "bring the port up (see `ibstat`)" if down else "load the adapter's driver"
            message = f"the plan assumes RDMA, but {state}"
            yield Hit((host,), message, f"{fix}, or plan for Ethernet: `inter_node`")


@check(
    "rdma-down",
    "network",
    "warning",
    why="NCCL spreads the traffic over all ports of all hosts; one that is down halves a node.",
)
def rdma_down(case: Case) -> Iterator[Hit]:
    """A host of which some ports are active and some are not."""
    for host, facts in case.hosts.items():
        down = [port.name for port in facts.infiniband if not port.is_active]
        if down and facts.has_rdma:
            fix = (
                "check `ibstat`: cable, switch port, subnet manager; or select the other "
                "ports: NCCL_IB_HCA"
            )
            yield Hit((host,), f"RDMA ports are down: {', '.join(down)}", fix)


@check(
    "rdma-unused",
    "network",
    "warning",
    why="The variable disables RDMA, so all traffic goes through the kernel's TCP stack.",
)
def rdma_unused(case: Case) -> Iterator[Hit]:
    """InfiniBand that is available but disabled."""
    hosts = tuple(host for host, facts in case.hosts.items() if facts.has_rdma)
    if case.job.exported.get("NCCL_IB_DISABLE") in OFF and hosts:
        message = "NCCL_IB_DISABLE=1, and RDMA ports are active"
        yield Hit(hosts, message, "remove NCCL_IB_DISABLE from .deepspeed_env and of the shell")


@check(
    "rdma-unknown",
    "network",
    "error",
    why="NCCL finds no adapter of that name and falls back to sockets, or ends.",
)
def rdma_unknown(case: Case) -> Iterator[Hit]:
    """NCCL_IB_HCA names an adapter that a host does not have."""
    value = case.job.exported.get("NCCL_IB_HCA", "")
    if not value or value.startswith("^"):
        return
    wanted = [word.partition(":")[0] for word in value.lstrip("=").split(",")]
    for host, facts in case.hosts.items():
        have = sorted({port.name for port in facts.infiniband})
        if not any(name.startswith(word) for name in have for word in wanted):
            message = f"NCCL_IB_HCA={value}, and its adapters are {', '.join(have) or 'none'}"
            yield Hit((host,), message, "name its adapters, or unset the variable")


@check(
    "memlock",
    "memory",
    "error",
    why="RDMA pins its buffers; under a limit NCCL ends with `ibv_reg_mr: Cannot allocate memory`.",
)
def memlock(case: Case) -> Iterator[Hit]:
    """A host with RDMA whose processes may not pin memory."""
    for host, facts in case.hosts.items():
        if facts.has_rdma and facts.memlock_bytes >= 0:
            message = f"a remote shell may pin only {facts.memlock_bytes >> 10} KiB"
            fix = "`* - memlock unlimited` in /etc/security/limits.conf there; LimitMEMLOCK of sshd"
            yield Hit((host,), message, fix)


@check(
    "bandwidth",
    "network",
    "error",
    why="Several nodes are slower than one where the network cannot carry what every step sends.",
)
def bandwidth(case: Case) -> Iterator[Hit]:
    """A path that is slower than the plan assumes."""
    plan = case.job.plan
    if _plans_rdma(case):
        return  # one TCP stream says nothing about RDMA
    rating = plan.cluster.inter_node.bytes_per_s if plan and plan.cluster.nodes > 1 else UNPLANNED
    needed = min(LEAST_SHARE * rating, STREAM_LIMIT)
    paths = {h: s for h, s in case.streams.items() if not s.error}
    slow = [host for host in paths if paths[host].bytes_per_s < needed]
    if not slow:
        return
    host = min(slow, key=lambda host: paths[host].bytes_per_s)
    peer, rate = paths[host].peer, paths[host].bytes_per_s
    message = (
        f"{bit_rate(rate)} from {host} to {peer}, measured; the plan assumes "
        f"{bit_rate(rating)} and needs {bit_rate(needed)}{_price(plan, rate)}; {len(slow)} of "
        f"{len(paths)} paths are too slow"
    )
    fix = (
        f"check the network between {host} and {peer}: `ethtool IFACE`, cable, switch port, "
        "traffic shaping (`tc qdisc`); or plan for the rate it has: `inter_node` in the "
        "cluster file"
    )
    yield Hit(tuple(dict.fromkeys((*slow, peer))), message, fix)


def _price(plan: Plan | None, rate: float) -> str:
    """What the step takes at that rate, beside the planned time and one node alone."""
    if plan is None or plan.cluster.nodes == 1 or rate <= 0:
        return ""
    slow, planned = step_at(plan, rate), plan.choice.time.step_s.likely
    words = f"; a step then takes {seconds(slow)} instead of {seconds(planned)}"
    return words + beside_one_node(plan, slow)


def _is_broken(case: Case, *pair: str) -> bool:
    """Whether it is known already that two hosts do not reach each other, or lose full packets."""
    calls = [call for host in pair for call in case.calls.get(host, ()) if call.peer in pair]
    return any(call.error or call.mtu_passes is False for call in calls)


@check(
    "stream-failed",
    "network",
    "warning",
    why="A connection that stalls indicates a path that drops large packets, or a host that hangs.",
)
def stream_failed(case: Case) -> Iterator[Hit]:
    """A path that connects but transfers no data."""
    for host, stream in case.streams.items():
        if stream.error and not _is_broken(case, host, stream.peer):
            message = f"data sent to {stream.peer} does not arrive: {stream.error}"
            yield Hit(
                (host, stream.peer),
                message,
                "compare the MTUs and check the switch between the hosts",
            )
