"""The shapes of the files that people write; their keys carry units.

They are the contract with editors too: `schemas/` holds their JSON schemas. A value that is not
given is `None` and is chosen, with a reason, where the file is read.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, Tag

from dsforge.hostfile import MAX_SLOTS
from dsforge.reading.card import MAX_GB_S, MeasuredFile
from dsforge.reading.file_values import NAME_OR_MAPPING, Count, Length, Limit, Word
from dsforge.specs import (
    FROZEN,
    DataSpec,
    LinkKind,
    LoraSpec,
    MethodName,
    Optimizer,
    Precision,
    Preference,
    Reference,
    VisionTraining,
)
from dsforge.strategy import Constraints

MAX_NODES = 100_000
MAX_GROUPS = 8
MAX_TOKENS = 10**18
MAX_SEQUENCE = 100_000_000
MAX_BATCH = 10_000_000
MAX_GIB = 10_000_000
MAX_SELECTION = 100_000  # characters of `include`: ten thousand hosts


class GpuFile(BaseModel):
    """An accelerator that the catalog does not have."""

    model_config = FROZEN

    name: str = Field(
        min_length=1, max_length=100, description="Name of the card in plans and reports."
    )
    memory_gib: float = Field(gt=0, le=MAX_GIB, description="Memory a process can allocate, GiB.")
    memory_bandwidth_gb_s: float = Field(
        gt=0, le=MAX_GB_S, description="Memory bandwidth, GB/s (base 10)."
    )
    peak_tflops: dict[Precision, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        min_length=1, description="Dense TFLOP/s by precision, e.g. {bf16: 312, fp32: 19.5}."
    )
    matmul_efficiency: float = Field(
        default=0.8, gt=0, le=1, description="Share of the peak that large matrix products reach."
    )
    host_link_gb_s: float = Field(
        default=31.5, gt=0, le=MAX_GB_S, description="PCIe to the host, one way, GB/s (base 10)."
    )
    power_w: int | None = Field(
        default=None, ge=1, le=100_000, description="Board power of one accelerator, W."
    )


class LinkFile(BaseModel):
    """A link that the catalog does not have."""

    model_config = FROZEN

    name: str = Field(
        min_length=1, max_length=100, description="Name of the link in plans and reports."
    )
    kind: LinkKind = Field(description="Technology of the link.")
    bandwidth_gb_s: float = Field(
        gt=0,
        le=MAX_GB_S,
        description="Bandwidth per accelerator or adapter, one direction, GB/s (base 10).",
    )
    latency_us: float = Field(
        gt=0, le=1e6, description="Latency of one small message, microseconds."
    )
    efficiency: float = Field(
        default=0.8, gt=0, le=1, description="Share of the bandwidth that collectives reach."
    )


class HostFile(BaseModel):
    """A machine of the cluster."""

    model_config = FROZEN

    address: str = Field(description="IP address of the machine.")
    slots: int = Field(ge=1, le=MAX_SLOTS, description="Accelerators that the job may use there.")


class SlurmFile(BaseModel):
    """What sbatch is told beside the size of the job."""

    model_config = FROZEN

    account: Word = Field(
        default=None, max_length=100, description="Slurm account (`sbatch --account`)."
    )
    partition: Word = Field(
        default=None,
        max_length=200,
        description="Slurm partition (`--partition`): one name, or a,b.",
    )
    time: Limit = Field(
        default=None, max_length=20, description="Slurm time limit (`--time`): minutes, or D-H:M:S."
    )


class NvmeFile(BaseModel):
    """A local disk for ZeRO-Infinity, the same on every node."""

    model_config = FROZEN

    path: str = Field(
        pattern=r"^/[A-Za-z0-9_./-]*$",
        max_length=200,
        description="Absolute path of the folder for offload on each node.",
    )
    size_gib: float | None = Field(
        default=None, gt=0, le=MAX_GIB, description="Free space for the job, GiB."
    )
    read_gb_s: float | None = Field(
        default=None, gt=0, le=MAX_GB_S, description="Sequential read of one node's disk, GB/s."
    )
    write_gb_s: float | None = Field(
        default=None, gt=0, le=MAX_GB_S, description="Sequential write of one node's disk, GB/s."
    )


def _one_card(value: Any) -> Any:
    """The value. Raises ValueError for a list of cards, with the way to say that hosts differ."""
    if isinstance(value, list | tuple):
        raise ValueError(  # noqa: TRY004 - pydantic reports it beside the others
            "must be one card; list hosts with other cards as `groups: [{gpu: h100-80gb, nodes: 2, "
            "gpus_per_node: 8}, {gpu: a100-80gb, nodes: 2, gpus_per_node: 8}]`, and for different "
            "cards in one host name the weakest"
        )
    return value


Gpu = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[GpuFile, Tag("<mapping>")],
    NAME_OR_MAPPING,
    BeforeValidator(_one_card),
]
Link = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[LinkFile, Tag("<mapping>")], NAME_OR_MAPPING
]


class GroupFile(BaseModel):
    """Equal hosts of a cluster whose hosts differ. What it leaves out is that of the cluster."""

    model_config = FROZEN

    gpu: Gpu | None = Field(
        default=None, description="Catalog name, or the data of another accelerator."
    )
    nodes: int | None = Field(
        default=None, ge=1, le=MAX_NODES, description="Machines of the group."
    )
    gpus_per_node: int | None = Field(
        default=None, ge=1, le=MAX_SLOTS, description="Accelerators used on each."
    )
    hosts: tuple[HostFile, ...] = Field(
        default=(), max_length=MAX_NODES, description="Hosts by address, each with its slots."
    )
    intra_node: Link | None = Field(default=None, description="Link inside a node: nvlink-4.")
    inter_node: Link | None = Field(default=None, description="One network adapter: 100gbe.")
    nics_per_node: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Network adapters per node used for training (default: 1).",
    )
    nvlink_domain_size: int | None = Field(
        default=None, ge=1, le=MAX_NODES, description="Accelerators per NVLink domain."
    )
    host_memory_gib: float | None = Field(
        default=None, gt=0, le=MAX_GIB, description="RAM of one node, GiB."
    )
    cpu_cores: int | None = Field(
        default=None, ge=1, le=100_000, description="CPU cores of one node."
    )


class ClusterFile(BaseModel):
    """A cluster; `dsforge detect` writes one for the present machine."""

    model_config = FROZEN

    name: str = Field(
        default="", max_length=100, description="Name of the cluster, shown in reports."
    )
    nodes: int | None = Field(
        default=None, ge=1, le=MAX_NODES, description="Machines of the cluster."
    )
    gpus_per_node: int | None = Field(
        default=None, ge=1, le=MAX_SLOTS, description="Accelerators used on each."
    )
    hosts: tuple[HostFile, ...] = Field(
        default=(), max_length=MAX_NODES, description="Hosts by address, each with its slots."
    )
    groups: tuple[GroupFile, ...] = Field(
        default=(), max_length=MAX_GROUPS, description="Groups of equal hosts, if hosts differ."
    )
    gpu: Gpu | None = Field(
        default=None, description="Catalog name, or the data of another accelerator."
    )
    intra_node: Link | None = Field(default=None, description="Link inside a node: nvlink-4.")
    inter_node: Link | None = Field(default=None, description="One network adapter: 100gbe.")
    nics_per_node: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Network adapters per node used for training (default: 1).",
    )
    nvlink_domain_size: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NODES,
        description="Accelerators per NVLink domain, across nodes: 72 in an NVL72 rack.",
    )
    interface: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$",
        description="Network interface of every node, e.g. eth0.",
    )
    ssh_user: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9._-]{0,31}$",
        description="SSH user (default: the current user).",
    )
    ssh_port: int = Field(default=22, ge=1, le=65535, description="SSH port of every node.")
    slurm: SlurmFile | None = Field(default=None, description="Account, partition, time limit.")
    include: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_SELECTION,
        description="Hosts and slots to use, in DeepSpeed syntax: 10.0.0.1@10.0.0.2:0,1.",
    )
    exclude: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_SELECTION,
        description="Hosts and slots to leave out: 10.0.0.3@10.0.0.4:7.",
    )
    host_memory_gib: float | None = Field(
        default=None, gt=0, le=MAX_GIB, description="RAM of one node, GiB."
    )
    cpu_cores: int | None = Field(
        default=None, ge=1, le=100_000, description="CPU cores of one node."
    )
    nvme: NvmeFile | None = Field(default=None, description="Disk for NVMe offload.")
    measured: MeasuredFile | None = Field(
        default=None, description="Rates measured by `dsforge probe`; they replace rated values."
    )
    gpu_hour_price: float | None = Field(
        default=None, gt=0, le=1e6, description="Price per GPU-hour, in any currency."
    )


class WorkloadFile(BaseModel):
    """Batch, sequence length, precision and method of the training."""

    model_config = FROZEN

    sequence_length: Length | None = Field(
        default=None, ge=1, le=MAX_SEQUENCE, description="Tokens per sample; 8k is 8192."
    )
    global_batch_size: Length | None = Field(
        default=None, ge=1, le=MAX_BATCH, description="Samples per optimizer step; 1k is 1024."
    )
    global_batch_tokens: Count | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="Tokens per optimizer step, instead."
    )
    tokens: Count | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="Training tokens of the run, e.g. 2b."
    )
    epochs: float | None = Field(
        default=None, gt=0, le=1e6, description="Passes over the data, instead of `tokens`."
    )
    precision: Precision | None = Field(
        default=None,
        description="Type of weights and activations; none: bf16 where the card has it.",
    )
    optimizer: Optimizer | None = Field(
        default=None, description="Optimizer that updates the trained weights; none: adamw."
    )
    learning_rate: float | None = Field(
        default=None, gt=0, lt=10, description="Peak learning rate; none: that of published runs."
    )
    weight_decay: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Decoupled weight decay; none: 0.1 from scratch, else 0.",
    )
    gradient_clipping: float = Field(
        default=1.0, ge=0, le=1e6, description="Largest norm of the gradients; 0: none."
    )
    method: MethodName | None = Field(
        default=None,
        description="qlora: adapters on quantised matrices, nf4 unless `lora.base` says else.",
    )
    lora: LoraSpec | None = Field(
        default=None, description="Adapters, with `method: lora` or `qlora`."
    )
    preference: Preference | None = Field(
        default=None,
        description="Pairs of a chosen and a rejected sequence: `dpo` with a frozen reference "
        "model, `orpo` (also SimPO, CPO) without one, `reward` for a score in place of the output "
        "head. Priced as of other trainers; none: next-token loss.",
    )
    reference: Reference | None = Field(
        default=None,
        description="Reference of `dpo`: `model`, `adapters_off` (LoRA) or `precomputed`.",
    )
    image_tokens: Length = Field(
        default=0,
        ge=0,
        le=MAX_SEQUENCE,
        description="Tokens of a sample that come from images, of models with a vision tower.",
    )
    vision_training: VisionTraining = Field(
        default="frozen",
        description="What trains of a vision tower: nothing, its `projector`, or `all` of both.",
    )
    document_length: Length | None = Field(
        default=None,
        ge=1,
        le=MAX_SEQUENCE,
        description="Tokens of a document in a packed sample, to which attention is confined.",
    )
    data: DataSpec | None = Field(default=None, description="Samples to train on.")
    seed: int = Field(
        default=42, ge=0, lt=2**32, description="Seed of weights, adapters and data order."
    )


class SpecFile(BaseModel):
    """Everything in one file. Paths in it are relative to its folder."""

    model_config = FROZEN

    model: str | None = Field(
        default=None, min_length=1, description="Catalog name, hub id, folder, config.json, 7b."
    )
    cluster: (
        Annotated[
            Annotated[str, Tag("<text>")] | Annotated[ClusterFile, Tag("<mapping>")],
            NAME_OR_MAPPING,
        ]
        | None
    ) = Field(default=None, description="Path of a cluster file, or the cluster itself.")
    workload: (
        Annotated[
            Annotated[str, Tag("<text>")] | Annotated[WorkloadFile, Tag("<mapping>")],
            NAME_OR_MAPPING,
        ]
        | None
    ) = Field(default=None, description="Path of a workload file, or the workload itself.")
    strategy: Constraints = Field(
        default=Constraints(), description="Fixed settings; the others are chosen."
    )
