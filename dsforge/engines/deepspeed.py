"""DeepSpeed 0.19: ZeRO stages, reduce buckets, AutoTP, Ulysses; `dsforge train` runs on it."""

from __future__ import annotations

from dsforge.engines.engine import OF_MODULES, Engine, Held, Messages, Sharding
from dsforge.execution import Buckets, Execution, GradientType
from dsforge.layout import Layout
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.traced import Constant, maximum, minimum, named
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
EXPERT_MODULES = 5  # of an expert by itself: three matrices, an activation, what holds them
ADAPTER_MODULES = 28  # more under LoRA: two matrices, a dropout and a holder for each of the seven
# A stage 3 message goes around a ring of all ranks. 175 B on 128 to 1,024 A100 (rows ds-azure, 8 in
# a node): each doubling adds what 4 messages a layer and pass and 14 us a rank take. Inside a node
# NCCL's own model has 3.4 us for a hop (src/graph/tuning.cc: NVLink, ring, Simple).
HOP_S = Constant(3.4e-6, "hop_s", "s", "NCCL, src/graph/tuning.cc: a hop over NVLink")
FAR_HOP_S = Constant(90e-6, "far_hop_s", "s", "engines/deepspeed.py: of each node, rows ds-azure")
# The next matrix is fetched while one is at work, no more: the same rows, compute 3 to 110 s.
NEVER_HIDDEN = Constant(0.7, "stage3_never_hidden", "share", "engines/deepspeed.py: rows ds-azure")
MATRICES = {True: 7, False: 4}  # of a layer, gated MLP and joint query, key, value or not
GATHERED = "gathered at once under ZeRO stage 3: live and prefetched parameters"
PERSISTENT = "norms, which are not sharded under ZeRO stage 3"
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


def layer_messages(model: ModelSpec, elements: float, buckets: Buckets) -> Messages:
    """Matrices, as many at once as a prefetch bucket holds; gradients fill a reduce bucket.

    What recomputation has gathered stays for backward where it is used within the reuse distance
    (`partitioned_param_coordinator.py`, `__params_to_release`): of a layer, its rest twice.
    """
    most = MATRICES[model.gated_mlp]
    layer = elements / model.layers
    gathers = minimum(most, maximum(1.0, layer / maximum(1, buckets.prefetch_bucket_size)))
    scatters = minimum(most, layer / buckets.reduce_bucket_size)
    kept = buckets.max_reuse_distance / (2.0 * layer)
    return Messages(
        named(gathers, "layer_gathers", "messages", "of a layer in one pass, under stage 3"),
        named(scatters, "layer_scatters", "messages", "of a layer, under stage 3"),
        named(maximum(0.0, 1 - kept), "gathered_again", "share", "beyond the reuse distance"),
        HOP_S,
        FAR_HOP_S,
    )


def loss_bytes(run: Execution, size: int) -> int:
    """What the loss keeps beside a logit; a fused kernel its gradient alone, in the same type."""
    return size if run.loss == "fused_cross_entropy" else LOSS_BYTES


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
    if sharding.zero_stage != FULLY_SHARDED:
        return launches_s(workload)
    modules = LAYER_MODULES + (ADAPTER_MODULES if workload.method == "lora" else 0)
    return launches_s(workload) + PASSES * modules * HOOK_S


def launches_s(workload: Workload) -> float:
    """Launches of the kernels of a Hugging Face layer, in whichever way it is sharded."""
    launches = LAYER_LAUNCHES + (ADAPTER_LAUNCHES if workload.method == "lora" else 0)
    return PASSES * launches * LAUNCH_S


def expert_hooks_s(sharding: Sharding) -> float:
    """Hooks of the modules of one expert in one pass, where each expert has its own."""
    return EXPERT_MODULES * HOOK_S if sharding.zero_stage == FULLY_SHARDED else 0.0


def runs_row(framework: str, sharding: str) -> bool:
    """DeepSpeed itself, and stage 3 of Megatron-DeepSpeed."""
    if "megatron" in framework:
        return "deepspeed" in framework and "zero-3" in sharding
    return "deepspeed" in framework


def kept_scores(framework: str, precision: str) -> bool:
    """Runs in fp16 are from before fused attention, or on cards that have none."""
    return precision == "fp16"


ENGINE = Engine(
    name="deepspeed",
    label="DeepSpeed",
    short_label="DeepSpeed",
    execution=Execution.model_construct(trainer="deepspeed"),
    back_end="deepspeed",
    words=OF_MODULES
    | {"bf16_states", "buckets", "communication_type", "gradient_type", "hpz_partition_size"}
    | {"loads_whole"}
    | {"offload_ratio", "quantized_gradients", "quantized_weights"},
    states="zero",
    copies_ends=True,  # AutoTP leaves `nn.Embedding` and norms as they are
    head_sharded=False,  # AutoTP gathers the logits
    buffer_elements=buffer_elements,
    combines_context=False,  # Ulysses takes whole models; AutoTP and the pipeline go together
    sends_parts=False,  # train/parallel/pipeline_model.py, `pipeline_settings`
    chunks_loss=True,
    loss_bytes=loss_bytes,
    logit_traffic_bytes=LOGIT_TRAFFIC_BYTES,
    head_gradient_in_buffer=False,
    layer_messages=layer_messages,
    never_hidden=NEVER_HIDDEN,
    gradient_type=gradient_type,
    overlaps_gradients=overlaps_gradients,
    context_exchange="all_to_all",  # Ulysses (Jacobs et al. 2023)
    norms_in_python=True,  # transformers, `LlamaRMSNorm`
    layer_host_s=layer_host_s,
    expert_hooks_s=expert_hooks_s,
    runs_row=runs_row,
    kept_scores=kept_scores,
)
