"""What DeepSpeed's engine holds on one rank between its phases, to the byte.

`states` prices a strategy for the planner, with fractions of parameters and for the fullest rank;
this is the same engine tensor by tensor and rank by rank, with every alignment and padding. It is
read in DeepSpeed 0.19.8 and proved against the engine itself (tests/engine/test_exact.py). Adam's
two moments; `contiguous_gradients` (the default); gradients accumulate in the compute precision
(the default); offload pins its buffers, which changes where they lie and not how large they are.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dsforge.strategy import FULLY_SHARDED, ZeroStage

Moment = Literal["init", "accumulation", "forward", "backward", "step"]

MASTER = 4  # bytes of a float32 weight
MOMENTS = 8  # and of Adam's two moments of it
ALIGNMENT = 2  # elements per rank: nccl_start_alignment_factor, stage_1_and_2.py:369
FLAG = 4  # FusedAdam's overflow flag, fused_adam.py:96
NORM = 4  # the gradient norm that stages 1 and 2 keep, stage_1_and_2.py:3071
NORM_3 = 8  # in double, stage3.py:2897
OVERFLOW_3 = 1  # inf_or_nan_tracker, stage3.py:335


class Tensor(NamedTuple):
    """One parameter tensor of the model, in the model's order."""

    elements: int
    trainable: bool = True
    in_backward: bool = True  # whether a later gradient needs it, so that ZeRO 3 keeps it for then


class Held(NamedTuple):
    """Bytes by owner at one place."""

    parameter: int = 0
    gradient: int = 0
    optimizer_state: int = 0
    buffer: int = 0

    @property
    def total(self) -> int:
        """Bytes of all owners."""
        return sum(self)


class Holding(NamedTuple):
    """What one rank holds on its device and in host memory."""

    device: Held
    host: Held


class Engine(NamedTuple):
    """What decides the engine's states on one rank. Sizes in elements, as in a ds_config."""

    tensors: tuple[Tensor, ...]
    element_bytes: int  # of the compute precision
    zero_stage: ZeroStage
    world_size: int  # ranks that ZeRO shards over
    rank: int = 0
    offload_optimizer: bool = False  # to the CPU
    accumulates: bool = False  # more than one micro step
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    persistence_threshold: int = 100_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    prefetch_bucket_size: int = 50_000_000
    sub_group_size: int = 1_000_000_000

    @property
    def trained(self) -> tuple[int, ...]:
        """Elements of the trainable tensors."""
        return tuple(t.elements for t in self.tensors if t.trainable)

    @property
    def mixed(self) -> bool:
        """Whether the weights are in 16 bits."""
        return self.element_bytes < MASTER


def resident(engine: Engine, moment: Moment) -> Holding:
    """Bytes on one rank at the end of a phase; all but init in the second step or a later one."""
    if engine.zero_stage == 0:
        return _replicated(engine, moment)
    if engine.zero_stage == FULLY_SHARDED:
        return _fully_sharded(engine, moment)
    return _optimizer_sharded(engine, moment)


def partition_elements(engine: Engine) -> int:
    """Elements of this rank's partition under ZeRO 1 and 2, padding included.

    All trainable tensors are one flat buffer, padded to 2 x ranks (stage_1_and_2.py:435).
    """
    alignment = ALIGNMENT * engine.world_size
    return -(-sum(engine.trained) // alignment) * alignment // engine.world_size


def touched_elements(engine: Engine) -> tuple[int, ...]:
    """Elements of the tensors that this rank's partition touches under ZeRO 1 and 2.

    Gradients are kept for whole tensors, though only a part of the first and the last is needed
    (copy_grads_in_partition, stage_1_and_2.py:2180).
    """
    size = partition_elements(engine)
    begin, found = engine.rank * size, []
    for index, offset in partition_offsets(engine).items():
        elements = engine.tensors[index].elements
        if offset < begin + size and offset + elements > begin:
            found.append(elements)
    return tuple(found)


def partition_offsets(engine: Engine) -> dict[int, int]:
    """Place of each trainable tensor -> where it begins in the flat buffer of ZeRO 1 and 2."""
    found, offset = {}, 0
    for index, tensor in enumerate(engine.tensors):
        if tensor.trainable:
            found[index] = offset
            offset += tensor.elements
    return found


def gathered_elements(engine: Engine, index: int) -> int:
    """Elements of a tensor's partitions of all ranks under ZeRO 3, padding included."""
    return _part(engine.tensors[index], engine.world_size) * engine.world_size


def _replicated(engine: Engine, moment: Moment) -> Holding:
    """ZeRO 0: whole weights; 16-bit ones have float32 masters and moments from the start.

    fused_optimizer.py:85 (FP16_Optimizer, also for bf16); plain FusedAdam in fp32.
    """
    trained = sum(engine.trained)
    ready = engine.mixed or moment != "init"
    holds_gradient = moment in ("accumulation", "backward")
    if moment == "forward" and engine.accumulates:
        holds_gradient = True
    return Holding(
        Held(
            parameter=engine.element_bytes * sum(t.elements for t in engine.tensors),
            gradient=engine.element_bytes * trained if holds_gradient else 0,
            optimizer_state=trained * ((MASTER if engine.mixed else 0) + MOMENTS * ready) + FLAG,
        ),
        Held(),
    )


def _optimizer_sharded(engine: Engine, moment: Moment) -> Holding:
    """ZeRO 1 and 2: one flat buffer of weights; a float32 partition, in fp32 too."""
    size, part = engine.element_bytes, partition_elements(engine)
    frozen = sum(t.elements for t in engine.tensors if not t.trainable)
    parameter = size * (part * engine.world_size + frozen)
    state = part * (MASTER + (0 if moment == "init" else MOMENTS))
    if engine.offload_optimizer:
        return _optimizer_on_host(engine, moment, parameter=parameter, state=state)
    norm = 0 if moment == "init" else NORM
    gradient = _sharded_gradient(engine, moment)
    bucket = _waiting_buckets(engine, moment)
    return Holding(Held(parameter, gradient, state + FLAG, bucket + norm), Held())


def _sharded_gradient(engine: Engine, moment: Moment) -> int:
    """Bytes of gradients under ZeRO 1 and 2 on the device.

    Between micro steps ZeRO 1 has whole gradients. A rank whose partition is all padding keeps one
    of zeros after the last (get_flat_partition, stage_1_and_2.py:2724).
    """
    waits = moment == "accumulation" or (moment == "forward" and engine.accumulates)
    if engine.zero_stage == 1 and waits:
        return engine.element_bytes * sum(engine.trained)
    if not waits and moment != "backward":
        return 0
    touched = sum(touched_elements(engine)) or partition_elements(engine)
    return engine.element_bytes * touched


def _waiting_buckets(engine: Engine, moment: Moment) -> int:
    """Bytes of reduce buckets between micro steps; ZeRO 1 makes them and has not used them yet.

    setup_buckets, stage_1_and_2.py:3256.
    """
    waits = moment == "accumulation" or (moment == "forward" and engine.accumulates)
    if engine.zero_stage != 1 or not waits:
        return 0
    return engine.element_bytes * engine.reduce_bucket_size * (1 + engine.overlap_comm)


def _optimizer_on_host(engine: Engine, moment: Moment, *, parameter: int, state: int) -> Holding:
    """ZeRO 1 and 2 with a CPU optimizer: masters, moments, gradients and staging on the host.

    One buffer of the largest tensor on either side carries gradients (stage_1_and_2.py:650).
    """
    size, part = engine.element_bytes, partition_elements(engine)
    touched = touched_elements(engine)
    staging = size * max(engine.trained)
    waits = moment == "accumulation" or (moment == "forward" and engine.accumulates)
    norms = 8 * len(touched) if moment == "backward" else 0
    whole = size * sum(engine.trained) if engine.zero_stage == 1 and waits else 0
    accumulated = engine.zero_stage != 1 and engine.accumulates and moment != "init"
    saved = size * sum(touched) if accumulated else 0
    norm = 0 if moment == "init" else NORM
    return Holding(
        Held(parameter, whole, 0, staging + norms + _waiting_buckets(engine, moment)),
        Held(0, MASTER * part + saved, state, staging + size * part + norm),
    )


def _fully_sharded(engine: Engine, moment: Moment) -> Holding:
    """ZeRO 3: partitions of weights and gradients from the start, one reduce bucket for good.

    Masters are copies in fp32 too: stage3.py:1166 compares a device with its name.
    """
    size, world = engine.element_bytes, engine.world_size
    trained = tuple(t for t in engine.tensors if t.trainable)
    part = sum(_part(t, world) for t in trained)
    parameter = sum(weight_bytes(engine, t) * _part(t, world) for t in engine.tensors)
    parameter += _gathered_bytes(engine, moment)
    state = part * (MASTER + (0 if moment == "init" else MOMENTS))
    bucket = size * engine.reduce_bucket_size
    norm = 0 if moment == "init" else NORM_3
    if not engine.offload_optimizer:
        device = Held(parameter, size * part, state + FLAG, bucket + OVERFLOW_3 + norm)
        return Holding(device, Held())
    norms = 8 * len(trained) if moment == "backward" else 0
    host = Held(0, (MASTER + size) * part, state, OVERFLOW_3 + norm // 2)
    return Holding(Held(parameter, 0, 0, bucket + norms), host)


def _part(tensor: Tensor, world_size: int) -> int:
    """Elements of one rank's partition of a tensor, padded (partition_parameters.py:1690)."""
    return -(-tensor.elements // world_size)


def weight_bytes(engine: Engine, tensor: Tensor) -> int:
    """Bytes of an element of a tensor's weights.

    peft makes adapters in float32, and a model that ZeRO 3 partitioned as it was built is not
    converted any more (engine.py:1859).
    """
    adapter = tensor.trainable and any(not t.trainable for t in engine.tensors)
    kept = adapter and engine.zero_stage == FULLY_SHARDED
    return MASTER if kept else engine.element_bytes


def _gathered_bytes(engine: Engine, moment: Moment) -> int:
    """Bytes of whole weights that ZeRO 3 keeps beside its partitions.

    Small ones stay after the first step, gathered into buffers of whole partitions
    (partition_parameters.py:2022). At the end of the forward the others stay as well, as far as
    the engine may keep them (`stage3_max_live_parameters`): their turn in the backward is next.
    """
    if engine.world_size == 1 or moment == "init":
        return 0
    kept = small_bytes(engine)
    if moment != "forward":
        return kept
    large = [t for t in engine.tensors if t.elements > engine.persistence_threshold]
    large = [t for t in large if t.in_backward]
    small = [t for t in engine.tensors if t.elements <= engine.persistence_threshold]
    elements = sum(t.elements for t in large)
    whole = sum(weight_bytes(engine, t) * t.elements for t in large)
    room = max(0, engine.max_live_parameters - sum(t.elements for t in small))
    return kept + (whole if elements <= room else engine.element_bytes * room)


def small_bytes(engine: Engine) -> int:
    """Bytes of the weights that ZeRO 3 keeps whole between steps, on several ranks."""
    if engine.world_size == 1:
        return 0
    small = [
        index
        for index, tensor in enumerate(engine.tensors)
        if tensor.elements <= engine.persistence_threshold
    ]
    return sum(
        weight_bytes(engine, engine.tensors[i]) * gathered_elements(engine, i) for i in small
    )
