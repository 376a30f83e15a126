"""Strategy: the decision. Everything that a person may choose once the inputs stand."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, Field, field_validator

from dsforge.engines import BY_NAME, EXECUTIONS, Engine, Sharding
from dsforge.execution import (
    AttentionKind,
    BackEnd,
    Buckets,
    BucketSizes,
    Execution,
    ExpertDispatch,
    FusedLoss,
    GradientType,
    Kernels,
    Loss,
    Recompute,
    Software,
)
from dsforge.layout import Layout
from dsforge.programs import ProgramName
from dsforge.specs import FROZEN
from dsforge.zero_stages import FULLY_SHARDED, GRADIENTS_SHARDED, Offload, ZeroStage

# Parts of a strategy, so that those who read strategies import them from one place.
__all__ = [
    "EXECUTIONS",
    "FULLY_SHARDED",
    "GRADIENTS_SHARDED",
    "AioSettings",
    "AskedKernels",
    "AskedLoss",
    "AskedTrainer",
    "AttentionKind",
    "BackEnd",
    "Batching",
    "BucketSizes",
    "Buckets",
    "Constraints",
    "Execution",
    "ExpertDispatch",
    "FusedLoss",
    "Kernels",
    "Loss",
    "Offload",
    "Recompute",
    "Software",
    "Strategy",
    "TrainedLoss",
    "ZeroStage",
]

TrainedLoss = Literal["plain", "chunked"]  # what `dsforge train` computes
AskedLoss = Literal[TrainedLoss, FusedLoss]
AskedTrainer = Literal["deepspeed", "ddp", "fsdp", "megatron-fsdp", "torchtune"]
AskedKernels = Literal["eager", "fused", "compiled"]


class Batching(NamedTuple):
    """How a global batch passes through one family of strategies."""

    micro_batch_size: int  # samples per data-parallel rank and forward
    steps: int  # micro batches per optimizer step
    virtual_stages: int = 1


class Strategy(BaseModel):
    """One way to run the workload on the cluster."""

    model_config = FROZEN

    back_end: BackEnd = Field(default="deepspeed", description="Engine: DeepSpeed or Megatron-LM.")
    layout: Layout = Field(description="Parallel sizes, whose product is the number of ranks.")
    micro_batch_size: int = Field(
        ge=1, description="Samples per data-parallel rank and forward pass."
    )
    gradient_accumulation_steps: int = Field(
        ge=1, description="Micro batches per optimizer step and data-parallel rank."
    )
    zero_stage: ZeroStage = Field(
        default=0,
        description="ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also parameters.",
    )
    hpz_partition_size: int = Field(
        default=1,
        ge=1,
        description="Ranks that share a second copy of the weights under ZeRO-3 (hpZ); 1: none.",
    )
    offload_optimizer: Offload = Field(
        default="none",
        description="Where optimizer states are stored: on the device, in RAM or on disk.",
    )
    offload_parameters: Offload = Field(
        default="none",
        description="Where ZeRO-3 parameters are stored: on the device, in RAM or on disk.",
    )
    recompute: Recompute = Field(
        default="none",
        description="Activation checkpointing: activations that backward recomputes.",
    )
    virtual_stages: int = Field(default=1, ge=1, description="Pipeline chunks per rank.")
    sequence_parallel: bool = Field(
        default=False, description="Activations split over tp outside the matrix products."
    )
    execution: Execution | None = Field(
        default=None, description="Settings of the training software; none: those of the back end."
    )

    @field_validator("execution")
    @classmethod
    def _known_engine(cls, execution: Execution | None) -> Execution | None:
        """Refuse an engine that is not there."""
        if execution is not None and execution.trainer not in BY_NAME:
            message = f"`trainer` (={execution.trainer}) must be one of {', '.join(BY_NAME)}"
            raise ValueError(message)
        return execution

    @property
    def runs_as(self) -> Execution:
        """Settings of the software that runs it."""
        return self.execution or EXECUTIONS[self.back_end]

    @property
    def reduces_once(self) -> bool:
        """Whether FSDP reduces gradients once a step: under `no_sync`, or of pipeline stages.

        torch distributed/pipelining/stage.py, 2.13: `set_requires_gradient_sync(False)`.
        """
        staged = self.layout.pipeline_parallel_size > 1
        return self.engine.states == "fp32_shards" and (self.runs_as.no_sync or staged)

    @property
    def engine(self) -> Engine:
        """The software that runs it."""
        return BY_NAME[self.runs_as.trainer]

    @property
    def has_flat_parameters(self) -> bool:
        """Whether FSDP is the first one: accelerate's default; programs ask for the second."""
        run = self.runs_as
        if run.program is not None:
            return run.program == "accelerate-fsdp1"
        return self.engine.flat_parameters and run.software == "others"

    @property
    def copies_ends(self) -> bool:
        """Whether tensor ranks hold copies of embeddings; of scripts of others it is not known."""
        return self.engine.copies_ends and self.runs_as.software == "dsforge"

    @property
    def sends_parts(self) -> bool:
        """Whether tensor ranks send a part each of what a pipeline stage hands on."""
        return self.engine.sends_parts or self.runs_as.software == "others"

    @property
    def sharding(self) -> Sharding:
        """How the model is split over ranks."""
        return Sharding(self.layout, self.zero_stage, self.offload_parameters == "cpu")

    @property
    def batching(self) -> Batching:
        """What members of one family differ in, beside recomputation."""
        return Batching(
            self.micro_batch_size, self.gradient_accumulation_steps, self.virtual_stages
        )

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step, by construction."""
        micro, steps = self.micro_batch_size, self.gradient_accumulation_steps
        return micro * steps * self.layout.data_parallel_size

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
        engine = BY_NAME[self.back_end]
        staged = engine.has_zero_stages
        parts = [f"ZeRO-{self.zero_stage}" if staged else engine.short_label, self.layout.label()]
        if staged and self.engine is not engine:
            parts[0] = f"{self.engine.short_label} as {parts[0]}"
        parts.append(f"mbs{self.micro_batch_size} x{self.gradient_accumulation_steps}")
        group, ranks = self.runs_as.shard_group, self.layout.shard_ranks
        replicated = not staged and not self.zero_stage and ranks > 1
        more = (
            (self.hpz_partition_size > 1, f"hpZ {self.hpz_partition_size}"),
            (group is not None and group < ranks, f"shards of {group}"),
            (self.virtual_stages > 1, f"vs{self.virtual_stages}"),
            (self.recompute != "none", f"recompute {self.recompute}"),
            (replicated, "without distributed optimizer"),
            (not self.runs_as.master_weights, "bf16 states"),
            (self.offload_optimizer != "none", f"optimizer on {self.offload_optimizer}"),
            (self.offload_parameters != "none", f"parameters on {self.offload_parameters}"),
        )
        return " ".join((*parts, *(text for applies, text in more if applies)))


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

    back_end: BackEnd | None = Field(default=None, description="Engine: DeepSpeed or Megatron-LM.")
    micro_batch_size: int | None = Field(
        default=None, ge=1, description="Samples per data-parallel rank and forward pass."
    )
    zero_stage: ZeroStage | None = Field(
        default=None,
        description="ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also parameters.",
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
    gradient_type: GradientType | None = Field(
        default=None, description="Type in which gradients of micro batches are summed."
    )
    communication_type: GradientType | None = Field(
        default=None, description="Type in which gradients are sent to other ranks."
    )
    offload_optimizer: Offload | None = Field(
        default=None,
        description="Where optimizer states are stored: on the device, in RAM or on disk.",
    )
    offload_parameters: Offload | None = Field(
        default=None,
        description="Where ZeRO-3 parameters are stored: on the device, in RAM or on disk.",
    )
    offload_ratio: float | None = Field(
        default=None, ge=0, le=1, description="Share of ZeRO-3's optimizer that runs on the CPU."
    )
    recompute: Recompute | None = Field(
        default=None,
        description="Activation checkpointing: activations that backward recomputes.",
    )
    offload_activations: bool | None = Field(
        default=None,
        description="What backward needs waits in RAM: activation checkpoints (recompute `full`), "
        "or all saved activations (trainer torchtune). None: no.",
    )
    tiled_mlp: bool | None = Field(
        default=None,
        description="MLPs take as many tokens of a sequence at a time as the hidden size, once "
        "more in backward (DeepSpeed's `TiledMLP`; recompute `full`). None: no.",
    )
    loss: AskedLoss | None = Field(
        default=None,
        description="Loss: `plain` (logits of a micro batch), `chunked` (of a chunk of tokens), "
        "`fused` (Liger's fused linear cross entropy: head and loss in one kernel) or "
        "`fused_cross_entropy` (one kernel on whole logits, such as apex's or FlashAttention's); "
        "the last two with software of others. None: chunked if `dsforge train` runs the plan and "
        "supports it.",
    )
    attention: AttentionKind | None = Field(
        default=None,
        description="Attention kernel: `flash`; `flash1`, FlashAttention of 2022, about a third as "
        "fast; `triton`, its Triton kernel (LLM Foundry in 2023), two thirds; `eager`, which "
        "stores the scores of all pairs; or `masked`, torch's fused kernel under a mask (padded "
        "batches with sdpa), which computes the masked half too. None: flash.",
    )
    dropout: bool | None = Field(
        default=None,
        description="Dropout runs in training, where the model's config has it, or of hidden "
        "states and attention where the config has none, and its masks are saved for backward "
        "(not that of adapters). None: as the config of the model says, in transformers' modules "
        "(BERT, GPT-2, OPT and T5 drop by default); else no.",
    )
    trainer: AskedTrainer | None = Field(
        default=None,
        description="Software whose step is predicted: `deepspeed` with Hugging Face modules, "
        "`ddp` (torch on one accelerator or DDP; trained weights, gradients and moments in fp32 "
        "under autocast), `fsdp` (PyTorch FSDP), `megatron-fsdp` or `torchtune`; files are written "
        "for DeepSpeed, or for a `program` on that software. None: deepspeed, or the first of the "
        "program.",
    )
    program: ProgramName | None = Field(
        default=None,
        description="Program that trains by itself, such as `torchtitan`: the plan is one that it "
        "can run, priced as it runs it. None: scripts of `software`.",
    )
    bf16_states: bool | None = Field(
        default=None,
        description="Weights, gradients and moments are in bf16, without fp32 weights: torchtune, "
        "torch's optimizer on a model that was loaded in bf16, or DeepSpeed's "
        "`bf16_master_weights_and_grads` and `bf16_optimizer_states` under ZeRO. None: no.",
    )
    optimizer_in_backward: bool | None = Field(
        default=None,
        description="Each weight is stepped in backward and its gradient is freed (torchtune). "
        "None: no.",
    )
    loads_whole: bool | None = Field(
        default=None,
        description="Under ZeRO-3 or FSDP, each accelerator gathers the whole model while weights "
        "are loaded, as Lightning's FSDP does (software of others). None: no.",
    )
    no_sync: bool | None = Field(
        default=None,
        description="FSDP reduces gradients once a step, not in each micro step, and whole ones "
        "stay on each rank in between: accelerate's way unless `sync_each_batch` is set. None: no.",
    )
    kernels: AskedKernels | None = Field(
        default=None,
        description="Kernels of norms, activations and rotary embeddings: `eager` is one kernel "
        "for each operation, `fused` one for each module (Liger, Apex), `compiled` is "
        "torch.compile. None: eager.",
    )
    expert_dispatch: ExpertDispatch | None = Field(
        default=None,
        description="How Megatron-LM sends tokens to experts: `alltoall` a copy for each expert, "
        "`flex` (DeepEP, HybridEP) one for each rank. None: alltoall.",
    )
    overlaps_experts: bool | None = Field(
        default=None,
        description="Megatron-LM sends tokens to experts beside the work of another micro batch.",
    )
    overlaps_tensor: bool | None = Field(
        default=None,
        description="Tensor-parallel collectives overlap with products (`--tp-comm-overlap`).",
    )
    expert_modules: bool | None = Field(
        default=None,
        description="Each expert is a module of its own (transformers 4), not a part of one stack "
        "of all (transformers 5): computed one after the other, fetched one by one under ZeRO-3, "
        "and quantised by bitsandbytes. None: no.",
    )
    virtual_stages: int | None = Field(
        default=None, ge=1, description="Chunks of layers of each pipeline stage (interleaving)."
    )
    software: Software | None = Field(
        default=None,
        description="Whose scripts run it: those of dsforge, or of `others` on the same engine. "
        "Limits of `dsforge train` do not count for others, and intervals are wider, as nothing is "
        "known of them but what is stated. None: dsforge; an estimate takes others where sharding, "
        "split or offload are fixed.",
    )
    buckets: BucketSizes | Buckets | None = Field(
        default=None, description="ZeRO's buffers: `sized`, the `engine`'s defaults, or as given."
    )
