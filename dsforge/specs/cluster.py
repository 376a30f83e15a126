"""Where it is computed: accelerators, links, disks, and the nodes that have them."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, Field

from dsforge.specs.frozen import FROZEN
from dsforge.specs.workload import Precision
from dsforge.units import GIB

LinkKind = Literal["nvlink", "xgmi", "pcie", "fabric", "ethernet", "infiniband", "memory"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Transport = Literal["sockets", "rdma"]
FABRICS: tuple[LinkKind, ...] = ("nvlink", "xgmi", "fabric")
LIBRARIES = {
    "RCCL": re.compile(r"mi\d", re.IGNORECASE),
    "HCCL": re.compile(r"gaudi", re.IGNORECASE),
}  # by card


SLURM_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.,+@-]*$"
# The formats of `man sbatch`, `--time`.
SLURM_TIME = r"^([0-9]+(:[0-9]{1,2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}|UNLIMITED)$"


class MeasuredGpu(BaseModel):
    """What `dsforge probe` measured while every accelerator worked; it replaces the ratings."""

    model_config = FROZEN

    flops: dict[Precision, float] = Field(description="Best large product, FLOP/s, by precision.")
    memory_bytes_per_s: float | None = Field(
        default=None, gt=0, description="Bytes/s of a copy in device memory, read and written."
    )
    host_copy_bytes_per_s: float | None = Field(
        default=None, gt=0, description="Rate to or from the host, the slower direction."
    )


class GpuSpec(BaseModel):
    """One accelerator, or one CPU rank on a machine without any."""

    model_config = FROZEN

    name: str = Field(description="Catalog name, or the name that a cluster file gives it.")
    memory_bytes: int = Field(ge=1, description="Memory that a process can allocate, bytes.")
    memory_bytes_per_s: float = Field(gt=0, description="Memory bandwidth, bytes/s.")
    peak_flops: dict[Precision, float] = Field(description="Dense peak, FLOP/s, by precision.")
    matmul_efficiency: float = Field(
        gt=0, le=1, description="Largest share of the peak that any matrix product reached."
    )
    host_link_bytes_per_s: float = Field(gt=0, description="PCIe or C2C to the host, one way.")
    power_w: int | None = Field(
        default=None, ge=1, description="Board power of one accelerator, W."
    )
    source: str = Field(default="", description="Where the figures come from.")
    measured: MeasuredGpu | None = Field(default=None, description="From a cluster card.")

    @property
    def is_cpu(self) -> bool:
        """Whether ranks run on the CPU (gloo, no accelerator)."""
        return self.name == "cpu"

    @property
    def emulates_bf16(self) -> bool:
        """Whether torch computes bf16 in float32 here, at a rate that is known.

        torch/cuda/__init__.py, `is_bf16_supported(including_emulation=True)`.
        """
        return not self.is_cpu and "bf16" not in self.peak_flops and "fp32" in self.peak_flops

    @property
    def is_slower_in_bf16(self) -> bool:
        """Whether it is a CPU without instructions for bf16, which fp32 outruns."""
        return self.is_cpu and self.peak_flops.get("bf16", 0) < self.peak_flops.get("fp32", 0)

    @property
    def is_gaudi(self) -> bool:
        """Whether it is Intel's Gaudi: DeepSpeed's `hpu` accelerator, without CUDA."""
        return self.collectives == "HCCL"

    @property
    def collectives(self) -> str:
        """The library of its collectives; ranks under different ones do not hear each other."""
        if self.is_cpu:
            return "gloo"
        return next((name for name, card in LIBRARIES.items() if card.match(self.name)), "NCCL")


class Pace(BaseModel):
    """Measured seconds of one kind of collective as a line: a message, and its bytes."""

    model_config = FROZEN

    bytes_per_s: float = Field(gt=0, description="Bus bandwidth (nccl-tests) of one rank.")
    message_s: float = Field(gt=0, description="Seconds of the smallest message.")


class MeasuredLink(BaseModel):
    """What `dsforge probe` measured between the ranks of one node, or of all nodes."""

    model_config = FROZEN

    nodes: int = Field(ge=1, description="Nodes of the measured group.")
    ranks: int = Field(ge=2, description="Ranks of the measured group, all of them on each node.")
    paces: dict[Collective, Pace] = Field(description="By kind of collective.")
    transport: Transport | None = Field(default=None, description="None: nothing said so.")
    rdma_ports: int | None = Field(default=None, ge=0, description="Active ones of a node.")


class LinkSpec(BaseModel):
    """A link between two accelerators, or the network adapter of a node."""

    model_config = FROZEN

    name: str = Field(description="Catalog name, or the name that a cluster file gives it.")
    kind: LinkKind = Field(description="Technology of the link.")
    bytes_per_s: float = Field(gt=0, description="One way: per accelerator, or per adapter.")
    latency_s: float = Field(gt=0, description="Seconds of one small message.")
    efficiency: float = Field(gt=0, le=1, description="Share of the rate that collectives reach.")
    source: str = Field(default="", description="Where the figures come from.")
    measured: MeasuredLink | None = Field(default=None, description="From a cluster card.")

    @property
    def is_rdma(self) -> bool:
        """Whether NCCL uses it without sockets."""
        return self.kind in ("infiniband", *FABRICS)

    @property
    def is_fabric(self) -> bool:
        """Whether it joins cards as in servers of data centres, eight to a node."""
        return self.kind in FABRICS


class Host(BaseModel):
    """A machine of the hostfile: address (an IP address where it was resolved) and slots."""

    model_config = FROZEN

    address: str = Field(description="IP address, or a host name that was not resolved.")
    slots: int = Field(ge=1, description="Accelerators that the job may use there.")
    devices: tuple[int, ...] = Field(
        default=(), description="Indices of these accelerators; empty: the first ones."
    )

    @property
    def listed_slots(self) -> int:
        """`slots=` of its line in a hostfile, where DeepSpeed counts devices from 0."""
        return max(self.devices) + 1 if self.devices else self.slots

    def narrowed(self, slots: int) -> Host:
        """The same machine with its first `slots` accelerators only."""
        return Host(address=self.address, slots=slots, devices=self.devices[:slots])


class NvmeSpec(BaseModel):
    """A local disk for ZeRO-Infinity, the same on every node."""

    model_config = FROZEN

    path: str = Field(description="Absolute path of the folder for offload on each node.")
    size_bytes: int = Field(ge=1, description="Free space for the job.")
    read_bytes_per_s: float = Field(
        gt=0, description="Sequential read of one node's disk, bytes/s."
    )
    write_bytes_per_s: float = Field(
        gt=0, description="Sequential write of one node's disk, bytes/s."
    )


# Disks of which nothing is known but where they are: free space, and half the rates of a data
# sheet, which are those of an empty disk that is cool. Of a server Samsung PM9A3 3.84 TB (PCIe 4:
# 6.8 and 4.0 GB/s), else Samsung 960 Pro 2 TB (PCIe 3: 3.5 and 2.1 GB/s).
SERVER_DISK = NvmeSpec(
    path="/nvme", size_bytes=3576 * GIB, read_bytes_per_s=3.4e9, write_bytes_per_s=2.0e9
)
PLAIN_DISK = NvmeSpec(
    path="/nvme", size_bytes=1862 * GIB, read_bytes_per_s=1.75e9, write_bytes_per_s=1.05e9
)


def usual_disk(intra_node: LinkSpec) -> NvmeSpec:
    """The least disk that nodes have whose cards are joined in this way."""
    return SERVER_DISK if intra_node.is_fabric else PLAIN_DISK


class SlurmSpec(BaseModel):
    """What sbatch is told beside the size of the job; none: the default of the cluster.

    The values become `#SBATCH` lines of a script: each is a word that no shell reads otherwise.
    """

    model_config = FROZEN

    account: str | None = Field(
        default=None,
        pattern=SLURM_NAME,
        max_length=100,
        description="Slurm account (`sbatch --account`).",
    )
    partition: str | None = Field(
        default=None,
        pattern=SLURM_NAME,
        max_length=200,
        description="Slurm partition (`--partition`): one name, or a,b.",
    )
    time: str | None = Field(
        default=None,
        pattern=SLURM_TIME,
        max_length=20,
        description="`--time`, the limit: minutes, H:M:S, or D-H:M:S.",
    )


class Calibration(BaseModel):
    """What finished runs say of predictions on a cluster: `dsforge calibrate` fits it."""

    model_config = FROZEN

    gpu: str = Field(max_length=100, description="Name of the accelerator that the runs were on.")
    runs: int = Field(ge=1, le=100_000, description="Runs that the factors were fitted on.")
    compute: float = Field(
        ge=0.1, le=10, description="Seconds of compute, optimizer and bubble over the predicted."
    )
    waiting: float = Field(
        ge=0.1, le=10, description="Seconds on links, host copies and disks over the predicted."
    )
    step_error: float = Field(
        gt=0, le=2, description="Half of a step's 80 % interval around its likely value, log."
    )
    memory_overhead_gib: float = Field(
        default=0.0, ge=-1000, le=1000, description="Allocated on a rank beyond the predicted, GiB."
    )


class ClusterSpec(BaseModel):
    """Equal nodes. Where real ones differ, this is the weakest, and reading says what it costs."""

    model_config = FROZEN

    name: str = Field(default="", description="Name of the cluster, shown in reports.")
    nodes: int = Field(ge=1, description="Machines of the cluster.")
    gpus_per_node: int = Field(ge=1, description="Accelerators used on each node.")
    gpu: GpuSpec = Field(description="Accelerator of every node.")
    intra_node: LinkSpec = Field(description="Between accelerators of one node.")
    inter_node: LinkSpec = Field(description="One network adapter of a node.")
    nics_per_node: int = Field(default=1, ge=1, description="Adapters that carry training traffic.")
    nvlink_domain_nodes: int = Field(
        default=1, ge=1, description="Nodes of one NVLink domain, which `intra_node` joins, too."
    )
    host_memory_bytes: int = Field(ge=1, description="RAM of one node, cgroup limit applied.")
    cpu_cores: int = Field(ge=1, description="CPU cores of one node.")
    hosts: tuple[Host, ...] = Field(default=(), description="Empty where addresses are unknown.")
    interface: str | None = Field(default=None, description="Network interface, e.g. eth0.")
    ssh_user: str | None = Field(
        default=None, description="User of ssh on every node; none: the same as here."
    )
    ssh_port: int = Field(default=22, ge=1, le=65535, description="SSH port of every node.")
    slurm: SlurmSpec | None = Field(
        default=None, description="Account, partition and time limit of the Slurm job."
    )
    nvme: NvmeSpec | None = Field(
        default=None, description="Disk of every node for offload; none: there is none."
    )
    cpu_adam_per_s: float | None = Field(
        default=None, gt=0, description="Parameters/s of one node's CPU Adam, from a cluster card."
    )
    calibration: Calibration | None = Field(
        default=None, description="Factors fitted on finished runs; none: nobody calibrated."
    )
    gpu_hour_price: float | None = Field(
        default=None, gt=0, description="Of one accelerator for an hour, in any one currency."
    )

    @property
    def gpus(self) -> int:
        """Accelerators of the whole cluster."""
        return self.nodes * self.gpus_per_node

    @property
    def nvlink_domains(self) -> int:
        """Parts of the cluster that only the network joins: nodes, or NVLink domains."""
        return -(-self.nodes // self.nvlink_domain_nodes)

    @property
    def nvlink_domain_gpus(self) -> int:
        """Accelerators that `intra_node` joins: those of a node, or of an NVLink domain."""
        return self.gpus_per_node * min(self.nodes, self.nvlink_domain_nodes)

    @property
    def cpu_cores_per_rank(self) -> int:
        """CPU cores that each rank of a node can have for itself, at least one."""
        return max(1, self.cpu_cores // self.gpus_per_node)

    @property
    def inter_node_bytes_per_s(self) -> float:
        """Bytes/s that one node can send to the others, all adapters together."""
        return self.inter_node.bytes_per_s * self.nics_per_node
