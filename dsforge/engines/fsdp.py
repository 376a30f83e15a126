"""PyTorch FSDP, as torchtitan and LLM Foundry use it: float32 shards, gathered layer by layer."""

from __future__ import annotations

from dsforge.engines.engine import Engine, Held, Sharding
from dsforge.execution import Buckets, Execution
from dsforge.layout import Layout
from dsforge.specs import ModelSpec
from dsforge.traced import maximum, minimum
from dsforge.zero_stages import FULLY_SHARDED

LAYER_HOST_S = 0.9e-3  # host time of one layer, forward and backward; binds no published row
GATHERED_LAYERS = 3  # whole at once: at work, prefetched, and the flat buffer copied from
LOSS_BYTES = 14  # float32 copy, log-softmax, its gradient; without a compiler also in bf16
LOGIT_TRAFFIC_BYTES = 68.0  # Hugging Face's copies; fitted (`estimate/rates.py`)
FRAMEWORKS = ("foundry", "torchtitan", "fsdp")
MEGATRON_FRAMEWORKS = ("megatron", "nemo", "internevo")  # that may shard with FSDP


def buffer_elements(model: ModelSpec, held: Held, sharding: Sharding, buckets: Buckets) -> float:
    """Elements gathered at once.

    Embedding and head stay whole from forward to backward; beside them the layer at work, the next
    one, and the flat buffer that it is copied out of. Sharding of gradients only: all layers.
    """
    tp = sharding.layout.tensor_parallel_size
    outer = 2 * model.vocab_size * model.embedding_size / tp
    layers = maximum(0.0, held.total - outer)
    if sharding.zero_stage < FULLY_SHARDED:
        return held.total + layers / model.layers
    return minimum(held.total, outer) + GATHERED_LAYERS * layers / held.layers


def loss_bytes(run: Execution, size: int) -> int:
    """What the loss keeps; a compiler saves the copy in the compute type."""
    return LOSS_BYTES - (size if run.kernels == "compiled" else 0)


def overlaps_gradients(layout: Layout, buckets: Buckets) -> bool:
    """Reduction beside backward, as ZeRO's `overlap_comm`: rows are priced with its defaults."""
    return buckets.overlap_comm


def runs_row(framework: str, sharding: str) -> bool:
    """Frameworks that shard with FSDP, Megatron's among them."""
    on_megatron = any(word in framework for word in MEGATRON_FRAMEWORKS)
    if on_megatron:
        return "fsdp" in sharding
    return any(word in framework for word in FRAMEWORKS)


ENGINE = Engine(
    name="fsdp",
    label="PyTorch FSDP",
    short_label="FSDP",
    execution=Execution.model_construct(trainer="fsdp"),
    back_end="deepspeed",
    states="fp32_shards",
    buffer_elements=buffer_elements,
    selective="every_other_product",  # torchtitan, per-op selective checkpointing
    loss_bytes=loss_bytes,
    logit_traffic_bytes=LOGIT_TRAFFIC_BYTES,
    overlaps_gradients=overlaps_gradients,
    gathers_to_recompute=False,  # the hook before backward gathers; a checkpoint lies within it
    context_exchange="all_to_all",
    layer_host_s=lambda cluster, workload, sharding: LAYER_HOST_S,
    runs_row=runs_row,
)
