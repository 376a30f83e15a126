"""Megatron-LM with megatron-core 0.16 and Transformer Engine; NeMo and InternEvo run alike."""

from __future__ import annotations

from dsforge.engines.engine import Engine
from dsforge.execution import Execution

LAYER_HOST_S = 0.5e-3  # host time of one layer, forward and backward; binds no published row
LOSS_BYTES = 4  # float32 logits; the cross entropy works in their place
SOFTMAX_BYTES = 4  # more, kept by its fused kernel (`--cross-entropy-loss-fusion`)
LOGIT_TRAFFIC_BYTES = 72.8  # fitted (`estimate/rates.py`)
FRAMEWORKS = ("megatron", "nemo", "internevo")


def loss_bytes(run: Execution, size: int) -> int:
    """Logits in float32, and the softmax where a fused kernel keeps it."""
    return LOSS_BYTES + (SOFTMAX_BYTES if run.loss == "softmax" else 0)


def runs_row(framework: str, sharding: str) -> bool:
    """Its frameworks, where neither FSDP nor ZeRO-3 shards the weights."""
    others = "fsdp" in sharding or ("deepspeed" in framework and "zero-3" in sharding)
    return any(word in framework for word in FRAMEWORKS) and not others


def kept_scores(framework: str, precision: str) -> bool:
    """Runs in fp16, and those of its fork for DeepSpeed, are from before flash attention."""
    return precision == "fp16" or "megatron-deepspeed" in framework


ENGINE = Engine(
    name="megatron",
    label="Megatron-LM",
    short_label="Megatron",
    execution=Execution.model_construct(trainer="megatron", kernels="fused", gradients="fp32"),
    back_end="megatron",
    words=frozenset(
        "expert_dispatch gradient_type overlaps_experts overlaps_tensor virtual_stages".split()
    ),
    reads_own_part=True,
    sequence_parallel=True,
    expert_parallel=True,
    interleaves=True,
    repeats_keys=False,
    flash_kernels="cudnn",
    loss_bytes=loss_bytes,
    logit_traffic_bytes=LOGIT_TRAFFIC_BYTES,
    narrow_softmax=True,  # the rows mcore-gv
    scatters_gradients=True,  # `--use-distributed-optimizer`
    overlaps_gradients=lambda layout, buckets: True,
    layer_host_s=lambda cluster, workload, sharding: LAYER_HOST_S,
    step_ends=(0.95, 1.1),
    waiting_ends=(0.75, 1.3),
    memory_errors=(0.02, 0.07),
    runs_row=runs_row,
    kept_scores=kept_scores,
)
