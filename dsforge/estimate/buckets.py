"""Sizes of ZeRO's buffers and of the NVMe queue, from the model and the disk.

The engine's defaults (5e8 elements) cost more memory than a small model's own states, and fill a
fast link no better than a bucket of 50 MB does. The ledger and the rendered ds_config must name the
same sizes, so they are decided here, once, and travel in the plan. All sizes are integers: the
engine refuses the fraction that `0.9 * hidden^2` often is.
"""

from __future__ import annotations

from dsforge.ds_config.config import BucketKeys
from dsforge.estimate.recurrence import in_width
from dsforge.specs import ClusterSpec, ModelSpec, NvmeSpec
from dsforge.strategy import FULLY_SHARDED, AioSettings, Buckets, Strategy
from dsforge.traced import TRACED, WholeConstant, maximum, minimum, named, plain

SIZED = "estimate/buckets.py"
LARGEST_BUCKET = WholeConstant(
    200_000_000, "largest_bucket", "elements", f"{SIZED}: above 400 MB bandwidth no longer grows"
)
# The engine's defaults (`runtime/zero/config.py`), for runs that others have configured. Overlap is
# its default under ZeRO stage 3 only, but published runs switch it on, as the examples of DeepSpeed
# and Hugging Face do: without it the worst tenth of the rows of "stas" is 20.6 % off, not 19.5 %.
# Of a ds_config that is at hand the file decides (`reading/ds_config.py`).
ENGINE = Buckets(**BucketKeys()._asdict(), overlap_comm=True)
BUSY_BUCKET = WholeConstant(
    50_000_000, "busy_bucket", "elements", f"{SIZED}: 100 MB saturate any link despite latency"
)
PERSISTENT_PER_HIDDEN = WholeConstant(
    10, "persistent_per_hidden", "", f"{SIZED}: the engine's own auto rule"
)
SUB_GROUP = 1_000_000_000
LARGEST_LIVE = WholeConstant(
    1_000_000_000, "largest_live", "elements", f"{SIZED}: the engine's default"
)
AIO_BLOCK_BYTES = 1 << 20
FAST_NVME_BYTES_PER_S = 3e9
MEAN, WHOLE = "an average layer", "norms and biases are not sharded: the engine's own auto rule"
NINE_TENTHS = "nine tenths of a layer"


def largest_matrix(model: ModelSpec) -> int:
    """Elements of the largest dense matrix: the largest single gather."""
    embedding = model.vocab_size * model.embedding_size
    largest = maximum(embedding, model.hidden_size * model.ffn_hidden_size)
    if model.recurrent is not None:
        largest = maximum(largest, model.hidden_size * in_width(model.recurrent))
    return named(largest, "largest_gather", "elements")


def layer_experts(model: ModelSpec) -> int:
    """Elements of all experts of a layer: one module, so ZeRO-3 gathers them at once.

    Without room for them and for what is prefetched beside them the engine loses its trace under
    adapters: `tracing error` (`partitioned_param_coordinator.fetch_sub_module`). 0 without experts.
    """
    experts = 0 if model.moe is None else _matrices(model) * _expert_bank(model)
    return named(experts, "layer_experts", "elements")


def _expert_bank(model: ModelSpec) -> int:
    """Elements of one matrix of all experts of a layer, which transformers keeps as one tensor."""
    moe = model.moe
    return 0 if moe is None else moe.experts * model.hidden_size * moe.expert_ffn_hidden_size


def _matrices(model: ModelSpec) -> int:
    """Matrices of an MLP: gate, up and down, or up and down."""
    return 3 if model.gated_mlp else 2


def _even(elements: float) -> int:
    """An even count within the limits; the engine aligns all-gather buckets to two elements."""
    return round(minimum(elements, LARGEST_BUCKET)) // 2 * 2


def size_buckets(
    model: ModelSpec, cluster: ClusterSpec, strategy: Strategy, parameters: int
) -> Buckets:
    """Buffer sizes for one strategy. `parameters` are the elements that one rank would hold whole.

    Reduce bucket: 100 MB, at least hidden^2 (the engine's "auto" rule), at most the whole model.
    The link does not count: a plan that fits must not grow with a faster one.
    """
    chosen = strategy.runs_as.buckets
    if chosen != "sized":
        return ENGINE if chosen == "engine" else chosen
    wanted = maximum(model.hidden_size**2, BUSY_BUCKET)
    wanted = named(wanted, "wanted_bucket", "elements", "100 MB, at least the engine's auto rule")
    bucket = minimum(_even(wanted), maximum(2, (parameters + 1) // 2 * 2))
    bucket = named(
        bucket, "reduce_bucket_size", "elements", "an even number, at most all parameters"
    )
    layer = named(maximum(parameters // model.depth, 1), "layer_elements", "elements", MEAN)
    live = maximum(minimum(parameters, _live(model, layer, bucket)), 1)
    live = named(live, "max_live_parameters", "elements", "at most all parameters")
    prefetch = minimum(bucket, maximum(1, 9 * layer // 10))
    traced = bucket.__class__ is TRACED  # of no type that pydantic knows
    make = Buckets.model_construct if traced else Buckets
    return make(
        reduce_bucket_size=bucket,
        allgather_bucket_size=bucket,
        prefetch_bucket_size=named(prefetch, "prefetch_bucket_size", "elements", NINE_TENTHS),
        persistence_threshold=named(
            PERSISTENT_PER_HIDDEN * model.hidden_size, "persistence_threshold", "elements", WHOLE
        ),
        max_live_parameters=live,
        max_reuse_distance=live,
        sub_group_size=SUB_GROUP if strategy.offload_optimizer != "nvme" else SUB_GROUP // 10,
        overlap_comm=strategy.layout.pipeline_parallel_size == 1 and not cluster.gpu.is_cpu,
    )


def is_own_config(
    model: ModelSpec, cluster: ClusterSpec, strategy: Strategy, parameters: int
) -> bool:
    """Whether the buckets are those that dsforge writes for the strategy.

    A config that somebody else wrote has the engine's own sizes or round ones.
    """
    run = strategy.runs_as
    if isinstance(run.buckets, str):
        return run.buckets == "sized"
    sized = strategy.model_copy(update={"execution": run.model_copy(update={"buckets": "sized"})})
    own = size_buckets(model, cluster, sized, plain(parameters))
    gathers = strategy.zero_stage == FULLY_SHARDED
    return run.buckets.reduce_bucket_size == own.reduce_bucket_size and (
        not gathers or run.buckets.prefetch_bucket_size == own.prefetch_bucket_size
    )


def _live(model: ModelSpec, layer: int, bucket: int) -> int:
    """Four layers; all experts of one, and what is prefetched or reduced beside them."""
    beside = maximum(2 * largest_matrix(model), 2 * bucket)
    live = maximum(minimum(4 * layer, LARGEST_LIVE), beside + layer_experts(model))
    return named(live, "wanted_live_parameters", "elements")


def size_aio(model: ModelSpec, cluster: ClusterSpec, strategy: Strategy) -> AioSettings | None:
    """Queue and buffer sizes of ZeRO-Infinity; none where nothing is on NVMe."""
    on_disk = "nvme" in (strategy.offload_optimizer, strategy.offload_parameters)
    if not on_disk or cluster.nvme is None:
        return None
    # Gate and up are one tensor of all experts.
    tensor = max(largest_matrix(model), (_matrices(model) - 1) * _expert_bank(model))
    largest = -(-tensor // strategy.layout.shard_ranks)
    return AioSettings(
        block_size=AIO_BLOCK_BYTES,
        queue_depth=_queue_depth(cluster.nvme),
        intra_op_parallelism=max(1, min(8, cluster.cpu_cores // (2 * cluster.gpus_per_node))),
        optimizer_buffer_count=5,  # parameter, gradient, two moments, and one in flight
        parameter_buffer_count=5,
        parameter_buffer_size=_aligned(largest),
        max_in_cpu=1_000_000_000,
    )


def _queue_depth(nvme: NvmeSpec) -> int:
    """Deeper queues for faster disks."""
    return 32 if nvme.read_bytes_per_s > FAST_NVME_BYTES_PER_S else 8


def _aligned(elements: int) -> int:
    """Elements rounded up to the block that the disk reads at once."""
    block = AIO_BLOCK_BYTES // 2
    return -(-elements // block) * block
