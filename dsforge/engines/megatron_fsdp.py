"""Megatron-FSDP: kernels, attention and loss of Megatron-LM; weights sharded as FSDP does."""

from __future__ import annotations

from dataclasses import replace

from dsforge.engines import fsdp, megatron
from dsforge.engines.engine import OF_MODULES
from dsforge.execution import Execution


def runs_row(framework: str, sharding: str) -> bool:
    """Frameworks on Megatron, where FSDP shards."""
    return any(word in framework for word in megatron.FRAMEWORKS) and "fsdp" in sharding


ENGINE = replace(
    fsdp.ENGINE,
    name="megatron-fsdp",
    label="Megatron-FSDP",
    short_label="Megatron-FSDP",
    execution=Execution.model_construct(trainer="megatron-fsdp", kernels="fused"),
    words=OF_MODULES | {"gradient_type"},
    flat_parameters=False,
    flash_kernels=megatron.ENGINE.flash_kernels,
    narrow_softmax=megatron.ENGINE.narrow_softmax,
    selective=megatron.ENGINE.selective,
    loss_bytes=megatron.ENGINE.loss_bytes,
    logit_traffic_bytes=megatron.ENGINE.logit_traffic_bytes,
    layer_host_s=megatron.ENGINE.layer_host_s,
    runs_row=runs_row,
)
