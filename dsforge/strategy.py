"""Strategy: the decision. Everything that a person may choose once the inputs stand."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from dsforge.layout import Layout
from dsforge.specs import FROZEN
from dsforge.zero_stages import FULLY_SHARDED as FULLY_SHARDED  # noqa: PLC0414 - a stage by name
from dsforge.zero_stages import GRADIENTS_SHARDED as GRADIENTS_SHARDED  # noqa: PLC0414 - a stage by name
from dsforge.zero_stages import Offload as Offload  # noqa: PLC0414 - type of a field
from dsforge.zero_stages import ZeroStage as ZeroStage  # noqa: PLC0414 - type of a field

BackEnd = Literal["deepspeed", "megatron"]
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

    reduce_bucket_size: int = Field(ge=1, description="`reduce_bucket_size`.")
    allgather_bucket_size: int = Field(ge=1, description="`allgather_bucket_size`.")
    prefetch_bucket_size: int = Field(ge=0, description="`stage3_prefetch_bucket_size`.")
    persistence_threshold: int = Field(ge=0, description="`stage3_param_persistence_threshold`.")
    max_live_parameters: int = Field(ge=1, description="`stage3_max_live_parameters`.")
    max_reuse_distance: int = Field(ge=0, description="`stage3_max_reuse_distance`.")
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

    back_end: BackEnd = "deepspeed"
    layout: Layout
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
    offload_optimizer: Offload = "none"
    offload_parameters: Offload = "none"
    recompute: Recompute = "none"
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

    block_size: int = Field(ge=4096, description="`aio.block_size`, bytes.")
    queue_depth: int = Field(ge=1, description="`aio.queue_depth`.")
    intra_op_parallelism: int = Field(ge=1, description="`aio.intra_op_parallelism`, threads.")
    single_submit: bool = False
    overlap_events: bool = True
    optimizer_buffer_count: int = Field(ge=1, description="`offload_optimizer.buffer_count`.")
    parameter_buffer_count: int = Field(ge=1, description="`offload_param.buffer_count`.")
    parameter_buffer_size: int = Field(
        ge=1, description="`offload_param.buffer_size`, elements: at least the largest partition."
    )
    max_in_cpu: int = Field(ge=0, description="`offload_param.max_in_cpu`, elements.")


class Constraints(BaseModel):
    """What the user has fixed; `None` leaves the choice to the planner."""

    model_config = FROZEN

    back_end: BackEnd | None = None
    micro_batch_size: int | None = Field(default=None, ge=1)
    zero_stage: ZeroStage | None = None
    tensor_parallel_size: int | None = Field(default=None, ge=1)
    pipeline_parallel_size: int | None = Field(default=None, ge=1)
    context_parallel_size: int | None = Field(default=None, ge=1)
    expert_parallel_size: int | None = Field(default=None, ge=1)
    hpz_partition_size: int | None = Field(
        default=None, ge=1, description="Ranks of ZeRO-3's second copy of the weights; 1: none."
    )
    quantized_weights: bool | None = Field(default=None, description="ZeRO++ qwZ: int8 gathers.")
    quantized_gradients: bool | None = Field(default=None, description="ZeRO++ qgZ: int4.")
    gradient_type: Literal["compute", "fp32"] | None = Field(
        default=None, description="Type in which gradients of micro batches are summed."
    )
    communication_type: Literal["compute", "fp32"] | None = Field(
        default=None, description="Type in which gradients are sent to other ranks."
    )
    offload_optimizer: Offload | None = None
    offload_parameters: Offload | None = None
    offload_ratio: float | None = Field(
        default=None, ge=0, le=1, description="Share of ZeRO-3's optimizer that runs on the CPU."
    )
    recompute: Recompute | None = None
    loss: AskedLoss | None = Field(
        default=None,
        description="`plain` holds the logits of a micro batch, `chunked` those of some tokens; "
        "none: chunked where `dsforge train` runs the plan and can.",
    )
    buckets: BucketSizes | Buckets | None = Field(
        default=None, description="ZeRO's buffers: `sized`, the `engine`'s defaults, or as given."
    )
