"""Seconds that offload adds: copies both ways, the optimizer on the CPU, the disk.

The offloaded step is a sum of passes over memory, not one rate: the engine scales the float32
gradients (`unscale_and_clip_grads`), the optimizer reads and writes its states, and the new weights
are cast to the compute precision (stage_1_and_2.py, `step`; stage3.py, `unflatten_and_cast`). The
threads of the ranks share the node's memory bandwidth.

What a rank copies in a step are float32 gradients and 16-bit weights; where micro steps accumulate,
their 16-bit sums go to the device and back each time (`async_accumulate_grad_in_cpu_via_gpu`;
stage 3 `partition_grads`, with one micro step, too). Stage 3 copies on streams of its own, each
weight ahead of its module and each gradient behind it, so compute hides them as it hides gathers,
and PCIe carries both directions at once; below stage 3 the sums are part of the reduction itself.

Two settings belong to who launches and are not part of a strategy: threads of a rank (dsforge's
scripts give each its share of the cores, torchrun one) and page-locked buffers (dsforge asks for
them, DeepSpeed's default does not). The likely step has dsforge's; where the config is not written
by dsforge (buckets are the engine's, or given), the upper end of the interval has the others'.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.activations import FLOAT_BYTES, element_bytes
from dsforge.estimate.family_costs import FamilyCosts
from dsforge.estimate.optimizer_bytes import (
    MOMENTS,
    optimizer_bytes_per_parameter,
    paged_bytes_per_parameter,
    stepped_bytes,
)
from dsforge.estimate.states import shares, tiles_of
from dsforge.estimate.traffic import GATHER_OVERLAP, NEVER_HIDDEN
from dsforge.specs import ClusterSpec, Workload
from dsforge.strategy import FULLY_SHARDED, Execution, Strategy
from dsforge.traced import TRACED, Constant, label, maximum, minimum, named

SOURCE = "estimate/offload.py"
THREAD_BYTES_PER_S = Constant(
    17e9,
    "thread_bytes_per_s",
    "bytes/s",
    f"{SOURCE}: DeepSpeed 0.19's offloaded step on one thread of a Xeon with AVX-512, measured",
)
SOCKET_BYTES_PER_S = Constant(
    54e9,
    "socket_bytes_per_s",
    "bytes/s",
    f"{SOURCE}: 28 bytes each of 10 B parameters in 2.6 s on two sockets (DeepSpeed, ops/adam)",
)
SOCKET_CORES = 24  # of each of those sockets; a node with more cores is taken to have two
PAGEABLE_BYTES_PER_S = Constant(
    3.5e9,
    "pageable_bytes_per_s",
    "bytes/s",
    f"{SOURCE}: copies without page-locked buffers: 2.3 to 5.4e9 (NVIDIA, data transfers in CUDA)",
)
LINK_SHARE = Constant(
    0.75, "link_share", "share", f"{SOURCE}: of the PCIe rate, with pinned memory"
)
COPIES_SHOWN = Constant(
    0.6, "copies_shown", "share", f"{SOURCE}: share of copies that cannot overlap with compute"
)
CPU = "passes of all ranks of the node; only the offloaded share of the optimizer"
COPIED = "PCIe in both directions, partly overlapped; all ranks of a node share the disk"
STREAMED = "stage 3 copies beside compute: the busier direction of PCIe"
SHOWN = "copies that no work beside them hides; at least a fixed share"


class Slower(NamedTuple):
    """Seconds more of each part with one thread a rank and buffers that are not page-locked."""

    once_s: float
    micro_step_s: float
    accumulating_s: float

    def at(self, micro_steps: int) -> float:
        """Seconds more of a step."""
        gathered = self.accumulating_s if micro_steps > 1 else 0.0
        return self.once_s + micro_steps * (self.micro_step_s + gathered)


class Moved(NamedTuple):
    """Seconds of one step: copies that nothing hides, and the optimizer on the CPU."""

    once_s: float
    micro_step_s: float  # more for each micro step
    cpu_s: float
    accumulating_s: float = 0.0  # more for each micro step where there are several
    streamed_s: float = 0.0  # of each micro step, beside its compute
    slower: Slower | None = None

    def copies_s(self, micro_steps: int, busy_s: float) -> float:
        """Seconds of a step's copies beside micro steps of so much other work."""
        return self.once_s + micro_steps * self.each_s(micro_steps, busy_s)

    def each_s(self, micro_steps: int, busy_s: float) -> float:
        """Seconds of one micro step's copies that the work beside them does not hide."""
        gathered = self.accumulating_s if micro_steps > 1 else 0.0
        return self.micro_step_s + gathered + self._shown_s(busy_s)

    def _shown_s(self, busy_s: float) -> float:
        """Seconds of stage 3's copies that nothing hides, with the shares of its gathers.

        They go on while compute waits for a gather: of compute alone, gathers and copies together
        would hide more than there is, and a faster card would be slower.
        """
        hidden_s = GATHER_OVERLAP * busy_s
        shown_s = maximum(self.streamed_s - hidden_s, NEVER_HIDDEN * self.streamed_s)
        if busy_s.__class__ is TRACED and self.streamed_s:
            label(shown_s, "copies_shown_s", "s", SHOWN)
        return shown_s


NOTHING = Moved(0.0, 0.0, 0.0)


class _Copies(NamedTuple):
    """Bytes that one rank copies between host and device."""

    once: float = 0.0
    accumulating: float = 0.0
    to_device: float = 0.0  # of each micro step under stage 3
    to_host: float = 0.0

    @property
    def streamed(self) -> float:
        """Bytes of each micro step in the busier direction."""
        return maximum(self.to_device, self.to_host)


class _Disk(NamedTuple):
    """Bytes of one rank: both ways in the step, as many each; only read in a micro step."""

    once: float = 0.0
    micro_step: float = 0.0


def offload(costs: FamilyCosts, strategy: Strategy) -> Moved:
    """What offload adds to a step, on the slowest rank."""
    if not strategy.offloads:
        return NOTHING
    cluster, held, group = costs.cluster, costs.fullest.held, shares(strategy)
    trainable = group.of_trainable(held)
    copies = _copies(costs.workload, strategy, group.of_stored(held), trainable)
    disk = _disk(costs.workload, strategy, group.of_stored(held), trainable)
    updated = 0.0
    if strategy.offload_optimizer != "none":
        tiles, offloaded = tiles_of(strategy, trainable, costs.buckets)
        updated = named(trainable * offloaded / tiles, "updated_on_cpu", "elements", CPU)
    passed = updated * cluster.gpus_per_node * pass_bytes(costs.workload, strategy.runs_as)
    cpu_s = passed / _passes_per_s(cluster, costs.workload)
    link = named(link_bytes_per_s(cluster) / COPIES_SHOWN, "copy_rate", "bytes/s", COPIED)
    once_s = copies.once / link + _both_ways_s(cluster, disk.once)
    micro_step_s = _read_s(cluster, disk.micro_step)
    streamed_s = copies.streamed / link_bytes_per_s(cluster)
    return Moved(
        once_s=named(once_s, "copies_of_step_s", "s", COPIED),
        micro_step_s=named(micro_step_s, "copies_of_micro_step_s", "s", COPIED),
        cpu_s=named(cpu_s, "cpu_optimizer_s", "s", CPU),
        accumulating_s=named(copies.accumulating / link, "copies_of_sums_s", "s", COPIED),
        streamed_s=named(streamed_s, "streamed_copies_s", "s", STREAMED),
        slower=None
        if costs.own_config
        else _slower(cluster, copies, link, passed / _one_thread_per_s(cluster) - cpu_s),
    )


def _copies(workload: Workload, strategy: Strategy, shard: float, trainable: float) -> _Copies:
    """Bytes between host and device."""
    size, once, sums, down = element_bytes(workload), 0.0, 0.0, 0.0
    if strategy.offload_optimizer != "none":
        stepped = stepped_bytes(workload, strategy.runs_as)
        once = (stepped + size) * trainable  # gradients go, updated weights come back
        sums = size * trainable  # come to be added to, and go again
    if strategy.offload_parameters != "none":
        down = size * shard * (3 if strategy.recompute == "full" else 2)
    if strategy.zero_stage != FULLY_SHARDED:
        return _Copies(once, 2 * sums)
    return _Copies(once, 0.0, down + sums, sums)


def _disk(workload: Workload, strategy: Strategy, shard: float, trainable: float) -> _Disk:
    """Bytes to and from NVMe."""
    once = each = 0.0
    if strategy.offload_optimizer == "nvme":
        once = 2 * trainable * (optimizer_bytes_per_parameter(workload, strategy) + 2)
    if strategy.offload_parameters == "nvme":
        each = element_bytes(workload) * shard * (3 if strategy.recompute == "full" else 2)
    return _Disk(once, each)


def optimizer_pass_bytes(workload: Workload, stepped: int = FLOAT_BYTES) -> int:
    """Bytes that the optimizer reads and writes for a parameter: 28 of AdamW in float32.

    The gradient is read, master weight and moments are read and written (csrc/includes/cpu_adam.h),
    all of them in the type that is stepped.
    """
    return stepped * (3 + 2 * MOMENTS[workload.optimizer])


def pass_bytes(workload: Workload, run: Execution) -> int:
    """Bytes that all passes of the offloaded step read and write for a parameter."""
    stepped = stepped_bytes(workload, run)
    scaled, cast = 2 * stepped, stepped + element_bytes(workload)
    return scaled + optimizer_pass_bytes(workload, stepped) + cast


def _passes_per_s(cluster: ClusterSpec, workload: Workload) -> float:
    """Bytes/s of one node's passes, all its ranks together; a card measured the optimizer's."""
    if cluster.cpu_adam_per_s is not None:
        return cluster.cpu_adam_per_s * optimizer_pass_bytes(workload)
    return _shared(cluster, cluster.cpu_cores_per_rank * cluster.gpus_per_node)


def _one_thread_per_s(cluster: ClusterSpec) -> float:
    """Bytes/s of one node's passes with one thread a rank; torchrun leaves a lone rank as it is."""
    return _shared(cluster, cluster.gpus_per_node if cluster.gpus_per_node > 1 else None)


def thread_gain(cluster: ClusterSpec) -> float:
    """How much faster a rank's share of the cores is than torchrun's one thread a rank."""
    if cluster.cpu_adam_per_s is not None:
        return 1.0
    share = _shared(cluster, cluster.cpu_cores_per_rank * cluster.gpus_per_node)
    return share / _one_thread_per_s(cluster)


def _shared(cluster: ClusterSpec, threads: int | None) -> float:
    """Bytes/s of so many threads (none: of all cores), which share the node's memory."""
    sockets = 2 if cluster.cpu_cores > SOCKET_CORES else 1
    rate = THREAD_BYTES_PER_S * (threads or cluster.cpu_cores)
    return named(minimum(rate, sockets * SOCKET_BYTES_PER_S), "passes_per_s", "bytes/s")


def _slower(cluster: ClusterSpec, copies: _Copies, link: float, cpu_s: float) -> Slower:
    """What other launchers and DeepSpeed's defaults add; nothing where a card was measured."""
    measured = cluster.gpu.measured
    if cluster.gpu.is_cpu or cluster.cpu_adam_per_s is not None:
        cpu_s = 0.0
    if cluster.gpu.is_cpu or (measured and measured.host_copy_bytes_per_s):
        return Slower(cpu_s, 0.0, 0.0)
    more = maximum(0.0, 1 / PAGEABLE_BYTES_PER_S - 1 / link)
    once_s = maximum(0.0, cpu_s) + more * copies.once
    beside = more * (copies.to_device + copies.to_host)
    return Slower(once_s, beside, more * copies.accumulating)


def paged_optimizer_s(costs: FamilyCosts, strategy: Strategy) -> float:
    """Seconds in which paged moments come to the device and leave it again, once a step."""
    each = paged_bytes_per_parameter(costs.workload, strategy.runs_as)
    if not each or costs.cluster.gpu.is_cpu:
        return 0.0
    held = costs.fullest.held
    sharded = strategy.zero_stage >= 1
    trained = shares(strategy).of_trainable(held) if sharded else 1.0 * held.trainable
    seconds = 2 * each * trained / link_bytes_per_s(costs.cluster)
    return named(seconds, "paged_optimizer_s", "s", "paged moments over the host link")


def link_bytes_per_s(cluster: ClusterSpec) -> float:
    """Bytes/s between accelerator and host: of a cluster card, else a share of the rating."""
    found = cluster.gpu.measured
    if found is not None and found.host_copy_bytes_per_s is not None:
        return found.host_copy_bytes_per_s
    return cluster.gpu.host_link_bytes_per_s * LINK_SHARE


def _both_ways_s(cluster: ClusterSpec, rank_bytes: float) -> float:
    """Seconds to read one half of a rank's bytes and write the other while all ranks do."""
    if cluster.nvme is None or rank_bytes == 0:
        return 0.0
    rate = 2 / (1 / cluster.nvme.read_bytes_per_s + 1 / cluster.nvme.write_bytes_per_s)
    rate = named(rate, "disk_rate", "bytes/s", "mean of reading and writing")
    return rank_bytes * cluster.gpus_per_node / rate


def _read_s(cluster: ClusterSpec, rank_bytes: float) -> float:
    """Seconds to read one rank's parameters while all ranks of the node read theirs."""
    if cluster.nvme is None or rank_bytes == 0:
        return 0.0
    return rank_bytes * cluster.gpus_per_node / cluster.nvme.read_bytes_per_s
