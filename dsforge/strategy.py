"""Strategy: the decision. Everything that a person may choose once the inputs stand."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from dsforge.layout import Layout
from dsforge.specs import FROZEN

BackEnd = Literal["deepspeed", "megatron"]
ZeroStage = Literal[0, 1, 2, 3]
GRADIENTS_SHARDED: ZeroStage = 2  # and optimizer state
FULLY_SHARDED: ZeroStage = 3  # and parameters
Offload = Literal["none", "cpu", "nvme"]
Recompute = Literal["none", "selective", "full"]
Trainer = Literal["deepspeed", "megatron", "nanotron", "fsdp", "torchtune"]
Kernels = Literal["eager", "fused", "compiled", "nanotron"]
GatheredInputs = Literal["saved", "gathered_again"]
BucketSizes = Literal["sized", "engine"]
Loss = Literal["plain", "softmax", "chunked_output", "chunked", "fused"]
AskedLoss = Literal["plain", "chunked"]


class Buckets(BaseModel):
    """Sizes of ZeRO's buffers in elements, sized to the model, the stage and the link."""

    model_config = FROZEN

    reduce_bucket_size: int = Field(
        ge=1, description="`reduce_bucket_size`: gradients reduced at once, elements."
    )
    allgather_bucket_size: int = Field(
        ge=1, description="`allgather_bucket_size`: weights gathered at once, elements."
    )
    prefetch_bucket_size: int = Field(
        ge=0, description="`stage3_prefetch_bucket_size`: weights gathered ahead, elements."
    )
    persistence_threshold: int = Field(
        ge=0,
        description="`stage3_param_persistence_threshold`: smaller weights stay gathered.",
    )
    max_live_parameters: int = Field(
        ge=1, description="`stage3_max_live_parameters`: most gathered weights, elements."
    )
    max_reuse_distance: int = Field(
        ge=0,
        description="`stage3_max_reuse_distance`: weights used again that soon stay, elements.",
    )
    sub_group_size: int = Field(ge=1, description="`sub_group_size`: one tile of the step.")
    overlap_comm: bool = Field(description="Second reduce bucket, reduction beside backward.")


class Execution(BaseModel):
    """How the training software runs a layer and keeps its states: what no size tells."""

    model_config = FROZEN

    trainer: Trainer = Field(description="Whose gradient buffers, shards and schedule are used.")
    kernels: Kernels = Field(
        default="eager", description="Whose layers: plain modules, fused ones, torch.compile."
    )
    attention: Literal["flash", "eager"] = Field(
        default="flash", description="`eager` keeps the scores of all pairs of tokens."
    )
    dropout: bool = Field(default=False, description="Masks of dropout are kept for backward.")
    gathered_inputs: GatheredInputs = Field(
        default="gathered_again",
        description="What sequence parallelism does with the whole input of a matrix.",
    )
    loss: Loss | None = Field(
        default=None,
        description="`plain`: whole logits; `softmax`: a fused kernel that keeps it; "
        "`chunked_output`: logits in pieces (torchtune); `chunked`: the head and the loss of some "
        "tokens at a time (dsforge train); `fused`: the same in one kernel (Liger). None: chunked "
        "where dsforge train can, else plain.",
    )
    gradients: Literal["compute", "fp32"] = Field(
        default="compute", description="Type in which gradients of micro batches are summed."
    )
    reduced: Literal["compute", "fp32"] = Field(
        default="compute", description="Type in which DeepSpeed sends gradients."
    )
    master_weights: bool = Field(default=True, description="The optimizer keeps fp32 weights.")
    moments: Literal["fp32", "bf16", "int8"] = Field(
        default="fp32", description="Type of the optimizer's moments."
    )
    fused_backward: bool = Field(
        default=False, description="Each weight is stepped in backward; gradients are not kept."
    )
    offload_activations: bool = Field(default=False, description="Checkpoints wait in RAM.")
    overlaps_tensor: bool = Field(
        default=False, description="Tensor-parallel collectives run beside the products."
    )
    deterministic: bool = Field(default=False, description="Same bits every run, slower kernels.")
    buckets: BucketSizes | Buckets = Field(
        default="sized", description="ZeRO's buffers as dsforge sizes them, defaults, or as given."
    )
    quantized_weights: bool = Field(
        default=False, description="ZeRO-3 gathers weights in 8 bits (ZeRO++, qwZ)."
    )
    quantized_gradients: bool = Field(
        default=False, description="ZeRO-3 scatters gradients in 4 bits (ZeRO++, qgZ)."
    )
    offload_ratio: float = Field(
        default=1.0, ge=0, le=1, description="Share of ZeRO-3's optimizer that runs on the CPU."
    )
    shard_group: int | None = Field(
        default=None, ge=1, description="Ranks that share states; none: all of data x context."
    )


EXECUTIONS: dict[BackEnd, Execution] = {
    "deepspeed": Execution.model_construct(trainer="deepspeed"),
    "megatron": Execution.model_construct(trainer="megatron", kernels="fused", gradients="fp32"),
}


class Batching(NamedTuple):
    """How a global batch passes through one family of strategies."""

    micro_batch_size: int  # samples per data-parallel rank and forward
    steps: int  # micro batches per optimizer step
    virtual_stages: int = 1


class Strategy(BaseModel):
    """One way to run the workload on the cluster."""

    model_config = FROZEN

    back_end: BackEnd = Field(
        default="deepspeed", description="Engine that trains: DeepSpeed or Megatron-LM."
    )
    layout: Layout = Field(description="Parallel sizes, whose product is the number of ranks.")
    micro_batch_size: int = Field(ge=1, description="Samples per data-parallel rank and forward.")
    gradient_accumulation_steps: int = Field(
        ge=1, description="Micro batches per optimizer step and data-parallel rank."
    )
    zero_stage: ZeroStage = Field(
        default=0, description="1 optimizer state, 2 + gradients, 3 + parameters sharded over dp."
    )
    hpz_partition_size: int = Field(
        default=1,
        ge=1,
        description="Ranks that share a second copy of the weights under ZeRO-3 (hpZ); 1: none.",
    )
    offload_optimizer: Offload = Field(
        default="none",
        description="Where optimizer states are kept: on the device, in RAM or on disk.",
    )
    offload_parameters: Offload = Field(
        default="none",
        description="Where ZeRO-3 keeps parameters: on the device, in RAM or on disk.",
    )
    recompute: Recompute = Field(
        default="none",
        description="Which activations backward computes again instead of keeping them.",
    )
    virtual_stages: int = Field(default=1, ge=1, description="Pipeline chunks per rank.")
    sequence_parallel: bool = Field(
        default=False, description="Activations split over tp outside the matrix products."
    )
    execution: Execution | None = Field(
        default=None, description="Software that runs it; none: what the back end does."
    )

    @property
    def runs_as(self) -> Execution:
        """The software that runs it."""
        return self.execution or EXECUTIONS[self.back_end]

    @property
    def batching(self) -> Batching:
        """What members of one family differ in, beside recomputation."""
        return Batching(
            self.micro_batch_size, self.gradient_accumulation_steps, self.virtual_stages
        )

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step, by construction."""
        return (
            self.micro_batch_size
            * self.gradient_accumulation_steps
            * self.layout.data_parallel_size
        )

    @property
    def offloads(self) -> bool:
        """Whether anything leaves the device."""
        return self.offload_optimizer != "none" or self.offload_parameters != "none"

    @property
    def weight_group(self) -> int | None:
        """Ranks that weights are gathered from, where these are fewer than share the states."""
        if self.hpz_partition_size > 1:
            return self.hpz_partition_size
        return self.runs_as.shard_group

    def label(self) -> str:
        """A short name for tables: `ZeRO-3 dp16 mbs2 x4 recompute full offload cpu`."""
        zero = f"ZeRO-{self.zero_stage}" if self.back_end == "deepspeed" else "Megatron"
        parts = [zero, self.layout.label()]
        parts.append(f"mbs{self.micro_batch_size} x{self.gradient_accumulation_steps}")
        if self.hpz_partition_size > 1:
            parts.append(f"hpZ {self.hpz_partition_size}")
        if self.virtual_stages > 1:
            parts.append(f"vs{self.virtual_stages}")
        if self.recompute != "none":
            parts.append(f"recompute {self.recompute}")
        if self.back_end == "megatron" and not self.zero_stage and self.layout.shard_ranks > 1:
            parts.append("without distributed optimizer")
        if self.offload_optimizer != "none":
            parts.append(f"optimizer on {self.offload_optimizer}")
        if self.offload_parameters != "none":
            parts.append(f"parameters on {self.offload_parameters}")
        return " ".join(parts)


class AioSettings(BaseModel):
    """How ZeRO-Infinity reads and writes its disk."""

    model_config = FROZEN

    block_size: int = Field(ge=4096, description="`aio.block_size`: bytes of one read or write.")
    queue_depth: int = Field(ge=1, description="`aio.queue_depth`: requests that wait at once.")
    intra_op_parallelism: int = Field(
        ge=1, description="`aio.intra_op_parallelism`: threads of one request."
    )
    single_submit: bool = Field(
        default=False, description="`aio.single_submit`: requests are submitted one by one."
    )
    overlap_events: bool = Field(
        default=True, description="`aio.overlap_events`: submission and completion overlap."
    )
    optimizer_buffer_count: int = Field(
        ge=1, description="`offload_optimizer.buffer_count`: buffers in RAM."
    )
    parameter_buffer_count: int = Field(
        ge=1, description="`offload_param.buffer_count`: buffers in RAM."
    )
    parameter_buffer_size: int = Field(
        ge=1, description="`offload_param.buffer_size`, elements: at least the largest partition."
    )
    max_in_cpu: int = Field(
        ge=0, description="`offload_param.max_in_cpu`: elements that stay in RAM."
    )


class Constraints(BaseModel):
    """What the user has fixed; `None` leaves the choice to the planner."""

    model_config = FROZEN

    back_end: BackEnd | None = Field(
        default=None, description="Engine that trains: DeepSpeed or Megatron-LM."
    )
    micro_batch_size: int | None = Field(
        default=None, ge=1, description="Samples per data-parallel rank and forward."
    )
    zero_stage: ZeroStage | None = Field(
        default=None,
        description="1 shards optimizer states, 2 also gradients, 3 also parameters.",
    )
    tensor_parallel_size: int | None = Field(
        default=None, ge=1, description="Ranks that share the matrices of each layer."
    )
    pipeline_parallel_size: int | None = Field(
        default=None, ge=1, description="Stages that the layers are divided into."
    )
    context_parallel_size: int | None = Field(
        default=None, ge=1, description="Ranks that share one sequence."
    )
    expert_parallel_size: int | None = Field(
        default=None, ge=1, description="Ranks that share the experts of a layer."
    )
    hpz_partition_size: int | None = Field(
        default=None, ge=1, description="Ranks of ZeRO-3's second copy of the weights; 1: none."
    )
    quantized_weights: bool | None = Field(
        default=None, description="ZeRO++ qwZ: weights are gathered in 8 bits."
    )
    quantized_gradients: bool | None = Field(
        default=None, description="ZeRO++ qgZ: gradients are scattered in 4 bits."
    )
    gradient_type: Literal["compute", "fp32"] | None = Field(
        default=None, description="Type in which gradients of micro batches are summed."
    )
    communication_type: Literal["compute", "fp32"] | None = Field(
        default=None, description="Type in which gradients are sent to other ranks."
    )
    offload_optimizer: Offload | None = Field(
        default=None,
        description="Where optimizer states are kept: on the device, in RAM or on disk.",
    )
    offload_parameters: Offload | None = Field(
        default=None, description="Where ZeRO-3 keeps parameters: on the device, in RAM or on disk."
    )
    offload_ratio: float | None = Field(
        default=None, ge=0, le=1, description="Share of ZeRO-3's optimizer that runs on the CPU."
    )
    recompute: Recompute | None = Field(
        default=None,
        description="Which activations backward computes again instead of keeping them.",
    )
    loss: AskedLoss | None = Field(
        default=None,
        description="`plain` holds the logits of a micro batch, `chunked` those of some tokens; "
        "none: chunked where `dsforge train` runs the plan and can.",
    )
    buckets: BucketSizes | Buckets | None = Field(
        default=None, description="ZeRO's buffers: `sized`, the `engine`'s defaults, or as given."
    )
