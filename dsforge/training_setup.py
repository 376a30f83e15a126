"""TrainingSetup: what a run is told to do, in whichever program's files it is said.

Readers of other programs' files (`importing/`) make one, writers for other programs (`targets/`)
start from one, and a plan has one. So a plan that is written for a program and read back can be
compared, and a move from one program to another is a reader and a writer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from dsforge.execution import FusedLoss, Recompute
from dsforge.plan import Plan
from dsforge.specs import FROZEN, Precision, VisionTraining
from dsforge.zero_stages import Offload, ZeroStage

Adapter = Literal["none", "lora", "qlora"]


class TrainingSetup(BaseModel):
    """Settings of one run in the glossary's words. None: not said, and not the program's default.

    A reader fills in the program's own default where the program has one, so that two files that
    do the same have the same setup.
    """

    model_config = FROZEN

    engine: str | None = Field(
        default=None, description="Engine that trains: a name of `engines.ENGINES`."
    )
    model: str | None = Field(default=None, description="Model, as the file names it.")
    nodes: int | None = Field(default=None, ge=1, description="Machines of the run.")
    gpus_per_node: int | None = Field(default=None, ge=1, description="Devices of one machine.")
    data_parallel_size: int | None = Field(
        default=None, ge=1, description="Replicas of the (sharded) model."
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, description="Ranks that share the matrices of each layer."
    )
    pipeline_parallel_size: int = Field(
        default=1, ge=1, description="Stages that the layers are divided into."
    )
    context_parallel_size: int = Field(default=1, ge=1, description="Ranks that share a sequence.")
    expert_parallel_size: int = Field(
        default=1, ge=1, description="Ranks that share the experts of a layer."
    )
    virtual_stages: int = Field(default=1, ge=1, description="Pipeline chunks per rank.")
    sequence_parallel: bool = Field(
        default=False, description="Activations split over tp outside the matrix products."
    )
    zero_stage: ZeroStage | None = Field(
        default=None,
        description="ZeRO stage, or the stage that does the same: FSDP's full sharding is 3, its "
        "sharding of gradients and optimizer 2, a distributed optimizer 1.",
    )
    shard_group: int | None = Field(
        default=None,
        ge=1,
        description="Ranks that share one copy of the weights, where fewer than all do: hybrid "
        "sharding, hpZ.",
    )
    offload_optimizer: Offload = Field(
        default="none", description="Where optimizer states are stored."
    )
    offload_parameters: Offload = Field(default="none", description="Where parameters are stored.")
    no_sync: bool = Field(
        default=False,
        description="FSDP reduces gradients once a step, and whole ones stay on each rank in "
        "between.",
    )
    offload_activations: bool = Field(
        default=False, description="Inputs of checkpointed layers wait in RAM."
    )
    tiled_mlp: bool = Field(
        default=False, description="MLPs take a stretch of the sequence at a time."
    )
    overlaps_tensor: bool = Field(
        default=False, description="Tensor-parallel collectives overlap with matrix products."
    )
    loss: FusedLoss | None = Field(
        default=None,
        description="A loss that is none of whole logits: Liger's fused linear cross entropy, or a "
        "fused cross entropy kernel.",
    )
    kernels: Literal["fused"] | None = Field(
        default=None, description="Fused norms, MLPs and rotary embeddings (Liger's kernels)."
    )
    bf16_states: bool = Field(
        default=False, description="Weights, gradients and moments in bf16, without fp32 weights."
    )
    vision_training: VisionTraining | None = Field(
        default=None, description="What trains of a vision tower, where the files say so."
    )
    micro_batch_size: int | None = Field(
        default=None, ge=1, description="Samples per data-parallel rank and forward pass."
    )
    gradient_accumulation_steps: int | None = Field(
        default=None, ge=1, description="Micro batches per optimizer step."
    )
    global_batch_size: int | None = Field(
        default=None, ge=1, description="Samples per optimizer step, of all replicas."
    )
    sequence_length: int | None = Field(default=None, ge=1, description="Tokens per sample.")
    precision: Precision | None = Field(default=None, description="Type of forward and backward.")
    recompute: Recompute = Field(
        default="none", description="Activation checkpointing: none, selective or full."
    )
    adapter: Adapter = Field(
        default="none", description="Adapters: none, LoRA, or LoRA over a quantised base."
    )
    lora_rank: int | None = Field(default=None, ge=1, description="Rank of the adapters.")
    lora_alpha: float | None = Field(default=None, gt=0, description="Scale of the adapters.")
    optimizer: str | None = Field(default=None, description="Optimizer, by the glossary's name.")
    learning_rate: float | None = Field(default=None, gt=0, description="Peak learning rate.")

    @property
    def world_size(self) -> int | None:
        """Ranks of the run, where machines and devices are known."""
        if self.nodes is None or self.gpus_per_node is None:
            return None
        return self.nodes * self.gpus_per_node

    @property
    def effective_batch_size(self) -> int | None:
        """Samples per optimizer step: as said, else of micro batch, accumulation and replicas."""
        parts = (self.micro_batch_size, self.gradient_accumulation_steps, self.replicas)
        micro, steps, replicas = parts
        if self.global_batch_size is not None or not (micro and steps and replicas):
            return self.global_batch_size
        return micro * steps * replicas

    @property
    def replicas(self) -> int | None:
        """Data-parallel ranks: as said, else what tensor, pipeline and context ranks leave."""
        if self.data_parallel_size is not None or self.world_size is None:
            return self.data_parallel_size
        sizes = self.tensor_parallel_size * self.pipeline_parallel_size
        share, rest = divmod(self.world_size, sizes * self.context_parallel_size)
        return share if share and not rest else None


def setup_of(plan: Plan) -> TrainingSetup:
    """The setup of a plan's chosen strategy: everything that a plan knows is said."""
    strategy, workload, cluster = plan.strategy, plan.workload, plan.cluster
    layout, lora = strategy.layout, workload.lora if workload.method == "lora" else None
    return TrainingSetup(
        engine=strategy.engine.name,
        model=plan.model.name,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        data_parallel_size=layout.data_parallel_size,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        expert_parallel_size=layout.expert_parallel_size,
        virtual_stages=strategy.virtual_stages,
        sequence_parallel=strategy.sequence_parallel,
        zero_stage=strategy.zero_stage,
        shard_group=strategy.weight_group,
        offload_optimizer=strategy.offload_optimizer,
        offload_parameters=strategy.offload_parameters,
        no_sync=strategy.runs_as.no_sync,
        micro_batch_size=strategy.micro_batch_size,
        gradient_accumulation_steps=strategy.gradient_accumulation_steps,
        global_batch_size=strategy.global_batch_size,
        sequence_length=workload.sequence_length,
        precision=workload.precision,
        recompute=strategy.recompute,
        offload_activations=strategy.runs_as.offload_activations,
        tiled_mlp=strategy.runs_as.tiled_mlp,
        adapter=("qlora" if workload.is_quantised else "lora") if lora else "none",
        lora_rank=lora.rank if lora else None,
        lora_alpha=lora.alpha if lora else None,
        optimizer=workload.optimizer,
        learning_rate=workload.learning_rate,
    )
