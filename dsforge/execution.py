"""How training software executes a strategy: its kernels, types and buffers, one value each.

An engine (`engines/`) has one Execution as its default; published runs and a person's flags change
single fields of it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN

BackEnd = Literal["deepspeed", "megatron"]
Recompute = Literal["none", "selective", "full"]
Kernels = Literal["eager", "fused", "compiled", "fused_norms"]
GatheredInputs = Literal["saved", "gathered_again"]
GradientType = Literal["compute", "fp32"]
BucketSizes = Literal["sized", "engine"]
AttentionKind = Literal["flash", "masked", "eager"]
Loss = Literal["plain", "softmax", "chunked_output", "chunked", "fused"]


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
        ge=0, description="`stage3_param_persistence_threshold`: smaller weights stay gathered."
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
    """Settings of the training software that tensor shapes do not determine."""

    model_config = FROZEN

    trainer: str = Field(
        description="Engine whose gradient buffers, shards and schedule are used: a name of "
        "`engines.ENGINES`."
    )
    kernels: Kernels = Field(
        default="eager",
        description="Kernels of a layer: plain modules, fused ones, torch.compile, or plain "
        "modules with fused norms.",
    )
    attention: AttentionKind = Field(
        default="flash",
        description="`eager` keeps the scores of all pairs of tokens; `masked` is torch's fused "
        "kernel under a mask, which computes the masked half too.",
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
    gradients: GradientType = Field(
        default="compute", description="Type in which gradients of micro batches are summed."
    )
    reduced: GradientType = Field(
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
