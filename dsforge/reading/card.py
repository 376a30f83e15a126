"""Cluster card: what `dsforge probe` measured, as the `measured` section of a cluster file.

A card is a cluster file like any other. The description above the section stays what the machine is
rated at, so that a rate far below it shows, and without the section the plan is made on ratings
again. Each value names the hardware that it was measured on: where the card is used with another
accelerator or link, the value is left out, with a reason.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field

from dsforge.plan import Reason
from dsforge.specs import (
    FROZEN,
    Calibration,
    ClusterSpec,
    Collective,
    GpuSpec,
    LinkSpec,
    MeasuredGpu,
    MeasuredLink,
    Pace,
    Precision,
    Transport,
)
from dsforge.units import GBPS, TFLOP, gb_per_s, some, tflops

MAX_GB_S = 1_000_000


class PaceFile(BaseModel):
    """One kind of collective, measured."""

    model_config = FROZEN

    bus_gb_s: float = Field(
        gt=0, le=MAX_GB_S, description="Bus bandwidth, as nccl-tests defines it, bytes/s."
    )
    message_us: float = Field(
        gt=0, le=1e9, description="Latency of the smallest message, microseconds."
    )
    payload_mib: float | None = Field(
        default=None, gt=0, description="Largest payload that was measured, MiB."
    )


class MeasuredLinkFile(BaseModel):
    """Collectives between the ranks of one node, or of all nodes."""

    model_config = FROZEN

    link: str = Field(max_length=100, description="Name of the link that was measured.")
    nodes: int = Field(ge=1, le=100_000, description="Nodes of the measured group.")
    ranks: int = Field(ge=2, le=10_000_000, description="Ranks of the measured group.")
    transport: Transport | None = Field(default=None, description="Transport that NCCL used.")
    rdma_ports: int | None = Field(
        default=None, ge=0, le=1024, description="Active RDMA ports of a node."
    )
    all_reduce: PaceFile | None = Field(default=None, description="All-reduce among these ranks.")
    all_gather: PaceFile | None = Field(default=None, description="All-gather among these ranks.")
    reduce_scatter: PaceFile | None = Field(
        default=None, description="Reduce-scatter among these ranks."
    )
    all_to_all: PaceFile | None = Field(default=None, description="All-to-all among these ranks.")


class MeasuredGpuFile(BaseModel):
    """One accelerator, or one CPU rank, while all others were at work too."""

    model_config = FROZEN

    name: str = Field(max_length=100, description="Name of the accelerator that was measured.")
    tflops: dict[Precision, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default={}, description="Matrix products of the plan's sizes, TFLOP/s by precision."
    )
    memory_gb_s: float | None = Field(
        default=None,
        gt=0,
        le=MAX_GB_S,
        description="Rate of a copy in its memory, read and written.",
    )
    host_copy_gb_s: float | None = Field(
        default=None,
        gt=0,
        le=MAX_GB_S,
        description="Rate to or from the host, the slower direction.",
    )


class MeasuredFile(BaseModel):
    """What `dsforge probe` measured, how and when."""

    model_config = FROZEN

    taken: str = Field(default="", max_length=40, description="When it was measured, UTC.")
    how: str = Field(
        default="", max_length=400, description="Launcher, ranks and software that measured."
    )
    gpu: MeasuredGpuFile | None = Field(
        default=None, description="Rates of one accelerator while all others were busy."
    )
    intra_node: MeasuredLinkFile | None = Field(
        default=None, description="Collectives among the ranks of one node."
    )
    inter_node: MeasuredLinkFile | None = Field(
        default=None, description="Collectives among the ranks of all nodes."
    )
    cpu_adam_mparams_s: float | None = Field(
        default=None, gt=0, le=1e9, description="CPU Adam of one node, million parameters/s."
    )
    calibration: Calibration | None = Field(
        default=None, description="Factors that `dsforge calibrate` fitted on finished runs."
    )


class Carded(NamedTuple):
    """A cluster with measured values in it, and what was said about them."""

    cluster: ClusterSpec
    reasons: tuple[Reason, ...]


def carded(cluster: ClusterSpec, file: MeasuredFile | None) -> Carded:
    """The cluster with every value of its card that was measured on the hardware it names."""
    if file is None:
        return Carded(cluster, ())
    reasons: list[Reason] = []
    gpu = _gpu(cluster.gpu, file.gpu, reasons)
    intra_node = _link(cluster.intra_node, file.intra_node, reasons)
    inter_node = _link(cluster.inter_node, file.inter_node, reasons)
    adam = file.cpu_adam_mparams_s
    update = {
        "gpu": gpu,
        "intra_node": intra_node,
        "inter_node": inter_node,
        "cpu_adam_per_s": None if adam is None else adam * 1e6,
        "calibration": _calibration(cluster.gpu, file.calibration, reasons),
    }
    return Carded(cluster.model_copy(update=update), tuple(reasons))


def _gpu(gpu: GpuSpec, file: MeasuredGpuFile | None, reasons: list[Reason]) -> GpuSpec:
    """The accelerator with what was measured on one of its name."""
    if file is None:
        return gpu
    if file.name != gpu.name:
        reasons.append(_other("gpu", gpu.name, file.name))
        return gpu
    said = ", ".join(f"{name} {tflops(rate * TFLOP)}" for name, rate in file.tflops.items())
    if said:
        reasons.append(
            Reason(rule="card-gpu", message=f"matrix products as measured in the card: {said}")
        )
    measured = MeasuredGpu(
        flops={precision: rate * TFLOP for precision, rate in file.tflops.items()},
        memory_bytes_per_s=_scaled(file.memory_gb_s),
        host_copy_bytes_per_s=_scaled(file.host_copy_gb_s),
    )
    return gpu.model_copy(update={"measured": measured})


def _link(link: LinkSpec, file: MeasuredLinkFile | None, reasons: list[Reason]) -> LinkSpec:
    """The link with what was measured on one of its name."""
    if file is None:
        return link
    if file.link != link.name:
        reasons.append(_other("link", link.name, file.link))
        return link
    kinds: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    found = {kind: pace for kind in kinds if (pace := getattr(file, kind)) is not None}
    paces = {
        kind: Pace(bytes_per_s=pace.bus_gb_s * GBPS, message_s=pace.message_us / 1e6)
        for kind, pace in found.items()
    }
    said = ", ".join(f"{kind} {gb_per_s(pace.bytes_per_s)}" for kind, pace in paces.items())
    message = f"{link.name} as measured in the card: {said}; rated {gb_per_s(link.bytes_per_s)}"
    reasons.append(Reason(rule="card-link", message=message))
    measured = MeasuredLink(
        nodes=file.nodes,
        ranks=file.ranks,
        paces=paces,
        transport=file.transport,
        rdma_ports=file.rdma_ports,
    )
    return link.model_copy(update={"measured": measured})


def _calibration(
    gpu: GpuSpec, found: Calibration | None, reasons: list[Reason]
) -> Calibration | None:
    """The calibration where its runs were on this accelerator."""
    if found is None:
        return None
    if found.gpu != gpu.name:
        reasons.append(_other("calibration", gpu.name, found.gpu))
        return None
    message = (
        f"calibrated on {some(found.runs, 'finished run')}: compute x{found.compute:.3g}, waiting "
        f"x{found.waiting:.3g}, {found.memory_overhead_gib:+.2f} GiB on each rank"
    )
    reasons.append(Reason(rule="card-calibrated", message=message))
    return found


def _other(what: str, name: str, measured: str) -> Reason:
    message = f"the card was measured on {measured}; {name} uses its rated speed"
    return Reason(rule=f"card-other-{what}", message=message)


def _scaled(gb_s: float | None) -> float | None:
    return None if gb_s is None else gb_s * GBPS
