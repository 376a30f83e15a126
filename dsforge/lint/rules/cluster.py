"""Rules: the config against the cluster that it will run on (`--cluster`, some with `--model`)."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.checked_file import ZERO, CheckedFile, rule
from dsforge.lint.rules.batch import STEPS
from dsforge.units import count, gb_per_s, gib, seconds
from dsforge.zero_stages import FULLY_SHARDED

BYTES = 2  # of an element in half precision
STATE_BYTES = 12  # fp32 master weight and two moments, Rajbhandari et al. 2020, section 3.1
GRADIENT_BYTES = 4  # the host keeps gradients in fp32 beside the offloaded optimizer
GATHERS = 3  # parameters travel in forward and backward, gradients once: ZeRO, section 7.2
LATENCY_SHARE = 10  # a message this many latencies long is bound by bandwidth
PARTS = {"offload_optimizer": STATE_BYTES + GRADIENT_BYTES, "offload_param": BYTES}


@rule(
    "cluster-fp16",
    "warning",
    why="bf16 costs the same on this GPU and cannot overflow: no loss scale, no lost steps.",
    evidence="deepspeedai/DeepSpeedExamples#418, hiyouga/LlamaFactory#986",
)
def cluster_fp16(file: CheckedFile) -> Iterator[Hit]:
    """fp16 on a GPU that supports bf16."""
    gpu = file.cluster.gpu if file.cluster else None
    if gpu and not gpu.is_cpu and file.is_on("fp16", "enabled") and "bf16" in gpu.peak_flops:
        yield Hit(("fp16", "enabled"), f"{gpu.name} has bf16: fp16 can overflow", "use bf16")


@rule(
    "cluster-host-memory",
    "error",
    why="The kernel kills the ranks (exit -9) when RAM is full; the file alone does not show it.",
    evidence="deepspeedai/DeepSpeed#4239, hiyouga/LlamaFactory#9116, axolotl-ai-cloud/axolotl#1439",
)
def cluster_host_memory(file: CheckedFile) -> Iterator[Hit]:
    """Offload that does not fit the RAM of a node."""
    need, blocks = _offloaded_bytes(file, "cpu")
    if file.cluster and need > file.cluster.host_memory_bytes:
        have = gib(file.cluster.host_memory_bytes)
        message = f"offload to the host needs {gib(need)} on each node, which has {have}"
        yield Hit((ZERO, blocks[0]), message, "use more nodes, or nvme")


@rule(
    "cluster-nvme-space",
    "error",
    why="A full disk fails in the middle of a swap, reported as a wrong file size.",
    evidence="deepspeedai/DeepSpeed#3376, deepspeedai/DeepSpeed#2006",
)
def cluster_nvme_space(file: CheckedFile) -> Iterator[Hit]:
    """NVMe offload that does not fit the disk."""
    need, blocks = _offloaded_bytes(file, "nvme")
    disk = file.cluster.nvme if file.cluster else None
    if disk and need > disk.size_bytes:
        message = (
            f"NVMe offload needs {gib(need)} on each node, the disk has {gib(disk.size_bytes)}"
        )
        yield Hit((ZERO, blocks[0]), message, "use more nodes")


def _offloaded_bytes(file: CheckedFile, device: str) -> tuple[float, list[str]]:
    """Bytes that each node keeps on a device, and the blocks that put them there."""
    blocks = [block for block in PARTS if file.device(block) == device]
    if not (file.model and file.cluster and file.stage and blocks):
        return 0.0, blocks
    from dsforge.estimate.params import parameters

    ratio = file.number(ZERO, "offload_optimizer", "ratio")
    each = sum(
        PARTS[b] * (1 if ratio is None or b != "offload_optimizer" else ratio) for b in blocks
    )
    return parameters(file.model) * each / file.cluster.nodes, blocks


@rule(
    "cluster-bucket",
    "warning",
    why="A bucket whose transfer takes less time than a few network latencies leaves most "
    "of the bandwidth unused.",
    evidence="deepspeedai/DeepSpeed#5766 (raw bandwidth is not bus bandwidth)",
)
def cluster_bucket(file: CheckedFile) -> Iterator[Hit]:
    """A bucket too small for the network."""
    cluster = file.cluster
    if not cluster or cluster.nodes == 1 or not file.stage:
        return
    rate = cluster.inter_node_bytes_per_s * cluster.inter_node.efficiency
    round_s = cluster.inter_node.latency_s * cluster.nodes
    least = LATENCY_SHARE * round_s * rate / BYTES
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        size = file.number(ZERO, key)
        if size is not None and 0 < size < least:
            wire = seconds(size * BYTES / rate)
            latency = seconds(round_s)
            message = f"`{key}` (={count(size)}) takes {wire} to send, with a latency of {latency}"
            yield Hit((ZERO, key), message, f"use {round(least)} or more")


@rule(
    "cluster-zero3-network",
    "warning",
    why="Stage 3 sends the parameters twice and the gradients once in every micro step; "
    "over Ethernet that dominates the step time.",
    evidence="hiyouga/LlamaFactory#5014 (4 s to 90 s), deepspeedai/DeepSpeed#5770",
)
def cluster_zero3_network(file: CheckedFile) -> Iterator[Hit]:
    """ZeRO 3 across nodes on Ethernet."""
    cluster, model = file.cluster, file.model
    if not cluster or not model or cluster.nodes == 1 or file.stage != FULLY_SHARDED:
        return
    if (
        cluster.inter_node.kind != "ethernet"
        or (file.whole(ZERO, "zero_hpz_partition_size") or 1) > 1
    ):
        return
    from dsforge.estimate.params import parameters

    rate = cluster.inter_node_bytes_per_s * cluster.inter_node.efficiency
    steps = file.whole(STEPS) or 1
    wire_s = GATHERS * BYTES * parameters(model) * steps / rate
    message = f"stage 3 sends {seconds(wire_s)} per step over {gb_per_s(rate)} of Ethernet"
    fix = f"set `zero_hpz_partition_size` to {cluster.gpus_per_node}, or use stage 1 or 2"
    yield Hit((ZERO, "stage"), message, fix)


@rule(
    "cluster-hpz",
    "warning",
    why="hpZ keeps gathers inside a node only if its group is exactly one node.",
    evidence="Wang et al. 2023 (ZeRO++), section 3.2; deepspeedai/DeepSpeed#6889",
)
def cluster_hpz(file: CheckedFile) -> Iterator[Hit]:
    """An hpZ group that is not a node."""
    loc = (ZERO, "zero_hpz_partition_size")
    size, cluster = file.whole(*loc) or 1, file.cluster
    if cluster and size > 1 and size != cluster.gpus_per_node:
        gpus = cluster.gpus_per_node
        message = f"`zero_hpz_partition_size` (={size}) is not the {gpus} GPUs of a node"
        yield Hit(loc, message, f"use {gpus}")


@rule(
    "cluster-nvme-path",
    "error",
    why="The cluster file has another folder than the config.",
    evidence="deepspeedai/DeepSpeed#3376 (a file system without O_DIRECT, or the wrong one)",
)
def cluster_nvme_path(file: CheckedFile) -> Iterator[Hit]:
    """NVMe offload to another disk than that of the cluster."""
    for block in PARTS:
        path = file.at(ZERO, block, "nvme_path")
        disk = file.cluster.nvme if file.cluster else None
        if not disk or file.device(block) != "nvme" or not isinstance(path, str):
            continue
        if not path.startswith(disk.path):
            message = f"`nvme_path` is not on {disk.path}, the disk of the cluster"
            yield Hit((ZERO, block, "nvme_path"), message)
