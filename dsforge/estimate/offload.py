"""Seconds that offload adds: PCIe both ways, Adam on the CPU, the disk.

CPU Adam: about 8e7 parameters a second and core, at most 4e9 a node, where memory bandwidth ends
it (DeepSpeed, ops/adam benchmark: 10 B parameters in 2.6 s on two sockets).
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.activations import element_bytes
from dsforge.estimate.family_costs import Frame
from dsforge.estimate.states import optimizer_bytes_per_parameter, shares, tiles_of
from dsforge.specs import ClusterSpec
from dsforge.strategy import Strategy
from dsforge.traced import Constant, minimum, named

ADAM = "estimate/offload.py: parameters a second of CPU Adam (DeepSpeed, ops/adam benchmark)"
ADAM_PER_CORE = Constant(8e7, "adam_per_core", "1/s", ADAM)
ADAM_PER_NODE = Constant(4e9, "adam_per_node", "1/s", ADAM)
LINK_SHARE = Constant(
    0.75, "link_share", "share", "estimate/offload.py: of the PCIe rate, with pinned memory"
)
COPIES_SHOWN = Constant(
    0.6, "copies_shown", "share", "estimate/offload.py: share of copies that no compute hides"
)
CPU = "CPU Adam of all ranks of the node; of the optimizer only the offloaded share"
COPIED = "PCIe both ways, hidden in part; all ranks of a node share the disk"


class Moved(NamedTuple):
    """Seconds of one step: copies that nothing hides, and the optimizer on the CPU."""

    once_s: float
    micro_step_s: float  # more for each micro step
    cpu_s: float


def offload(frame: Frame, strategy: Strategy) -> Moved:
    """What offload adds to a step, on the slowest rank."""
    if not strategy.offloads:
        return Moved(0.0, 0.0, 0.0)
    cluster, workload, held = frame.cluster, frame.workload, frame.fullest.held
    group, size = shares(strategy), element_bytes(workload)
    shard, trainable = group.of(held), group.of_trainable(held)
    copied = disk = cpu_s = disk_once = 0.0
    if strategy.offload_optimizer != "none":
        copied += size * trainable
        tiles, offloaded = tiles_of(strategy, trainable, frame.buckets)
        cpu_s = trainable * cluster.gpus_per_node / _adam_per_s(cluster) * offloaded / tiles
        if strategy.offload_optimizer == "nvme":
            disk_once = 2 * trainable * (optimizer_bytes_per_parameter(workload) + 2)
    copied_once = copied  # the updated weights come back
    if strategy.offload_parameters != "none":
        passes = 3 if strategy.recompute == "full" else 2
        copied += size * shard * passes
        if strategy.offload_parameters == "nvme":
            disk = size * shard * passes
    link = named(_link_bytes_per_s(cluster) / COPIES_SHOWN, "copy_rate", "bytes/s", COPIED)
    once_s = copied_once / link + _disk_s(cluster, disk_once)
    micro_step_s = copied / link + _disk_s(cluster, disk)
    return Moved(
        once_s=named(once_s, "copies_of_step_s", "s", COPIED),
        micro_step_s=named(micro_step_s, "copies_of_micro_step_s", "s", COPIED),
        cpu_s=named(cpu_s, "cpu_optimizer_s", "s", CPU),
    )


def _link_bytes_per_s(cluster: ClusterSpec) -> float:
    """Bytes/s between accelerator and host: of a cluster card, else a share of the rating."""
    found = cluster.gpu.measured
    if found is not None and found.host_copy_bytes_per_s is not None:
        return found.host_copy_bytes_per_s
    return cluster.gpu.host_link_bytes_per_s * LINK_SHARE


def _adam_per_s(cluster: ClusterSpec) -> float:
    """Parameters/s of CPU Adam on one node, all its ranks together."""
    if cluster.cpu_adam_per_s is not None:
        return cluster.cpu_adam_per_s
    return named(minimum(ADAM_PER_CORE * cluster.cpu_cores, ADAM_PER_NODE), "node_adam", "1/s")


def _disk_s(cluster: ClusterSpec, rank_bytes: float) -> float:
    """Seconds to read and write one rank's bytes while all ranks of the node do."""
    if cluster.nvme is None or rank_bytes == 0:
        return 0.0
    rate = 2 / (1 / cluster.nvme.read_bytes_per_s + 1 / cluster.nvme.write_bytes_per_s)
    rate = named(rate, "disk_rate", "bytes/s", "mean of reading and writing")
    return rank_bytes * cluster.gpus_per_node / rate
