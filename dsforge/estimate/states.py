"""Bytes per parameter of weights, gradients and optimizer state, by back end and ZeRO stage.

Read in DeepSpeed 0.19: gradients stay in the compute precision (`get_data_types`: accumulation
defaults to the model's type), stage 1 and 2 keep flat compute-precision weights on every rank and a
float32 partition of master weights (`stage_1_and_2.py`), stage 3 partitions the weights as well
(`stage3.py`) and keeps a second copy of them in each hpZ group (`partition_parameters.py`). At the
step each of them makes float32 gradients of its own partition; stage 3 one sub-group at a time,
stage 0 two copies of all of them.
Megatron accumulates gradients in float32 (`--accumulate-allreduce-grads-in-fp32` follows from
bf16) and its distributed optimizer shards master weights and moments.
"""

from __future__ import annotations

from math import ceil, floor
from typing import NamedTuple

from dsforge.estimate.activations import FLOAT_BYTES, TokenBytes, element_bytes, token_bytes
from dsforge.estimate.buckets import size_buckets
from dsforge.estimate.cut import Stage, kinds_of
from dsforge.estimate.optimizer_bytes import (
    moment_bytes,
    optimizer_bytes_per_parameter,
    paged_bytes_per_parameter,
    share_of_roots,
    stepped_bytes,
)
from dsforge.estimate.quantised import packed_bytes, replicated_scale_bytes, stored_bytes
from dsforge.estimate.replicas import replicas
from dsforge.estimate.shard import RankParameters, rank_parameters
from dsforge.estimate.torch_shards import shard_gradient_bytes, trained_bytes
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Buckets, Strategy
from dsforge.traced import Traced, maximum, minimum, named

READ = "from the source of the engine: stage_1_and_2.py, stage3.py, Megatron's optimizer"
WEIGHTS = f"on the device, {READ}"
GRADIENTS = f"on the device, {READ}, unless the states are offloaded"
OPTIMIZER = f"on the device, {READ}; master weights and moments that are not offloaded"
STEP = "of the type that the optimizer steps in; they exist while it does"
FSDP1 = "FSDP1 pins a gradient as long as each shard, frozen or not (_flat_param.py, `_cpu_grad`)"
TILE = "master weights, or their gradients, of one sub-group of the optimizer"
REFERENCE = "a frozen copy of the weights that the loss compares with"
SAME_EXPERTS = "ranks that hold the same experts"


class States(NamedTuple):
    """Bytes on one rank's device, and what was moved off it (one rank's share)."""

    weights: float
    gradients: float
    optimizer: float
    step_gradients: float  # copies that exist only while the optimizer steps
    host: float  # offloaded bytes in RAM
    pinned: tuple[float, ...]  # the page-locked buffers among them
    nvme: float


class Shares(NamedTuple):
    """Over how many ranks each kind of parameter is sharded by ZeRO."""

    shared: int
    experts: int

    def of(self, parameters: RankParameters) -> float:
        """Elements of this rank's shard of all parameters."""
        shard = parameters.shared / self.shared + parameters.experts / self.experts
        return named(shard, "shard_parameters", "elements")

    def of_stored(self, parameters: RankParameters) -> float:
        """Elements of the compute precision that this rank's shard takes, packed ones by bytes."""
        return self.of(parameters) - parameters.packed_away / self.shared

    def of_trainable(self, parameters: RankParameters) -> float:
        """Elements of this rank's shard of the trainable parameters."""
        experts = parameters.trainable_experts / self.experts
        shard = parameters.trainable_shared / self.shared + experts
        return named(shard, "trained_shard_parameters", "elements")


class Load(NamedTuple):
    """What a rank of one kind of pipeline stage carries."""

    stage: Stage
    held: RankParameters
    buckets: Buckets
    kept: States
    tokens: TokenBytes


def loads(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> tuple[Load, ...]:
    """The loads of every kind of stage that may be the fullest; one where there is no pipeline.

    One file sets the engine's buckets for all ranks: by the stage with the most parameters.
    """
    found = [stage.named(model.depth) for stage in kinds_of(model, strategy)]
    layout, copies = strategy.layout, strategy.copies_ends
    apart = strategy.runs_as.expert_modules
    held = [
        rank_parameters(model, workload, layout, s, copies_ends=copies, expert_modules=apart)
        for s in found
    ]
    most = max(parameters.stored for parameters in held)
    buckets = size_buckets(model, cluster, strategy, most)
    tokens, on_cpu = token_bytes(model, workload, strategy), cluster.gpu.is_cpu
    kept = [states(workload, strategy, rank, buckets, on_cpu=on_cpu) for rank in held]
    return tuple(
        Load(stage, parameters, buckets, _with_names(own), tokens)
        for stage, parameters, own in zip(found, held, kept, strict=True)
    )


def shares(strategy: Strategy) -> Shares:
    """The shard groups: data x context ranks, for experts only those that hold the same ones.

    FSDP without sharding (`NO_SHARD`, `zero_stage` 0) replicates.
    """
    ranks = strategy.layout.shard_ranks
    ranks = min(ranks, strategy.runs_as.shard_group or ranks)
    if strategy.zero_stage == 0 and strategy.engine.states == "fp32_shards":
        ranks = 1
    ranks = named(ranks, "shard_ranks", "ranks", "data x context parallel ranks")
    experts = ranks // strategy.layout.expert_parallel_size
    return Shares(ranks, named(maximum(1, experts), "expert_shard_ranks", "ranks", SAME_EXPERTS))


def _with_names(found: States) -> States:
    """The states of a rank, with a name for each part."""
    if not isinstance(found.weights, Traced):
        return found
    return found._replace(
        weights=named(found.weights, "kept_weights", "bytes", WEIGHTS),
        gradients=named(found.gradients, "kept_gradients", "bytes", GRADIENTS),
        optimizer=named(found.optimizer, "kept_optimizer_state", "bytes", OPTIMIZER),
        step_gradients=named(found.step_gradients, "step_gradients", "bytes", STEP),
        host=named(found.host, "offloaded_bytes", "bytes", "states that a rank keeps in RAM"),
        nvme=named(found.nvme, "swapped_bytes", "bytes", "states that a rank keeps on disk"),
    )


def states(
    workload: Workload,
    strategy: Strategy,
    parameters: RankParameters,
    buckets: Buckets,
    *,
    on_cpu: bool = False,
) -> States:
    """Bytes of the model's states on one rank, whose device is a CPU or not."""
    size, stage, run = element_bytes(workload), strategy.zero_stage, strategy.runs_as
    group = shares(strategy)
    shard, trainable = group.of(parameters), group.of_trainable(parameters)
    per_parameter = optimizer_bytes_per_parameter(workload, strategy)
    updated = trainable if stage >= 1 else parameters.trainable
    optimizer, paged = per_parameter * updated, paged_bytes_per_parameter(workload, run) * updated
    optimizer = named(optimizer, "optimizer_bytes", "bytes", "sharded from ZeRO stage 1 on")
    weights = size * (shard if stage == FULLY_SHARDED else parameters.total)
    weights -= _saved_by_quantising(workload, strategy, parameters, group)
    reference = _reference_weights(workload, strategy, parameters, weights)
    if strategy.hpz_partition_size > 1:
        weights += size * parameters.stored / strategy.hpz_partition_size
    if not strategy.engine.has_zero_stages:
        moments = moment_bytes(workload, run) * updated
        roots = 0.0 if on_cpu else moments * share_of_roots(workload)
        whole = _Whole(weights, optimizer, moments, roots, reference, paged)
        return _of_torch(workload, strategy, parameters, whole)
    weights += reference
    wide, flat = run.gradients == "fp32" and size < FLOAT_BYTES, sums_beside(workload, strategy)
    summed = (FLOAT_BYTES if wide else size) + (size if flat else 0)
    gradients = summed * (trainable if stage >= GRADIENTS_SHARDED else parameters.trainable)
    step = 0.0 if flat else _step_gradients(workload, strategy, updated, buckets)
    on_device = States(weights, gradients, optimizer, step, 0.0, (), 0.0)
    tiles, offloaded = tiles_of(strategy, trainable, buckets)
    waiting = FLOAT_BYTES if wide and stage == FULLY_SHARDED else size
    stays = stage < GRADIENTS_SHARDED or (wide and stage == GRADIENTS_SHARDED)
    stepped, stay = stepped_bytes(workload, run), gradients if stays else 0.0
    sizes = _Sizes(trainable, waiting, stepped, tiles, offloaded, stay)
    return _paged(_offloaded(on_device, strategy, sizes), paged)


def _of_torch(
    workload: Workload, strategy: Strategy, parameters: RankParameters, whole: _Whole
) -> States:
    """The states of an engine without ZeRO stages, with a reference, in RAM or with paged moments.

    FSDP shards the reference as it does the weights; its offload moves pages with all the rest.
    """
    found, reference = _without_zero(workload, strategy, parameters, whole), whole.reference
    if reference and strategy.engine.states == "fp32_shards":
        reference = found.weights
    found = found._replace(weights=found.weights + reference)
    if strategy.offload_parameters == "cpu":
        return _in_ram(found, strategy, replicated_scale_bytes(workload, parameters.quantised))
    return _paged(found, whole.paged)


def _reference_weights(
    workload: Workload, strategy: Strategy, parameters: RankParameters, weights: float
) -> float:
    """Bytes of a frozen reference: the policy's weights without adapters, sharded as they are.

    Below stage 3 it is whole on each rank; under stage 3 it has partitions of its own
    (TRL `models/utils.py`, `prepare_deepspeed`).
    """
    if not workload.has_reference_model:
        return 0.0
    adapters, group = 0.0, shares(strategy)
    if workload.method == "lora":
        sharded = strategy.zero_stage == FULLY_SHARDED
        held = group.of_trainable(parameters) if sharded else parameters.trainable
        adapters = element_bytes(workload) * held
    return named(weights - adapters, "reference_weights", "bytes", REFERENCE)


def _paged(found: States, paged: float) -> States:
    """The states with paged moments in RAM, where they are as soon as the device is full.

    torch's counters do not know them: they are managed memory of CUDA.
    """
    return found._replace(optimizer=found.optimizer - paged, host=found.host + paged)


def _saved_by_quantising(
    workload: Workload, strategy: Strategy, parameters: RankParameters, group: Shares
) -> float:
    """Bytes that quantised matrices take less than those of the compute precision.

    ZeRO stage 3 shards the packed parameter; its scales are attributes of a module's weight, not
    parameters, and stay whole on each rank (bitsandbytes `functional.QuantState`).
    """
    lora, size = workload.lora, element_bytes(workload)
    if lora is None or not parameters.quantised:
        return 0.0
    stored, wider = stored_bytes(workload), 0.0
    if lora.upcast:  # to float32: what is frozen and not quantised
        wider = FLOAT_BYTES - size
    frozen = parameters.total - parameters.quantised - parameters.trainable
    if strategy.zero_stage != FULLY_SHARDED:
        return (size - stored) * parameters.quantised - wider * frozen
    packed, ranks = packed_bytes(lora), group.shared
    scales = (stored - packed) * parameters.quantised
    return (size - packed) * parameters.quantised / ranks - scales - wider * frozen / ranks


def _step_gradients(
    workload: Workload, strategy: Strategy, elements: float, buckets: Buckets
) -> float:
    """Bytes of the gradients that exist only while the optimizer steps; it updates `elements`.

    Stages 1 to 3 make one copy of a partition's, or of a sub-group's, in the type that is stepped.
    Stage 0 casts each gradient of 16 bits, then flattens all of them (fp16/fused_optimizer.py,
    `FP16_Optimizer.step`, which bf16 uses too): both copies exist at once.
    """
    size, stepped = element_bytes(workload), stepped_bytes(workload, strategy.runs_as)
    if strategy.zero_stage == 0:
        return 2 * stepped * elements if stepped > size else 0.0
    if strategy.zero_stage == FULLY_SHARDED:
        elements = minimum(elements, buckets.sub_group_size)
    return stepped * elements


def tiles_of(strategy: Strategy, trainable: float, buckets: Buckets) -> tuple[int, int]:
    """Sub-groups of the optimizer on a rank, and how many of them are offloaded.

    Stage 3 keeps the first `int((1 - ratio) * tiles)` on the device
    (`_create_fp32_partitions`), so a rank with one tile offloads it whatever the ratio.
    """
    sharded = strategy.zero_stage == FULLY_SHARDED
    tiles = maximum(1, ceil(trainable / buckets.sub_group_size)) if sharded else 1
    tiles = named(tiles, "tiles", "", "sub-groups of the optimizer on a rank")
    return tiles, tiles - floor((1 - strategy.runs_as.offload_ratio) * tiles)


class _Sizes(NamedTuple):
    """What offload moves: elements, bytes of each on the way, tiles, and gradients that stay."""

    trainable: float
    size: int
    stepped: int  # bytes of a gradient in the step
    tiles: int
    offloaded_tiles: int
    gradients: float

    @property
    def share(self) -> float:
        """Of the optimizer, what is offloaded."""
        return self.offloaded_tiles / self.tiles


def sums_beside(workload: Workload, strategy: Strategy) -> bool:
    """Whether float32 sums of all gradients stay beside those of backward, and the step uses them.

    `_do_optimizer_sanity_check` hands bf16 with float32 sums to `BF16_Optimizer` under ZeRO stage 1
    without offload; it keeps both kinds whole on every rank, from the first step to the last.
    """
    wide = strategy.engine.has_zero_stages and strategy.runs_as.gradients == "fp32"
    kept = strategy.zero_stage == 1 and strategy.offload_optimizer == "none"
    return wide and kept and workload.precision == "bf16"


class _Whole(NamedTuple):
    """Bytes of weights in the compute type, and of what the optimizer keeps and makes of them."""

    weights: float
    optimizer: float  # master weights and moments
    moments: float
    roots: float  # of second moments, which exist in the step where torch's default makes them
    reference: float  # frozen weights that the loss compares with
    paged: float  # moments that may be in RAM


def _without_zero(
    workload: Workload, strategy: Strategy, parameters: RankParameters, parts: _Whole
) -> States:
    """The states of engines without ZeRO stages: gradients, float32 shards or float32 replicas.

    A float32 shard is weight and master weight in one, unless the model trains in bf16; what is
    gathered, or cast, is a buffer, and frozen weights stay in the type in which they are stored.
    Where each weight is stepped in backward, only the largest gradient is ever alive: left out.
    """
    run, group = strategy.runs_as, shares(strategy)
    trainable = group.of_trainable(parameters)
    if strategy.engine.states == "fp32_shards":
        stored = trained_bytes(workload, strategy) * trainable
        stored += _frozen_shards(workload, parameters, group)
        gradients = shard_gradient_bytes(workload, strategy, parameters.trainable, trainable)
        return States(stored, gradients, parts.moments, 0.0, 0.0, (), 0.0)
    if strategy.engine.states == "fp32_replicas":
        trained = 1.0 * parameters.trainable
        weights, gradients = replicas(workload, strategy, parts.weights, trained)
        step = parts.roots if run.software == "others" else 0.0  # who mostly leave the default
        return States(weights, gradients, parts.moments, step, 0.0, (), 0.0)
    size = FLOAT_BYTES if run.gradients == "fp32" else element_bytes(workload)
    summed = trainable if strategy.zero_stage >= GRADIENTS_SHARDED else parameters.trainable
    gradients = 0.0 if run.fused_backward else size * summed
    return States(parts.weights, gradients, parts.optimizer, 0.0, 0.0, (), 0.0)


def _frozen_shards(workload: Workload, parameters: RankParameters, group: Shares) -> float:
    """Bytes of a rank's shard of what does not train, quantised matrices in their bits."""
    size = element_bytes(workload)
    frozen = size * (group.of(parameters) - group.of_trainable(parameters))
    if not parameters.quantised:
        return frozen
    whole = replicated_scale_bytes(workload, parameters.quantised)
    away = (size - stored_bytes(workload)) * parameters.quantised + whole
    return frozen - away / group.shared + whole


def _in_ram(found: States, strategy: Strategy, scales: float) -> States:
    """The states where FSDP keeps shards of weights, gradients and optimizer in RAM."""
    shards = found.weights - scales
    moved = shards + found.gradients + found.optimizer
    idle = 0.0  # of FSDP1: gradients of frozen weights
    if strategy.has_flat_parameters:
        idle = named(maximum(0.0, shards - found.gradients), "frozen_gradients", "bytes", FSDP1)
    return States(scales, 0.0, 0.0, 0.0, moved + idle, (shards,), 0.0)


def _offloaded(on_device: States, strategy: Strategy, sizes: _Sizes) -> States:
    """The states after offload.

    The engine pins master weights and their gradients (stage 3: tile by tile), and one buffer:
    updated weights in the compute precision (stage 1, 2) or gradients as summed (stage 3). Float32
    sums of stage 2 stay on the device (`ipg_epilogue`).
    """
    result = on_device
    if strategy.offload_optimizer != "none":
        gradient, copies = 1.0 * sizes.stepped * sizes.trainable, sizes.size * sizes.trainable
        copies = named(copies, "copied_bytes", "bytes", "updated weights, or gradients as summed")
        moved = result.optimizer + gradient
        to_disk = strategy.offload_optimizer == "nvme"
        moved, kept = sizes.share * moved, 1 - sizes.share
        tile = named(gradient / sizes.tiles, "tile_bytes", "bytes", TILE)
        tiles = () if to_disk else (tile,) * (2 * sizes.offloaded_tiles)
        result = result._replace(
            gradients=sizes.gradients + kept * gradient,
            optimizer=kept * result.optimizer,
            step_gradients=0.0,
            host=copies + (0.0 if to_disk else moved),
            pinned=(copies, *tiles),
            nvme=moved if to_disk else 0.0,
        )
    if strategy.offload_parameters == "cpu":
        pinned = (*result.pinned, result.weights)
        result = result._replace(host=result.host + result.weights, pinned=pinned, weights=0.0)
    elif strategy.offload_parameters == "nvme":
        result = result._replace(nvme=result.nvme + result.weights, weights=0.0)
    return result
