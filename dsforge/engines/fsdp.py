"""PyTorch FSDP, as torchtitan and LLM Foundry use it: float32 shards, gathered layer by layer."""

from __future__ import annotations

from dsforge.engines.deepspeed import launches_s
from dsforge.engines.engine import OF_MODULES, Engine, Held, Sharding
from dsforge.execution import Buckets, Execution
from dsforge.layout import Layout
from dsforge.specs import ModelSpec
from dsforge.traced import maximum, minimum
from dsforge.zero_stages import FULLY_SHARDED

GATHERED_LAYERS = 3  # whole at once: at work, prefetched, and the flat buffer copied from
IN_FLIGHT = 2  # layers whose shards come from RAM: one gathered, one prefetched
FLOAT_AND_CAST = 2  # a float32 shard beside its cast: as long as two of those in 16 bits
LOSS_BYTES = 14  # float32 copy, log-softmax, its gradient; without a compiler also in bf16
LOGIT_TRAFFIC_BYTES = 68.0  # Hugging Face's copies; fitted (`estimate/rates.py`)
FRAMEWORKS = ("foundry", "torchtitan", "fsdp")


def buffer_elements(model: ModelSpec, held: Held, sharding: Sharding, buckets: Buckets) -> float:
    """Elements gathered at once.

    Embedding and head stay whole from forward to backward; beside them the layer at work, the next
    one, and the flat buffer that it is copied out of. Sharding of gradients only: all layers; so do
    pipeline stages (torch distributed/pipelining/stage.py, `set_reshard_after_backward(False)`).
    Replicas gather nothing: what is trained has its copy in the compute type, frozen weights none.
    """
    if sharding.zero_stage == 0:
        return held.trainable
    tp = sharding.layout.tensor_parallel_size
    outer = model.end_elements / tp
    layers = maximum(0.0, held.total - outer)
    staged = sharding.layout.pipeline_parallel_size > 1
    if sharding.zero_stage < FULLY_SHARDED or staged:
        return held.total + layers / model.depth
    whole = minimum(held.total, outer) + GATHERED_LAYERS * layers / held.layers
    if not sharding.in_ram:
        return whole
    return whole + _copied_shards(minimum(held.total, outer), layers / held.layers, held, sharding)


def _copied_shards(outer: float, layer: float, held: Held, sharding: Sharding) -> float:
    """Elements of shards that come from RAM to be gathered, in a stream with memory of its own.

    Embedding and head are one unit, which is the first; later two layers are under way there. A
    float32 shard comes as it is and is cast beside it (torch distributed/fsdp/_flat_param.py,
    `_use_low_precision_shard`), what is frozen comes in the type that is gathered.
    """
    cast = 1 + FLOAT_AND_CAST * minimum(1.0, held.trainable / maximum(1.0, held.total))
    return cast * maximum(outer, IN_FLIGHT * layer) / sharding.layout.shard_ranks


def loss_bytes(run: Execution, size: int) -> int:
    """What the loss keeps; a compiler saves the copy in the compute type.

    A fused kernel keeps the logits and writes their gradient (flash_attn/losses/cross_entropy.py).
    """
    if run.loss == "fused_cross_entropy":
        return size
    return LOSS_BYTES - (size if run.kernels == "compiled" else 0)


def overlaps_gradients(layout: Layout, buckets: Buckets) -> bool:
    """Reduction beside backward, as ZeRO's `overlap_comm`: rows are priced with its defaults."""
    return buckets.overlap_comm


def runs_row(framework: str, sharding: str) -> bool:
    """Frameworks that shard with FSDP and compute with torch's modules."""
    return any(word in framework for word in FRAMEWORKS)


ENGINE = Engine(
    name="fsdp",
    label="PyTorch FSDP",
    short_label="FSDP",
    execution=Execution.model_construct(trainer="fsdp", early_stop=True),
    back_end="deepspeed",
    words=OF_MODULES  # hybrid sharding is asked as a second copy of the weights in each group
    | {"bf16_states", "gradient_type", "hpz_partition_size", "loads_whole", "no_sync"},
    states="fp32_shards",
    flat_parameters=True,
    buffer_elements=buffer_elements,
    selective="every_other_product",  # torchtitan, per-op selective checkpointing
    loss_bytes=loss_bytes,
    logit_traffic_bytes=LOGIT_TRAFFIC_BYTES,
    overlaps_gradients=overlaps_gradients,
    context_exchange="all_to_all",
    layer_host_s=lambda cluster, workload, sharding: launches_s(workload),
    step_ends=(0.91, 1.12),
    memory_errors=(0.05, 0.15),
    runs_row=runs_row,
)
