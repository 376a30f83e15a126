"""How training software executes a strategy: its kernels, types and buffers, one value each.

An engine (`engines/`) has one Execution as its default; published runs and a person's flags change
single fields of it.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN

BackEnd = Literal["deepspeed", "megatron"]
Recompute = Literal["none", "selective", "full"]
Kernels = Literal["eager", "fused", "compiled", "fused_norms"]
GatheredInputs = Literal["saved", "gathered_again"]
GradientType = Literal["compute", "fp32"]
BucketSizes = Literal["sized", "engine"]
AttentionKind = Literal["flash", "flash1", "triton", "masked", "eager"]
FLASH: tuple[AttentionKind, ...] = ("flash", "flash1", "triton")  # kernels that skip pairs
ExpertDispatch = Literal["alltoall", "flex"]
Software = Literal["dsforge", "others"]
FusedLoss = Literal["fused", "fused_cross_entropy"]  # kernels that `dsforge train` has not
Loss = Literal["plain", "softmax", "chunked_output", "chunked", FusedLoss]


class Buckets(BaseModel):
    """Sizes of ZeRO's buffers in elements, sized to the model, the stage and the link."""

    model_config = FROZEN

    reduce_bucket_size: int = Field(
        ge=1, description="`reduce_bucket_size`: size of one gradient reduction, elements."
    )
    allgather_bucket_size: int = Field(
        ge=1, description="`allgather_bucket_size`: size of one all-gather, elements."
    )
    prefetch_bucket_size: int = Field(
        ge=0, description="`stage3_prefetch_bucket_size`: weights gathered ahead, elements."
    )
    persistence_threshold: int = Field(
        ge=0, description="`stage3_param_persistence_threshold`: smaller weights stay gathered."
    )
    max_live_parameters: int = Field(
        ge=1, description="`stage3_max_live_parameters`: most gathered weights, elements."
    )
    max_reuse_distance: int = Field(
        ge=0,
        description="`stage3_max_reuse_distance`: gathered weights that are reused within this "
        "distance are not released, elements.",
    )
    sub_group_size: int = Field(
        ge=1, description="`sub_group_size`: elements per optimizer sub-group."
    )
    overlap_comm: bool = Field(
        description="`overlap_comm`: a second reduce bucket; reduction overlaps with backward."
    )


class Execution(BaseModel):
    """Settings of the training software that tensor shapes do not determine."""

    model_config = FROZEN

    trainer: str = Field(
        description="Engine whose gradient buffers, shards and schedule are used: a name of "
        "`engines.ENGINES`."
    )
    software: Software = Field(
        default="dsforge",
        description="Whose scripts run it: those of dsforge, or of `others`, of which nothing is "
        "known but what is stated.",
    )
    program: str | None = Field(
        default=None,
        description="Program that trains by itself, a name of `programs.PROGRAMS`; none: scripts "
        "of `software`.",
    )
    kernels: Kernels = Field(
        default="eager",
        description="Kernels of a layer: plain modules, fused ones, torch.compile, or plain "
        "modules with fused norms.",
    )
    attention: AttentionKind = Field(
        default="flash",
        description="Attention kernel: `flash`; `flash1`, FlashAttention of 2022; `triton`, "
        "its Triton kernel; `eager`, which stores the scores of all pairs; or `masked`, torch's "
        "fused kernel under a mask, which computes the masked half too.",
    )
    dropout: bool = Field(default=False, description="Dropout masks are saved for backward.")
    gathered_inputs: GatheredInputs = Field(
        default="gathered_again",
        description="Gathered input of a matrix under sequence parallelism: saved or gathered "
        "again.",
    )
    loss: Loss | None = Field(
        default=None,
        description="`plain`: full logits; `softmax`: a fused kernel that saves the softmax; "
        "`fused_cross_entropy`: one that saves the logits and writes their gradient; "
        "`chunked_output`: logits in pieces (torchtune); `chunked`: the head and the loss of some "
        "tokens at a time (dsforge train); `fused`: the same in one kernel (Liger). None: chunked "
        "where dsforge train can, else plain.",
    )
    gradients: GradientType = Field(
        default="compute", description="Type in which gradients of micro batches are summed."
    )
    reduced: GradientType = Field(
        default="compute", description="Type in which DeepSpeed sends gradients."
    )
    master_weights: bool = Field(default=True, description="The optimizer has fp32 master weights.")
    moments: Literal["fp32", "bf16", "int8"] = Field(
        default="fp32", description="Type of the optimizer's moments."
    )
    fused_backward: bool = Field(
        default=False,
        description="The optimizer step runs in backward; gradients are freed at once.",
    )
    early_stop: bool = Field(
        default=False,
        description="Recomputation of a layer ends before its last matrix product, whose result "
        "backward does not need (torch's non-reentrant checkpoints, from 2.1 on).",
    )
    loads_whole: bool = Field(
        default=False,
        description="Each accelerator holds the whole model beside its shard while weights are "
        "loaded (Lightning's FSDP).",
    )
    no_sync: bool = Field(
        default=False,
        description="FSDP reduces gradients once a step; whole ones stay on each rank in between.",
    )
    offload_activations: bool = Field(
        default=False, description="Activation checkpoints are offloaded to RAM."
    )
    tiled_mlp: bool = Field(
        default=False,
        description="MLPs take a stretch of the sequence at a time, once more in backward.",
    )
    overlaps_tensor: bool = Field(
        default=False, description="Tensor-parallel collectives overlap with matrix products."
    )
    deterministic: bool = Field(
        default=False, description="Deterministic kernels, which are slower."
    )
    expert_dispatch: ExpertDispatch = Field(
        default="alltoall",
        description="How tokens reach experts: a copy for each expert, or (`flex`: DeepEP, "
        "HybridEP) one for each rank.",
    )
    overlaps_experts: bool = Field(
        default=False, description="Tokens travel to experts beside the work of other tokens."
    )
    expert_modules: bool = Field(
        default=False,
        description="Each expert is a module of its own (transformers 4), not a part of one stack.",
    )
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

    @property
    def is_ours(self) -> bool:
        """Whether scripts of dsforge run it."""
        return self.software == "dsforge" and self.program is None

    @property
    def fused_loss(self) -> str | None:
        """The loss, where it is a kernel of other scripts."""
        return self.loss if self.loss in get_args(FusedLoss) else None
