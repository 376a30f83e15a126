"""torchtune's recipes: whole states, chunked output, the step fused into backward."""

from __future__ import annotations

from dsforge.engines import fsdp
from dsforge.engines.engine import OF_MODULES, Engine, Held, Sharding
from dsforge.execution import Buckets, Execution
from dsforge.layout import Layout
from dsforge.specs import ModelSpec
from dsforge.zero_stages import FULLY_SHARDED

LAYER_HOST_S = 0.9e-3  # host time of one layer, forward and backward; binds no published row
LOSS_BYTES = 12  # float32 copy, log-softmax and its gradient (torch's cross entropy)
LOGIT_TRAFFIC_BYTES = 68.0  # Hugging Face's copies; fitted (`estimate/rates.py`)


def overlaps_gradients(layout: Layout, buckets: Buckets) -> bool:
    """Reduction beside backward, as ZeRO's `overlap_comm`: rows are priced with its defaults."""
    return buckets.overlap_comm


def buffer_elements(model: ModelSpec, held: Held, sharding: Sharding, buckets: Buckets) -> float:
    """Elements that FSDP2 gathers at once in the distributed recipes; none on a single device."""
    if sharding.zero_stage < FULLY_SHARDED or sharding.layout.shard_ranks == 1:
        return 0.0
    return fsdp.buffer_elements(model, held, sharding, buckets)


ENGINE = Engine(
    name="torchtune",
    label="torchtune",
    short_label="torchtune",
    execution=Execution.model_construct(trainer="torchtune", early_stop=True),
    back_end="deepspeed",
    words=OF_MODULES | {"bf16_states", "gradient_type", "optimizer_in_backward"},
    buffer_elements=buffer_elements,
    head_sharded=False,  # every rank gets whole logits (`ColwiseParallel` with replicated output)
    selective="every_other_product",
    offloads_saved=True,  # training/_activation_offloading.py: with or without checkpoints
    loss_bytes=lambda run, size: LOSS_BYTES,
    logit_traffic_bytes=LOGIT_TRAFFIC_BYTES,
    overlaps_gradients=overlaps_gradients,
    context_exchange="all_to_all",
    norms_in_python=True,
    layer_host_s=lambda cluster, workload, sharding: LAYER_HOST_S,
    step_ends=(0.95, 1.07),
    memory_errors=(0.02, 0.06),
    runs_row=lambda framework, sharding: "torchtune" in framework,
)
