"""The price of one strategy: memory, time, buffer sizes, and whether it fits."""

from __future__ import annotations

from typing import Literal

from dsforge.estimate.buckets import size_aio
from dsforge.estimate.doubts import HOST_ENDS
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.host import HostMemory
from dsforge.estimate.memory import MemoryEstimate, footprints, fullest, memory_of
from dsforge.estimate.time import step_costs, time_of
from dsforge.plan import Priced
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Strategy
from dsforge.units import gib

Bound = Literal["low", "likely", "high"]  # which end of a memory estimate counts

HOST_SHARE = 0.95  # of a node's RAM: the rest is the operating system's


def price(model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy) -> Priced:
    """Predicted memory and step time of one strategy, legal or not."""
    costs = family_costs(model, cluster, workload, strategy)
    memory = memory_of(costs, fullest(footprints(costs, strategy), strategy.batching))
    seconds = step_costs(costs, strategy).at(strategy.batching)
    return Priced.model_construct(
        strategy=strategy,
        fits=missing_bytes(cluster, memory) <= 0,
        memory=memory,
        time=time_of(costs, strategy, seconds),
        buckets=costs.buckets,
        aio=size_aio(model, cluster, strategy),
        reasons=(),
    )


def missing_bytes(cluster: ClusterSpec, memory: MemoryEstimate, bound: Bound = "likely") -> int:
    """Bytes beyond what the device or its share of the node has; negative: room left."""
    return max(missing(cluster, memory, bound).values())


def missing(
    cluster: ClusterSpec, memory: MemoryEstimate, bound: Bound = "likely"
) -> dict[str, int]:
    """Bytes beyond each budget, for one rank: device, host RAM, NVMe.

    CPU ranks hold their tensors in the node's RAM, so there both are one budget.
    """
    device: float = getattr(memory.device_bytes, bound)
    own = round(device - device_room(cluster, memory.host_bytes))
    short = missing_on_node(cluster, memory.host_bytes, memory.nvme_bytes, bound)
    if cluster.gpu.is_cpu:
        return {**short, "host": max(own, short["host"])}
    return {"device": own, **short}


def device_room(cluster: ClusterSpec, host: HostMemory) -> float:
    """Bytes that one rank's device has: the card's, or of a CPU rank what the node has left."""
    if not cluster.gpu.is_cpu:
        return cluster.gpu.memory_bytes
    running = max(host.init, host.step, host.save)
    return (cluster.host_memory_bytes * HOST_SHARE - running) / cluster.gpus_per_node


def missing_on_node(
    cluster: ClusterSpec, host: HostMemory, nvme_bytes: int, bound: Bound = "likely"
) -> dict[str, int]:
    """Bytes beyond a rank's share of RAM and disk, whatever the device holds."""
    ranks = cluster.gpus_per_node
    phases = (host.load,) if cluster.gpu.is_cpu else (host.load, host.init, host.step, host.save)
    needed = max(phases) * (1.0 if cluster.gpu.is_cpu else getattr(HOST_ENDS, bound))
    short = {"host": round((needed - cluster.host_memory_bytes * HOST_SHARE) / ranks)}
    if nvme_bytes:
        disk = cluster.nvme.size_bytes if cluster.nvme else 0
        short["nvme"] = round((nvme_bytes - disk) / ranks)
    return short


def room_left(cluster: ClusterSpec, memory: MemoryEstimate) -> dict[str, int]:
    """Likely bytes left: of each device, and of the host RAM and the NVMe of each node.

    CPU ranks have no device: what is left of a node's RAM is shared out among them.
    """
    short = missing(cluster, memory)
    if cluster.gpu.is_cpu:
        return {"device": -short["host"]}
    return {
        name: -bytes_ * (1 if name == "device" else cluster.gpus_per_node)
        for name, bytes_ in short.items()
    }


def rooms(cluster: ClusterSpec, memory: MemoryEstimate) -> str:
    """`19.6 GiB left on each h100-80gb, 13.8 GiB of host RAM left on each node`."""
    left = room_left(cluster, memory)
    places = {
        "device": f"left on each {'CPU rank' if cluster.gpu.is_cpu else cluster.gpu.name}",
        "host": "of host RAM left on each node",
        "nvme": "of NVMe left on each node",
    }
    return ", ".join(f"{gib(left[name])} {places[name]}" for name in left)


def is_safe(cluster: ClusterSpec, memory: MemoryEstimate) -> bool:
    """Whether it fits, and the device holds even the upper end of the prediction."""
    if missing_bytes(cluster, memory) > 0:
        return False
    return cluster.gpu.is_cpu or memory.device_bytes.high <= cluster.gpu.memory_bytes


def largest_term(memory: MemoryEstimate) -> str:
    """The name of the largest memory term."""
    terms = memory.terms
    names = tuple(type(terms).model_fields)
    return max(names, key=lambda name: int(getattr(terms, name)))


def shortage(cluster: ClusterSpec, memory: MemoryEstimate) -> str:
    """`needs 92 GiB of device memory, each card has 79 GiB: 13 GiB too much; ...`.

    The budget that is exceeded most comes first, then what else is exceeded.
    """
    short = missing(cluster, memory)
    budget, *others = sorted(short, key=lambda name: -short[name])
    places = {
        "device": ("device memory", f"each {cluster.gpu.name} has", cluster.gpu.memory_bytes),
        "host": (
            "host RAM",
            "each node can use",
            round(cluster.host_memory_bytes * HOST_SHARE),
        ),
        "nvme": ("NVMe", "each node has", cluster.nvme.size_bytes if cluster.nvme else 0),
    }

    def lacking(name: str) -> int:
        return short[name] * (1 if name == "device" else cluster.gpus_per_node)

    what, owner, have = places[budget]
    also = "".join(
        f", and {gib(lacking(name))} more {places[name][0]} than {places[name][1]}"
        for name in others
        if short[name] > 0
    )
    name = largest_term(memory)
    return (
        f"needs {gib(have + lacking(budget))} of {what}, {owner} {gib(have)}: "
        f"{gib(lacking(budget))} too much{also}; the largest term on the device is "
        f"{name.replace('_', ' ')} ({gib(getattr(memory.terms, name))})"
    )
