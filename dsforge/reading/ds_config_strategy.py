"""DsConfig -> what it fixes of a strategy and of a workload, as settings of a request."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dsforge.constraints import batch_problem as judged_batch
from dsforge.constraints import case_of_config
from dsforge.constraints.deepspeed import gradient_type_without_zero, offload_ratio_stage
from dsforge.ds_config import Batch, DsConfig, batch_of
from dsforge.errors import Problem
from dsforge.estimate.buckets import ENGINE, PERSISTENT_PER_HIDDEN
from dsforge.estimate.cut import stages
from dsforge.plan import Reason, Request
from dsforge.strategy import Buckets

PREFETCHED = 0.9  # of hidden x hidden: transformers' rule for `auto`
Settings = dict[tuple[str, str], object]  # part of the spec and key -> value

# DeepSpeed's and torch's names of the optimizers that have a price.
OPTIMIZERS = {"adam": "adamw"} | {
    name: name for name in ("adamw", "lion", "sgd", "adafactor", "muon")
}


def fixed_settings(config: DsConfig) -> Settings:
    """What holds on any cluster and for any model; what the file leaves open is left out."""
    stage3 = config.shards_parameters
    found: Settings = {
        ("strategy", "back_end"): "deepspeed",
        ("strategy", "zero_stage"): config.zero_stage,
        ("strategy", "hpz_partition_size"): config.hpz_partition_size if stage3 else 1,
        ("strategy", "quantized_weights"): (config.quantized_weights and stage3) or None,
        ("strategy", "quantized_gradients"): (config.quantized_gradients and stage3) or None,
        ("strategy", "bf16_states"): config.bf16_states or None,
        ("strategy", "gradient_type"): "fp32" if config.sums_in_fp32 else None,
        ("strategy", "communication_type"): "fp32" if config.sends_fp32 else None,
        ("strategy", "tensor_parallel_size"): config.tensor_parallel_size,
        ("strategy", "pipeline_parallel_size"): config.pipeline_stages,
        ("strategy", "context_parallel_size"): config.sequence_parallel_size,
        ("strategy", "loss"): "plain",  # of whatever trainer it is for
        ("strategy", "offload_optimizer"): config.offload_optimizer,
        ("strategy", "offload_ratio"): config.offload_ratio if config.offload_ratio < 1 else None,
        # below stage 3 the engine ignores it
        ("strategy", "offload_parameters"): config.offload_parameters if stage3 else "none",
        ("strategy", "recompute"): "full" if _checkpoints(config) else None,
        ("strategy", "micro_batch_size"): config.micro_batch_size,
        ("workload", "precision"): config.precision,
        ("workload", "optimizer"): OPTIMIZERS.get(config.optimizer_name),
        ("workload", "global_batch_size"): config.train_batch_size,
    }
    return {place: value for place, value in found.items() if value is not None}


def _checkpoints(config: DsConfig) -> bool:
    """Whether a pipeline recomputes each layer (`PipelineEngine.__init__`)."""
    return config.pipeline_stages > 1 and config.checkpointed_layers == 1


def derived_settings(config: DsConfig, request: Request) -> Settings:
    """What follows once model and cluster are known: buffers, and batch sizes from each other."""
    found: Settings = {}
    if config.zero_stage != 0:  # without ZeRO the engine has no buffer that a key sets
        found["strategy", "buckets"] = buckets_of(config, request.model.hidden_size).model_dump()
    batch = _batch(config, request)
    if batch is not None:
        found["strategy", "micro_batch_size"] = batch.micro
        found["workload", "global_batch_size"] = batch.total
    return found


def buckets_of(config: DsConfig, hidden_size: int) -> Buckets:
    """ZeRO's buffers as the engine gets them.

    `auto` as transformers fills it in (`trainer_config_finalize`): hidden^2, 0.9 of it for the
    prefetch, 10 x hidden for what stays whole.
    """
    square = hidden_size**2
    automatic = {
        "reduce_bucket_size": square,
        "prefetch_bucket_size": int(PREFETCHED * square),
        "persistence_threshold": PERSISTENT_PER_HIDDEN * hidden_size,
    }
    filled = {**ENGINE.model_dump(), **automatic}
    written = {k: size for k, size in config.bucket_keys._asdict().items() if size is not None}
    return Buckets(**{**filled, **written, "overlap_comm": config.overlaps})


def _batch(config: DsConfig, request: Request) -> Batch | None:
    """The batch on the ranks of a request; of accumulation alone, near the request's own batch."""
    replicas = _replicas(request)
    found, steps = batch_of(config, replicas), config.gradient_accumulation_steps
    if found is None and steps is not None:
        at_once = steps * replicas
        micro = max(1, request.workload.global_batch_size // at_once)
        return Batch(micro * at_once, micro, steps)
    return found


def _replicas(request: Request) -> int:
    """Data-parallel ranks of a request, whose sizes are the file's unless a flag won over them."""
    fixed = request.constraints
    sizes = (
        fixed.tensor_parallel_size,
        fixed.pipeline_parallel_size,
        fixed.context_parallel_size,
    )
    return max(1, request.cluster.gpus // prod(size or 1 for size in sizes))


def batch_problem(config: DsConfig, request: Request) -> Problem | None:
    """A global batch that the ranks of a request do not make (`_batch_assertion`)."""
    replicas = _replicas(request)
    found = batch_of(config, replicas)
    return None if found is None else judged_batch(found, replicas)


def unpriced_values(config: DsConfig) -> Iterator[Problem]:
    """Values of priced keys that have no price, or that the engine itself refuses."""
    if config.optimizer and config.optimizer_name not in OPTIMIZERS:
        hint = "known: " + ", ".join(sorted(set(OPTIMIZERS.values())))
        message = f"`optimizer.type` (={config.optimizer[:60]}) is not supported by the estimate"
        yield Problem("ds-config-optimizer", message, hint)
    if config.checkpointed_layers > 1 and config.pipeline_stages > 1:
        message = (
            f"`pipeline.activation_checkpoint_interval` (={config.checkpointed_layers}) is not "
            "supported by the estimate above 1"
        )
        yield Problem("ds-config-unpriced", message, "use 1, or 0")
    judged = case_of_config(config)
    refused = offload_ratio_stage(judged), gradient_type_without_zero(judged)
    yield from (problem for problem in refused if problem is not None)
    if config.offload_ratio < 1 and config.offload_optimizer == "nvme":
        key = "zero_optimization.offload_optimizer.ratio"
        message = f"`{key}` (={config.offload_ratio}) is not supported by the estimate with NVMe"
        yield Problem("ds-config-unpriced", message, "use 1, or device cpu")
    if config.bf16_masters != config.bf16_moments:
        keys = ("bf16_master_weights_and_grads", "bf16_optimizer_states")
        alone, other = keys if config.bf16_masters else keys[::-1]
        message = f"`{alone}` (=true) is not supported by the estimate without `{other}`"
        yield Problem("ds-config-unpriced", message, "set both, or neither")
    yield from _types(config)


def _types(config: DsConfig) -> Iterator[Problem]:
    """Types of gradients beside the compute precision."""
    for key, kind in (
        ("data_types.grad_accum_dtype", config.gradient_type),
        ("communication_data_type", config.communication_type),
    ):
        if kind not in (None, "fp32") and config.precision not in (None, kind):
            message = f"`{key}` (={kind}) is not supported by the estimate with {config.precision}"
            yield Problem("ds-config-unpriced", message, "remove it to estimate the rest")


def partition_problem(config: DsConfig, request: Request) -> Problem | None:
    """Layers of each stage that are not those of the price."""
    priced = _priced_layers(config, request)
    if not priced or not isinstance(config.partition, tuple) or config.partition == priced:
        return None
    message = f"`pipeline.partition` (={list(config.partition)}) is not supported by the estimate"
    return Problem("ds-config-unpriced", message, f"the estimate uses {list(priced)}")


def partition_reason(config: DsConfig, request: Request) -> Reason | None:
    """A cut that the engine makes by its own count, and that is priced as a plan cuts."""
    priced = _priced_layers(config, request)
    if not priced or isinstance(config.partition, tuple):
        return None
    message = (
        f"stages are priced with {list(priced)} decoder layers; `pipeline.partition` "
        f"(={config.partition}) lets DeepSpeed choose the stages itself"
    )
    return Reason(rule="ds-config-partition", message=message)


def _priced_layers(config: DsConfig, request: Request) -> tuple[int, ...]:
    """Decoder layers of each pipeline stage as priced; none where the file does not set them."""
    count = config.pipeline_stages
    is_set = request.constraints.pipeline_parallel_size == count > 1
    if not is_set or count > request.model.layers:
        return ()
    return tuple(stage.layers for stage in stages(request.model, count))
