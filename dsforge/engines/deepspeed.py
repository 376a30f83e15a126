"""DeepSpeed 0.19: ZeRO stages, reduce buckets, AutoTP, Ulysses; `dsforge train` runs on it."""

from __future__ import annotations

from dsforge.engines.engine import Engine, Held, Sharding
from dsforge.execution import Buckets, Execution, GradientType
from dsforge.layout import Layout
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.traced import minimum, named
from dsforge.zero_stages import FULLY_SHARDED

# Host time of one kernel: 9 us of Python and dispatch (benchmarks/host_time.py), 5 of the driver.
LAUNCH_S = 14e-6
# Kernels of a Hugging Face decoder layer in one pass, of which backward is two; and more of them
# under LoRA, for each of its seven matrices (tests/engine/test_kernels.py).
LAYER_LAUNCHES = 37
ADAPTER_LAUNCHES = 42
PASSES = 3  # forward, and backward as two
# Stage 3 runs Python before and after each module, to fetch and release its weights.
HOOK_S = 0.23e-3  # of one module in one pass, beside its kernels (LlamaFactory#5014: at most 0.5)
LAYER_MODULES = 13  # of a Hugging Face decoder layer: seven matrices, norms, what holds them
ADAPTER_MODULES = 28  # more under LoRA: two matrices, a dropout and a holder for each of the seven
GATHERED = "whole at once under ZeRO stage 3: live and prefetched ones"
PERSISTENT = "norms, which stay whole under ZeRO stage 3"
LOSS_BYTES = 12  # float32 copy, log-softmax and its gradient (torch's cross entropy)
LOGIT_TRAFFIC_BYTES = 68.0  # Hugging Face's copies; fitted (`estimate/rates.py`)


def buffer_elements(model: ModelSpec, held: Held, sharding: Sharding, buckets: Buckets) -> float:
    """Reduce buckets; under stage 3 also gathered, prefetched and persistent parameters."""
    alone, stage = sharding.layout.shard_ranks == 1, sharding.zero_stage
    if stage == 0 or (alone and stage < FULLY_SHARDED):
        return 0.0
    reduce = buckets.reduce_bucket_size * (2 if buckets.overlap_comm else 1)
    if stage < FULLY_SHARDED:
        return 1.0 * reduce
    gathered = buckets.max_live_parameters + buckets.prefetch_bucket_size
    persistent = model.norms * model.hidden_size * model.depth
    persistent = named(persistent, "persistent_parameters", "elements", PERSISTENT)
    whole = named(minimum(held.total, gathered), "gathered_parameters", "elements", GATHERED)
    return reduce + whole + persistent


def gradient_type(run: Execution, sharding: Sharding) -> GradientType:
    """Float32 sums are cast to `communication_data_type` before they are sent.

    That is the compute precision unless it is set, and float32 under sequence parallelism
    (engine.py, `communication_data_type`, `seq_parallel_communication_data_type`).
    """
    return "fp32" if sharding.layout.context_parallel_size > 1 else run.reduced


def overlaps_gradients(layout: Layout, buckets: Buckets) -> bool:
    """Reduction beside backward: `overlap_comm`."""
    return buckets.overlap_comm


def layer_host_s(cluster: ClusterSpec, workload: Workload, sharding: Sharding) -> float:
    """Launches of a layer's kernels; under stage 3 the hooks of its modules too."""
    launches, modules = LAYER_LAUNCHES, LAYER_MODULES
    if workload.method == "lora":
        launches, modules = launches + ADAPTER_LAUNCHES, modules + ADAPTER_MODULES
    hooks_s = modules * HOOK_S if sharding.zero_stage == FULLY_SHARDED else 0.0
    return PASSES * (launches * LAUNCH_S + hooks_s)


def runs_row(framework: str, sharding: str) -> bool:
    """DeepSpeed itself, and stage 3 of Megatron-DeepSpeed."""
    if "megatron" in framework:
        return "deepspeed" in framework and "zero-3" in sharding
    return "deepspeed" in framework


ENGINE = Engine(
    name="deepspeed",
    label="DeepSpeed",
    short_label="DeepSpeed",
    execution=Execution.model_construct(trainer="deepspeed"),
    back_end="deepspeed",
    states="zero",
    head_sharded=False,  # AutoTP leaves the head whole
    buffer_elements=buffer_elements,
    combines_splits=False,  # PipelineModule takes layers, AutoTP and Ulysses whole models
    chunks_loss=True,
    loss_bytes=lambda run, size: LOSS_BYTES,
    logit_traffic_bytes=LOGIT_TRAFFIC_BYTES,
    head_gradient_in_buffer=False,
    gradient_type=gradient_type,
    overlaps_gradients=overlaps_gradients,
    context_exchange="all_to_all",  # Ulysses (Jacobs et al. 2023)
    norms_in_python=True,  # transformers, `LlamaRMSNorm`
    layer_host_s=layer_host_s,
    runs_row=runs_row,
)
