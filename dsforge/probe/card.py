"""The cluster card: a cluster file with what the ranks measured in its `measured` section. Pure.

The description stays what it was: where a run folder or a cluster file gave one, only the interface
and the disk are filled in from what was found. A link gets one line for each kind of collective,
the seconds of its smallest message and the bandwidth at its largest payload.
"""

from __future__ import annotations

from typing import Any

import yaml

from dsforge import catalog
from dsforge.errors import SpecError
from dsforge.hostfile import selection
from dsforge.probe.answer_lines import ranks_of
from dsforge.probe.launch import Found
from dsforge.probe.messages import Rate, Scope, Timed
from dsforge.reading.card import MeasuredFile, MeasuredGpuFile, MeasuredLinkFile, PaceFile
from dsforge.reading.files import ClusterFile, GpuFile, HostFile, LinkFile, NvmeFile, SlurmFile
from dsforge.specs import ClusterSpec, Collective, GpuSpec, LinkSpec
from dsforge.units import GBPS, GIB, MIB, TFLOP

KINDS: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
MIN_BANDWIDTH_SHARE = 0.25  # of a payload's seconds that its bytes take at least
HEAD = "# Cluster card of `dsforge probe`: use it as --cluster of plan, gen and estimate.\n"


def described(cluster: ClusterSpec) -> ClusterFile:
    """The cluster of a plan as a cluster file, by names where the catalog has them."""
    nvme = cluster.nvme
    return ClusterFile(
        name=cluster.name,
        nodes=None if cluster.hosts else cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        hosts=tuple(HostFile(address=h.address, slots=h.listed_slots) for h in cluster.hosts),
        include=selection(cluster) or None,
        gpu=_gpu_described(cluster.gpu),
        intra_node=_link_described(cluster.intra_node),
        inter_node=_link_described(cluster.inter_node),
        nics_per_node=cluster.nics_per_node,
        interface=cluster.interface,
        ssh_user=cluster.ssh_user,
        ssh_port=cluster.ssh_port,
        slurm=cluster.slurm and SlurmFile(**dict(cluster.slurm)),
        host_memory_gib=_figure(cluster.host_memory_bytes / GIB),
        cpu_cores=cluster.cpu_cores,
        gpu_hour_price=cluster.gpu_hour_price,
        nvme=nvme
        and NvmeFile(
            path=nvme.path,
            size_gib=_figure(nvme.size_bytes / GIB),
            read_gb_s=_figure(nvme.read_bytes_per_s / GBPS),
            write_gb_s=_figure(nvme.write_bytes_per_s / GBPS),
        ),
    )


def card(description: ClusterFile, cluster: ClusterSpec, found: Found, taken: str) -> ClusterFile:
    """The card of a cluster; `cluster` is what the description was read as."""
    update: dict[str, Any] = {"measured": _measured(cluster, found, taken)}
    if cluster.nodes > 1 and len(found.world.interfaces) == 1:
        update["interface"] = found.world.interfaces[0]
    read, write = (_rate(found, what) for what in ("disk_read", "disk_write"))
    if description.nvme is not None and read and write:
        rates = {"read_gb_s": _figure(read / GBPS), "write_gb_s": _figure(write / GBPS)}
        update["nvme"] = description.nvme.model_copy(update=rates)
    return description.model_copy(update=update)


def card_yaml(file: ClusterFile, head: str = HEAD) -> str:
    """The text of a card."""
    values = file.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def pace(timed: list[Timed]) -> PaceFile:
    """One kind of collective: its smallest message, and its largest payload without that."""
    timed = sorted(timed, key=lambda one: one.payload_bytes)
    largest, message_s = timed[-1], min(one.seconds for one in timed)
    moving_s = max(largest.seconds - message_s, MIN_BANDWIDTH_SHARE * largest.seconds)
    return PaceFile(
        bus_gb_s=_figure(largest.bus_bytes / moving_s / GBPS),
        message_us=_figure(message_s * 1e6),
        payload_mib=_figure(largest.payload_bytes / MIB),
    )


def _measured(cluster: ClusterSpec, found: Found, taken: str) -> MeasuredFile:
    world = found.world
    software = ", ".join(f"{name} {version}" for name, version in world.versions.items())
    adam = _rate(found, "adam")
    return MeasuredFile(
        taken=taken,
        how=f"{found.launcher}: {ranks_of(world)}, {world.back_end}, {software}",
        gpu=_gpu(cluster.gpu, found),
        intra_node=_link(cluster.intra_node, found, "intra_node"),
        inter_node=_link(cluster.inter_node, found, "inter_node"),
        cpu_adam_mparams_s=None if adam is None else _figure(adam / 1e6),
    )


def _gpu(gpu: GpuSpec, found: Found) -> MeasuredGpuFile:
    rates = [answer for answer in found.answers if isinstance(answer, Rate)]
    memory = _rate(found, "memory")
    copies = [rate for what in ("to_device", "to_host") if (rate := _rate(found, what))]
    return MeasuredGpuFile(
        name=gpu.name,
        tflops={r.precision: _figure(r.per_s / TFLOP) for r in rates if r.precision},
        memory_gb_s=None if memory is None else _figure(memory / GBPS),
        host_copy_gb_s=_figure(min(copies) / GBPS) if copies else None,
    )


def _link(link: LinkSpec, found: Found, scope: Scope) -> MeasuredLinkFile | None:
    """What was timed over a link; none where nothing was."""
    timed = [a for a in found.answers if isinstance(a, Timed) and a.scope == scope]
    if not timed:
        return None
    by_kind = {kind: [one for one in timed if one.collective == kind] for kind in KINDS}
    between = scope == "inter_node"
    return MeasuredLinkFile(
        link=link.name,
        nodes=timed[0].nodes,
        ranks=timed[0].ranks,
        transport=_transport(found) if between else None,
        rdma_ports=found.world.most_rdma_ports if between else None,
        **{kind: pace(some) for kind, some in by_kind.items() if some},
    )


def _transport(found: Found) -> Any:
    """What carried the bytes between nodes: gloo knows sockets only, NCCL says it."""
    return "sockets" if found.world.back_end == "gloo" else found.nccl.transport


def _rate(found: Found, what: str) -> float | None:
    """A rate per second of the slowest rank; none where it was not measured."""
    rates = (a.per_s for a in found.answers if isinstance(a, Rate) and a.what == what)
    return next(rates, None)


def _gpu_described(gpu: GpuSpec) -> str | GpuFile:
    rated = gpu.model_copy(update={"measured": None})
    try:
        if catalog.gpu(gpu.name) == rated:
            return gpu.name
    except SpecError:
        pass
    return GpuFile(
        name=gpu.name,
        memory_gib=gpu.memory_bytes / GIB,
        memory_bandwidth_gb_s=_figure(gpu.memory_bytes_per_s / GBPS),
        peak_tflops={p: _figure(rate / TFLOP) for p, rate in gpu.peak_flops.items()},
        matmul_efficiency=gpu.matmul_efficiency,
        host_link_gb_s=_figure(gpu.host_link_bytes_per_s / GBPS),
        power_w=gpu.power_w,
    )


def _link_described(link: LinkSpec) -> str | LinkFile:
    rated = link.model_copy(update={"measured": None})
    try:
        if catalog.link(link.name) == rated:
            return link.name
    except SpecError:
        pass
    return LinkFile(
        name=link.name,
        kind=link.kind,
        bandwidth_gb_s=_figure(link.bytes_per_s / GBPS),
        latency_us=_figure(link.latency_s * 1e6),
        efficiency=link.efficiency,
    )


def _figure(value: float) -> float:
    """A figure with four significant digits, as a person would write it."""
    return max(float(f"{value:.4g}"), 1e-9)
