"""Detect: facts about one node -> the cluster file of a cluster of one such node. Pure.

A node without a GPU is planned with CPU ranks: two of them where there are two cores, because two
is the least that shards anything; further cores become threads of those ranks. Their speed is what
numpy reached on them, or what their vector units should reach. Rates that nobody measured are taken
low: a plan should err on the slow side.
"""

from __future__ import annotations

from typing import Any

import yaml

from dsforge import catalog
from dsforge.errors import SpecError
from dsforge.hostfile import Entry, entry_problems
from dsforge.probe.node_facts import DiskFact, Facts, GpuFact, InterfaceFact
from dsforge.reading.files import ClusterFile, GpuFile, HostFile, NvmeFile
from dsforge.specs import PLAIN_DISK, GpuSpec, Precision
from dsforge.units import GBPS, GIB, TFLOP

CPU_RANKS = 2
RANK_SHARE = 0.9  # of RAM; the rest is for the system
# bf16 and fp16 are emulated where the CPU has no unit for them: steps of SmolLM2-135M with LoRA
# take 2.9 s in fp32 and 10 to 12 s in bf16 (two ranks on an AVX2 EPYC, torch 2.13).
NARROW_CPU_SHARE = 0.25
TENSOR_PER_FP32 = 2  # tensor peak over plain fp32: 2 on RTX 30, 4 and more elsewhere
UNKNOWN_GPU_TFLOPS, UNKNOWN_MEMORY_GB_S = 10.0, 200.0
CLOSE = 0.1  # share by which the driver's memory may differ from the catalog's
USABLE_DISK = 0.8
SWAP_FOLDER = "dsforge_swap"
VIRTUAL = ("docker", "veth", "br-", "virbr", "cni", "flannel", "tun", "tap", "cali", "lxc")
ETHERNET = (1, 10, 25, 40, 50, 100, 200, 400, 800)
RDMA = {"infiniband": (100, 200, 400, 800), "roce": (25, 100, 200, 400, 800)}


def cluster_file(facts: Facts) -> tuple[ClusterFile, tuple[str, ...]]:
    """The cluster of one such node, and notes for the person who will edit it."""
    gpus, notes = _accelerators(facts)
    interface = training_interface(facts.interfaces)
    network, network_notes = _network(facts, interface)
    disk, disk_notes = _disk(facts.disks)
    slots = int(gpus["gpus_per_node"])
    address = interface.address if interface else None
    hosts = (HostFile(address=address, slots=slots),) if address and _is_usable(address) else ()
    file = ClusterFile(
        name=facts.host_name[:100],
        nodes=None if hosts else 1,  # more hosts in the list are more nodes
        hosts=hosts,
        interface=interface.name if interface else None,
        host_memory_gib=_host_gib(facts, gpus["gpu"]),
        cpu_cores=facts.cpu_cores,
        nvme=disk,
        **gpus,
        **network,
    )
    return file, (*notes, *network_notes, *disk_notes)


def cluster_yaml(file: ClusterFile, notes: tuple[str, ...] = ()) -> str:
    """The text of a cluster file, notes on top as comments."""
    head = (
        "# This machine, as found by `dsforge detect`. List more `hosts` to plan for more nodes.\n"
    )
    comments = "".join(f"# Note: {note}\n" for note in notes)
    values = file.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return head + comments + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def training_interface(interfaces: tuple[InterfaceFact, ...]) -> InterfaceFact | None:
    """The interface that other machines reach: default route, then physical, then any address."""
    usable = [i for i in interfaces if i.address and not i.name.startswith(VIRTUAL)]
    return min(usable, key=lambda i: (not i.is_default, not i.is_physical, i.name), default=None)


def _accelerators(facts: Facts) -> tuple[dict[str, Any], list[str]]:
    """Card, number and link: GPUs where there are some, else CPU ranks."""
    if not facts.gpus:
        ranks = min(CPU_RANKS, facts.cpu_cores)
        reasons = (f"no GPU: {ranks} CPU ranks", facts.gpu_note, facts.cpu_note)
        note = "; ".join(filter(None, reasons))
        values = {"gpu": _cpu_rank(facts, ranks), "intra_node": "shared-memory"}
        return {"gpus_per_node": ranks, **values}, [note]
    weakest = min(facts.gpus, key=lambda gpu: gpu.memory_bytes)
    notes = []
    if len({gpu.name for gpu in facts.gpus}) > 1:
        notes.append(f"the GPUs differ; the plan is made for the weakest, {weakest.name}")
    known = _in_catalog(weakest)
    values = {"gpus_per_node": len(facts.gpus), "gpu": known.name if known else _own_card(weakest)}
    if known is None:
        notes.append(f"{weakest.name} is not in the catalog: its rates are low estimates")
    link = _intra_node(weakest, known)
    return {**values, "intra_node": link}, notes


def _in_catalog(gpu: GpuFact) -> GpuSpec | None:
    """The catalog's row for a card, if name and memory agree."""
    try:
        spec = catalog.gpu(gpu.name)
    except SpecError:
        return None
    if catalog.shared_host_gib(spec) is not None:  # the driver reports the memory of both
        return spec
    return spec if abs(spec.memory_bytes / gpu.memory_bytes - 1) <= CLOSE else None


def _host_gib(facts: Facts, gpu: str | GpuFile) -> float:
    """RAM of the host; of one memory that CPU and GPU share, what the GPU leaves."""
    whole = facts.memory_bytes / GIB
    card = catalog.gpu(gpu) if isinstance(gpu, str) else None
    if card is None or catalog.shared_host_gib(card) is None:
        return _rounded(whole)
    return _rounded(max(1.0, whole - card.memory_bytes / GIB))


def _own_card(gpu: GpuFact) -> GpuFile:
    """A card that the catalog does not have, from clocks and bus width."""
    fp32 = UNKNOWN_GPU_TFLOPS
    if gpu.cuda_cores and gpu.clock_mhz:
        fp32 = 2 * gpu.cuda_cores * gpu.clock_mhz * 1e6 / TFLOP
    peaks: dict[Precision, float] = {"fp16": _rounded(TENSOR_PER_FP32 * fp32)}
    if gpu.has_bf16:
        peaks["bf16"] = peaks["fp16"]
    rate = gpu.memory_bytes_per_s
    return GpuFile(
        name=gpu.name[:100],
        memory_gib=_rounded(gpu.memory_bytes / GIB),
        memory_bandwidth_gb_s=_rounded(rate / GBPS) if rate else UNKNOWN_MEMORY_GB_S,
        peak_tflops={**peaks, "fp32": _rounded(fp32)},
    )


def _intra_node(gpu: GpuFact, known: GpuSpec | None) -> str:
    """The usual link of the card, or PCIe where no NVLink is up."""
    usual = catalog.default_intra_node(known) if known else None
    if usual is not None and (gpu.nvlinks or usual.kind != "nvlink"):
        return usual.name
    return f"pcie-{min(max(gpu.pcie_generation or 4, 3), 6)}"


def _cpu_rank(facts: Facts, ranks: int) -> GpuFile:
    """One of the ranks that share the CPU."""
    fp32 = facts.cpu_flops / ranks / TFLOP
    narrow = fp32 if facts.cpu_has_bf16 else NARROW_CPU_SHARE * fp32
    bandwidth = _rounded(facts.cpu_bytes_per_s / ranks / GBPS)
    return GpuFile(
        name="cpu",
        memory_gib=_rounded(RANK_SHARE * facts.memory_bytes / ranks / GIB),
        memory_bandwidth_gb_s=bandwidth,
        peak_tflops={"bf16": _rounded(narrow), "fp16": _rounded(narrow), "fp32": _rounded(fp32)},
        host_link_gb_s=bandwidth,
    )


def _network(facts: Facts, interface: InterfaceFact | None) -> tuple[dict[str, Any], list[str]]:
    """Link between nodes and adapters: RDMA where it is active, else the interface's speed."""
    if facts.infiniband:
        best = max(port.gbit_per_s for port in facts.infiniband)
        ports = [port for port in facts.infiniband if port.gbit_per_s == best]
        kind = "roce" if ports[0].is_ethernet else "infiniband"
        link = f"{kind}-{_at_most(best, RDMA[kind])}"
        return {"inter_node": link, "nics_per_node": min(len(ports), 64)}, []
    if interface is None:
        return {}, ["no network interface with an address: set `interface` before using more nodes"]
    if interface.gbit_per_s is None:
        return {}, [f"{interface.name} does not report its speed: set `inter_node` for more nodes"]
    return {"inter_node": f"{_at_most(interface.gbit_per_s, ETHERNET)}gbe"}, []


def _disk(disks: tuple[DiskFact, ...]) -> tuple[NvmeFile | None, list[str]]:
    """The disk for offload: the first that is NVMe or was measured."""
    disk = next((d for d in disks if d.is_nvme or d.read_bytes_per_s), None)
    if disk is None:
        return None, []
    notes = [] if disk.is_nvme else [f"{disk.device} is not NVMe by its name"]
    read, write = PLAIN_DISK.read_bytes_per_s / GBPS, PLAIN_DISK.write_bytes_per_s / GBPS
    if disk.read_bytes_per_s and disk.write_bytes_per_s:
        read, write = disk.read_bytes_per_s / GBPS, disk.write_bytes_per_s / GBPS
    else:
        notes.append("the rates of the disk are assumed; `dsforge detect --measure-disk` measures")
    parent = disk.mount if disk.mount != "/" else "/var/tmp"  # noqa: S108 (survives a restart)
    folder = f"{parent}/{SWAP_FOLDER}"
    size = _rounded(USABLE_DISK * disk.free_bytes / GIB)
    nvme = NvmeFile(
        path=folder, size_gib=size, read_gb_s=_rounded(read), write_gb_s=_rounded(write)
    )
    return nvme, notes


def _is_usable(address: str) -> bool:
    return not entry_problems([Entry(address, 1, "")])


def _at_most(rate: float, known: tuple[int, ...]) -> int:
    """The largest known rate that is not above this one, or the smallest known."""
    return max((r for r in known if r <= rate), default=known[0])


def _rounded(value: float) -> float:
    """A figure with four significant digits, as a person would write it."""
    return max(float(f"{value:.4g}"), 1e-6)
