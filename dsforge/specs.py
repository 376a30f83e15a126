"""The three inputs of a plan: model, cluster, workload.

These are the resolved values: every choice is made, every name looked up, every quantity in its
base unit. What people write (GiB, names of cards and links, missing values) is read by
`reading.py` into them. They are frozen and travel inside `plan.json`, so a plan can be replayed
without the files it came from.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dsforge.rope import RopeScaling
from dsforge.slurm import SlurmSpec

# Schemas are built at first use: most commands need few of these types.
FROZEN = ConfigDict(frozen=True, extra="forbid", defer_build=True)

Kind = Literal["decoder", "encoder", "encoder-decoder"]
Norm = Literal["rmsnorm", "layernorm", "layernorm_no_bias", "layernorm_no_weights"]
Position = Literal["learned", "rope", "alibi", "relative"]
LinkKind = Literal["nvlink", "xgmi", "pcie", "fabric", "ethernet", "infiniband", "memory"]
Precision = Literal["bf16", "fp16", "fp32", "fp8"]
Optimizer = Literal["adamw", "lion", "sgd", "adafactor", "muon"]
Method = Literal["full", "lora"]
MethodName = Literal["full", "lora", "qlora"]  # qlora: lora with frozen matrices in 4 bits
FrozenBits = Literal[4, 16]
QLORA_BITS: FrozenBits = 4
DataShape = Literal["auto", "text", "prompt", "messages"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Transport = Literal["sockets", "rdma"]
LIBRARIES = {
    "RCCL": re.compile(r"mi\d", re.IGNORECASE),
    "HCCL": re.compile(r"gaudi", re.IGNORECASE),
}  # by card


class RouterSpec(BaseModel):
    """How tokens find their experts; no size tells."""

    model_config = FROZEN

    score: Literal["softmax", "sigmoid"] = Field(
        default="softmax", description="How the router turns logits into weights of experts."
    )
    normalized: bool = Field(default=True, description="Weights of the chosen experts add up to 1.")
    balance_bias: bool = Field(default=False, description="Balanced by a bias, without a loss.")
    scaling_factor: float = Field(default=1.0, gt=0, description="Of the chosen weights.")
    groups: int = Field(default=1, ge=1, description="Groups that the experts are divided into.")
    groups_per_token: int = Field(default=1, ge=1, description="Groups that one token may use.")


class MoeSpec(BaseModel):
    """The experts of a mixture-of-experts model."""

    model_config = FROZEN

    experts: int = Field(ge=1, description="Routed experts in each MoE layer.")
    experts_per_token: int = Field(ge=1, description="Routed experts that one token passes.")
    expert_ffn_hidden_size: int = Field(ge=1, description="Width of one routed expert.")
    shared_ffn_hidden_size: int = Field(default=0, ge=0, description="Width of the shared experts.")
    shared_gate: bool = Field(default=False, description="The shared expert has a gate vector.")
    first_dense_layers: int = Field(default=0, ge=0, description="Leading layers without experts.")
    layer_step: int = Field(default=1, ge=1, description="Every n-th layer is a MoE layer.")
    router_bias: bool = Field(default=False, description="The router has a bias per expert.")
    router: RouterSpec = Field(
        default=RouterSpec(), description="Scores, groups and balance of the router."
    )


class MlaSpec(BaseModel):
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values through low ranks."""

    model_config = FROZEN

    q_rank: int | None = Field(default=None, ge=1, description="Query rank; none: no compression.")
    kv_rank: int = Field(ge=1, description="Rank of the joint key and value latent.")
    nope_head_size: int = Field(ge=1, description="Part of a query/key head without rotation.")
    rope_head_size: int = Field(ge=1, description="Part of a query/key head with rotation.")
    v_head_size: int = Field(ge=1, description="Width of a value head.")


class ModelSpec(BaseModel):
    """The shape of a transformer; sizes are counts."""

    model_config = FROZEN

    name: str = Field(description="Catalog name, or the name of the file it was read from.")
    family: str = Field(default="", description="Family in the catalog, for people.")
    hub_id: str | None = Field(default=None, description="Hugging Face hub id.")
    path: str | None = Field(
        default=None, description="Folder or config.json that it was read from, absolute."
    )
    model_type: str | None = Field(description="`model_type` of its Hugging Face config.")
    kind: Kind = Field(default="decoder", description="Which halves of a transformer it has.")
    layers: int = Field(ge=1, description="Transformer layers (each half of an encoder-decoder).")
    hidden_size: int = Field(ge=1, description="Width of the residual stream.")
    ffn_hidden_size: int = Field(ge=1, description="Width of the MLP of a dense layer.")
    attention_heads: int = Field(ge=1, description="Query heads of one attention layer.")
    kv_heads: int = Field(ge=1, description="Key/value heads; fewer than heads means GQA or MQA.")
    head_size: int = Field(ge=1, description="Width of one attention head.")
    vocab_size: int = Field(ge=1, description="Rows of the word embedding.")
    max_position_embeddings: int = Field(
        ge=1, description="Longest sequence that it takes, tokens."
    )
    tied_embeddings: bool = Field(description="Output head and word embedding are one matrix.")
    activation: str = Field(default="silu", description="`hidden_act` of its config.")
    gated_mlp: bool = Field(description="Three matrices (gate, up, down) instead of two.")
    norm: Norm = Field(
        default="rmsnorm",
        description="Kind of the normalization layers, with the parameters they have.",
    )
    norms_per_layer: int = Field(
        default=2,
        ge=0,
        le=8,
        description="Normalization layers in one transformer layer, without `qk_norm`.",
    )
    norm_epsilon: float = Field(
        default=1e-5, gt=0, lt=1, description="Epsilon of the normalization layers."
    )
    embedding_norm: bool = Field(
        default=False, description="A normalization layer follows the embedding."
    )
    final_norm: bool = Field(
        default=True, description="A normalization layer precedes the output head."
    )
    qk_norm: Literal["head", "full"] | None = Field(
        default=None,
        description="Queries and keys are normalized, by head or in full; none: not.",
    )
    qkv_bias: bool = Field(
        default=False, description="The query, key and value projections have biases."
    )
    attention_out_bias: bool = Field(
        default=False, description="The output projection of attention has a bias."
    )
    mlp_bias: bool = Field(default=False, description="The projections of the MLP have biases.")
    lm_head_bias: bool = Field(default=False, description="The output head has a bias.")
    attention_sinks: bool = Field(
        default=False,
        description="Each head has a learned logit that takes attention away (GPT-OSS).",
    )
    parallel_residual: bool = Field(
        default=False, description="Attention and MLP read the same input and are added together."
    )
    position: Position = Field(default="rope", description="How positions enter the model.")
    position_offset: int = Field(default=0, ge=0, description="Extra rows of learned positions.")
    rope_theta: float = Field(default=10000.0, gt=0, description="Base of the rotary frequencies.")
    partial_rotary_factor: float = Field(
        default=1.0, gt=0, le=1, description="Share of a head that is rotated."
    )
    rope_scaling: RopeScaling | None = Field(
        default=None, description="How rotary frequencies are stretched; none: not."
    )
    rotary_interleaved: bool = Field(default=False, description="Pairs of neighbours are rotated.")
    no_rope_interval: int | None = Field(
        default=None, ge=1, description="Every n-th layer is without rotary embedding."
    )
    forward_extras: tuple[str, ...] = Field(
        default=(), description="What its forward pass does that no size and no other field tells."
    )
    embedding_size: int = Field(ge=1, description="Width of the word embedding.")
    sliding_window: int | None = Field(
        default=None, ge=1, description="Tokens that windowed attention looks back; none: all."
    )
    sliding_window_pattern: int | None = Field(
        default=None, ge=1, description="Every n-th layer attends globally; none: all windowed."
    )
    type_vocab_size: int = Field(default=0, ge=0, description="Rows of BERT's segment embedding.")
    pooler: bool = Field(default=False, description="A dense layer pools the first token (BERT).")
    relative_attention_buckets: int = Field(
        default=0, ge=0, description="Buckets of T5's relative positions."
    )
    moe: MoeSpec | None = Field(default=None, description="Experts; none: every layer is dense.")
    mla: MlaSpec | None = Field(default=None, description="Latent attention; none: ordinary heads.")

    def is_moe_layer(self, layer: int) -> bool:
        """Whether the layer, counted from 0, has experts."""
        if self.moe is None or layer < self.moe.first_dense_layers:
            return False
        return (layer + 1) % self.moe.layer_step == 0

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return sum(self.is_moe_layer(layer) for layer in range(self.layers))


class MeasuredGpu(BaseModel):
    """What `dsforge probe` measured while every accelerator worked; it replaces the ratings."""

    model_config = FROZEN

    flops: dict[Precision, float] = Field(description="Best large product, FLOP/s, by precision.")
    memory_bytes_per_s: float | None = Field(
        default=None, gt=0, description="Bytes/s of a copy in device memory, read and written."
    )
    host_copy_bytes_per_s: float | None = Field(
        default=None, gt=0, description="To or from the host, the slower way."
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
        return self.kind in ("infiniband", "nvlink", "xgmi", "fabric")


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

    path: str = Field(description="Absolute folder on each node.")
    size_bytes: int = Field(ge=1, description="Free space for the job.")
    read_bytes_per_s: float = Field(
        gt=0, description="Sequential read of one node's disk, bytes/s."
    )
    write_bytes_per_s: float = Field(
        gt=0, description="Sequential write of one node's disk, bytes/s."
    )


class ClusterSpec(BaseModel):
    """Equal nodes. Where real ones differ, this is the weakest, and reading says what it costs."""

    model_config = FROZEN

    name: str = Field(default="", description="Name of the cluster, for people.")
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
    ssh_port: int = Field(default=22, ge=1, le=65535, description="Port of ssh on every node.")
    slurm: SlurmSpec | None = Field(
        default=None, description="Account, partition and time limit of the Slurm job."
    )
    nvme: NvmeSpec | None = Field(
        default=None, description="Disk of every node for offload; none: there is none."
    )
    cpu_adam_per_s: float | None = Field(
        default=None, gt=0, description="Parameters/s of one node's CPU Adam, from a cluster card."
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


class LoraSpec(BaseModel):
    """Low-rank adapters on the attention and MLP matrices."""

    model_config = FROZEN

    rank: int = Field(
        default=16,
        ge=1,
        le=4096,
        description="Rank of the adapters: width between their two matrices.",
    )
    alpha: float = Field(
        default=32.0, gt=0, description="Scale of the adapters, multiplied by 1 / rank."
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the adapters' inputs that is dropped in training.",
    )
    bits: FrozenBits = Field(
        default=16, description="Of the frozen matrices; 4: QLoRA, in nf4 through bitsandbytes."
    )


class DataSpec(BaseModel):
    """Where the samples are and what shape they have."""

    model_config = FROZEN

    train: str = Field(description="JSONL or Parquet file.")
    validation: str | None = Field(default=None, description="JSONL or Parquet file.")
    validation_fraction: float = Field(
        default=0.0, ge=0, lt=1, description="Share of `train` held out where `validation` is none."
    )
    shape: DataShape = Field(default="auto", description="`prompt`: prompt and completion.")


class Workload(BaseModel):
    """What is to be computed, independent of where."""

    model_config = FROZEN

    sequence_length: int = Field(ge=1, description="Tokens per sample.")
    global_batch_size: int = Field(ge=1, description="Samples per optimizer step.")
    precision: Precision = Field(
        default="bf16", description="Type of weights and activations in forward and backward."
    )
    optimizer: Optimizer = Field(
        default="adamw", description="Optimizer that updates the trained weights."
    )
    learning_rate: float = Field(gt=0, lt=10, description="Peak learning rate of the schedule.")
    weight_decay: float = Field(
        default=0.0, ge=0, lt=1, description="Decoupled weight decay of the optimizer."
    )
    gradient_clipping: float = Field(default=1.0, ge=0, description="Largest norm; 0: none.")
    method: Method = Field(
        default="full", description="Which weights train: all of them, or adapters."
    )
    lora: LoraSpec | None = Field(
        default=None, description="Adapters, with method `lora`; none: all weights train."
    )
    tokens: int | None = Field(default=None, ge=1, description="Training tokens of the whole run.")
    epochs: float | None = Field(default=None, gt=0, description="Passes over the data.")
    samples: int | None = Field(
        default=None, ge=1, description="Training rows of the data, where epochs ask for them."
    )
    data: DataSpec | None = Field(
        default=None, description="Samples to train on; none: they are named later."
    )
    seed: int = Field(default=42, ge=0, description="Seed of weights, adapters and data order.")

    @property
    def in_4_bits(self) -> bool:
        """Whether the frozen matrices lie in 4 bits (QLoRA)."""
        return self.method == "lora" and self.lora is not None and self.lora.bits == QLORA_BITS

    @property
    def method_name(self) -> MethodName:
        """What people call the method: full, lora or qlora."""
        return "qlora" if self.in_4_bits else self.method

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequence_length * self.global_batch_size

    @property
    def steps(self) -> int | None:
        """Optimizer steps for the token budget; none where there is no budget."""
        return None if self.tokens is None else max(1, round(self.tokens / self.tokens_per_step))
