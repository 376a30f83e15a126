"""Bytes that DeepSpeed's engine keeps on one rank between the phases of a step, exactly.

`estimate.states` prices a strategy for the planner: shares of the parameters, on the fullest rank.
This computes the same states tensor by tensor and rank by rank, with every alignment and padding,
as DeepSpeed 0.19.8 does; tests/engine/test_exact.py compares it with the engine itself. Assumed:
Adam's two moments; `contiguous_gradients` (the default); gradients accumulate in the compute
precision (the default). Pinned host buffers count like others.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dsforge.strategy import FULLY_SHARDED, ZeroStage

Phase = Literal["init", "accumulation", "forward", "backward", "step"]

FLOAT_BYTES = 4
MOMENTS = 2  # of Adam, in the type of the master weight
ALIGNMENT_ELEMENTS = 2  # per rank: nccl_start_alignment_factor, stage_1_and_2.py:369
FLAG_BYTES = 4  # FusedAdam's overflow flag, fused_adam.py:96
NORM_BYTES = 4  # gradient norm kept by stages 1 and 2, stage_1_and_2.py:3071
ZERO3_NORM_BYTES = 8  # in double, stage3.py:2897
ZERO3_FLAG_BYTES = 1  # inf_or_nan_tracker, stage3.py:335


class Tensor(NamedTuple):
    """One parameter tensor of the model, in the model's order."""

    elements: int
    trainable: bool = True
    in_backward: bool = True  # a later gradient needs it: ZeRO-3 keeps it until then


class OwnerBytes(NamedTuple):
    """Bytes by owner in one memory, device or host."""

    parameter: int = 0
    gradient: int = 0
    optimizer_state: int = 0
    buffer: int = 0

    @property
    def total(self) -> int:
        """Bytes of all owners."""
        return sum(self)


class Residency(NamedTuple):
    """Bytes of one rank on its device and in host memory."""

    device: OwnerBytes
    host: OwnerBytes


class EngineRank(NamedTuple):
    """One rank of DeepSpeed's engine and its settings; sizes in elements, as in a ds_config."""

    tensors: tuple[Tensor, ...]
    element_bytes: int  # of the compute precision
    zero_stage: ZeroStage
    world_size: int  # ranks that ZeRO shards over
    rank: int = 0
    offload_optimizer: bool = False  # to the CPU
    accumulates: bool = False  # more than one micro step
    master_bytes: int = FLOAT_BYTES  # of a master weight, a moment, a gradient in the step
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
        """Whether the optimizer steps another type than the weights have."""
        return self.element_bytes < self.master_bytes

    @property
    def moment_bytes(self) -> int:
        """Bytes of the moments of a weight."""
        return MOMENTS * self.master_bytes


def resident(engine: EngineRank, phase: Phase) -> Residency:
    """Bytes on one rank at the end of a phase; all but init in the second step or a later one."""
    if engine.zero_stage == 0:
        return _replicated(engine, phase)
    if engine.zero_stage == FULLY_SHARDED:
        return _fully_sharded(engine, phase)
    return _optimizer_sharded(engine, phase)


def partition_elements(engine: EngineRank) -> int:
    """Elements of this rank's partition under ZeRO-1 and 2, padding included.

    All trainable tensors are one flat buffer, padded to 2 x ranks (stage_1_and_2.py:435).
    """
    alignment = ALIGNMENT_ELEMENTS * engine.world_size
    return -(-sum(engine.trained) // alignment) * alignment // engine.world_size


def touched_elements(engine: EngineRank) -> tuple[int, ...]:
    """Elements of the tensors that this rank's partition touches under ZeRO-1 and 2.

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


def partition_pieces(engine: EngineRank) -> tuple[int, ...]:
    """Elements of the pieces of tensors in this rank's partition under ZeRO-1 and 2.

    The padding at the end of the last partitions is a piece, too.
    """
    size = partition_elements(engine)
    begin, found = engine.rank * size, []
    for index, offset in partition_offsets(engine).items():
        end = min(begin + size, offset + engine.tensors[index].elements)
        if end > max(begin, offset):
            found.append(end - max(begin, offset))
    padding = size - sum(found)
    return (*found, padding) if padding else tuple(found)


def partition_offsets(engine: EngineRank) -> dict[int, int]:
    """Place of each trainable tensor -> where it begins in the flat buffer of ZeRO-1 and 2."""
    found, offset = {}, 0
    for index, tensor in enumerate(engine.tensors):
        if tensor.trainable:
            found[index] = offset
            offset += tensor.elements
    return found


def gathered_elements(engine: EngineRank, index: int) -> int:
    """Elements of a tensor's partitions of all ranks under ZeRO-3, padding included."""
    return _part(engine.tensors[index], engine.world_size) * engine.world_size


def _replicated(engine: EngineRank, phase: Phase) -> Residency:
    """ZeRO-0: whole weights; 16-bit ones have float32 masters and moments from the start.

    fused_optimizer.py:85 (FP16_Optimizer, also for bf16); plain FusedAdam in fp32.
    """
    trained = sum(engine.trained)
    ready = engine.mixed or phase != "init"
    master = engine.master_bytes if engine.mixed else 0
    holds_gradient = phase in ("accumulation", "backward")
    if phase == "forward" and engine.accumulates:
        holds_gradient = True
    return Residency(
        OwnerBytes(
            parameter=engine.element_bytes * sum(t.elements for t in engine.tensors),
            gradient=engine.element_bytes * trained if holds_gradient else 0,
            optimizer_state=trained * (master + engine.moment_bytes * ready) + FLAG_BYTES,
        ),
        OwnerBytes(),
    )


def _optimizer_sharded(engine: EngineRank, phase: Phase) -> Residency:
    """ZeRO-1 and 2: one flat buffer of weights; a float32 partition, in fp32 too."""
    size, part = engine.element_bytes, partition_elements(engine)
    frozen = sum(t.elements for t in engine.tensors if not t.trainable)
    parameter = size * (part * engine.world_size + frozen)
    state = part * (engine.master_bytes + (0 if phase == "init" else engine.moment_bytes))
    if engine.offload_optimizer:
        return _optimizer_on_host(engine, phase, parameter=parameter, state=state)
    norm = 0 if phase == "init" else NORM_BYTES
    gradient = _sharded_gradient(engine, phase)
    bucket = _waiting_buckets(engine, phase)
    return Residency(
        OwnerBytes(parameter, gradient, state + FLAG_BYTES, bucket + norm),
        OwnerBytes(),
    )


def _sharded_gradient(engine: EngineRank, phase: Phase) -> int:
    """Bytes of gradients under ZeRO-1 and 2 on the device.

    Between micro steps ZeRO-1 has whole gradients. A rank whose partition is all padding keeps one
    of zeros after the last (get_flat_partition, stage_1_and_2.py:2724).
    """
    waits = phase == "accumulation" or (phase == "forward" and engine.accumulates)
    if engine.zero_stage == 1 and waits:
        return engine.element_bytes * sum(engine.trained)
    if not waits and phase != "backward":
        return 0
    touched = sum(touched_elements(engine)) or partition_elements(engine)
    return engine.element_bytes * touched


def _waiting_buckets(engine: EngineRank, phase: Phase) -> int:
    """Bytes of reduce buckets between micro steps; ZeRO-1 makes them and has not used them yet.

    setup_buckets, stage_1_and_2.py:3256.
    """
    waits = phase == "accumulation" or (phase == "forward" and engine.accumulates)
    if engine.zero_stage != 1 or not waits:
        return 0
    return engine.element_bytes * engine.reduce_bucket_size * (1 + engine.overlap_comm)


def _optimizer_on_host(
    engine: EngineRank, phase: Phase, *, parameter: int, state: int
) -> Residency:
    """ZeRO-1 and 2 with a CPU optimizer: masters, moments, gradients and staging on the host.

    One buffer of the largest tensor on either side carries gradients (stage_1_and_2.py:650).
    """
    size, part = engine.element_bytes, partition_elements(engine)
    touched = touched_elements(engine)
    staging = size * max(engine.trained)
    waits = phase == "accumulation" or (phase == "forward" and engine.accumulates)
    norms = 8 * len(touched) if phase == "backward" else 0
    whole = size * sum(engine.trained) if engine.zero_stage == 1 and waits else 0
    shared = engine.master_bytes < FLOAT_BYTES  # sums are in the gradient that is stepped
    accumulated = engine.zero_stage != 1 and engine.accumulates and phase != "init" and not shared
    saved = size * sum(touched) if accumulated else 0
    norm = 0 if phase == "init" else NORM_BYTES
    return Residency(
        OwnerBytes(parameter, whole, 0, staging + norms + _waiting_buckets(engine, phase)),
        OwnerBytes(0, engine.master_bytes * part + saved, state, staging + size * part + norm),
    )


def _fully_sharded(engine: EngineRank, phase: Phase) -> Residency:
    """ZeRO-3: partitions of weights and gradients from the start, one reduce bucket for good.

    Masters are copies in fp32 too: stage3.py:1166 compares a device with its name.
    """
    size, world = engine.element_bytes, engine.world_size
    trained = tuple(t for t in engine.tensors if t.trainable)
    part = sum(_part(t, world) for t in trained)
    parameter = sum(weight_bytes(engine, t) * _part(t, world) for t in engine.tensors)
    parameter += _gathered_bytes(engine, phase)
    state = part * (engine.master_bytes + (0 if phase == "init" else engine.moment_bytes))
    bucket = size * engine.reduce_bucket_size
    norm = 0 if phase == "init" else ZERO3_NORM_BYTES
    if not engine.offload_optimizer:
        device = OwnerBytes(
            parameter,
            size * part,
            state + FLAG_BYTES,
            bucket + ZERO3_FLAG_BYTES + norm,
        )
        return Residency(device, OwnerBytes())
    norms = 8 * len(trained) if phase == "backward" else 0
    host = OwnerBytes(0, (engine.master_bytes + size) * part, state, ZERO3_FLAG_BYTES + norm // 2)
    return Residency(OwnerBytes(parameter, 0, 0, bucket + norms), host)


def _part(tensor: Tensor, world_size: int) -> int:
    """Elements of one rank's partition of a tensor, padded (partition_parameters.py:1690)."""
    return -(-tensor.elements // world_size)


def weight_bytes(engine: EngineRank, tensor: Tensor) -> int:
    """Bytes of an element of a tensor's weights.

    peft makes adapters in float32, and a model that ZeRO-3 partitioned as it was built is not
    converted any more (engine.py:1859).
    """
    adapter = tensor.trainable and any(not t.trainable for t in engine.tensors)
    kept = adapter and engine.zero_stage == FULLY_SHARDED
    return FLOAT_BYTES if kept else engine.element_bytes


def _gathered_bytes(engine: EngineRank, phase: Phase) -> int:
    """Bytes of whole weights that ZeRO-3 keeps beside its partitions.

    Small ones stay after the first step, gathered into buffers of whole partitions
    (partition_parameters.py:2022). At the end of the forward the others stay as well, as far as
    the engine may keep them (`stage3_max_live_parameters`): their turn in the backward is next.
    """
    if engine.world_size == 1 or phase == "init":
        return 0
    kept = small_bytes(engine)
    if phase != "forward":
        return kept
    large = [t for t in engine.tensors if t.elements > engine.persistence_threshold]
    large = [t for t in large if t.in_backward]
    small = [t for t in engine.tensors if t.elements <= engine.persistence_threshold]
    elements = sum(t.elements for t in large)
    whole = sum(weight_bytes(engine, t) * t.elements for t in large)
    room = max(0, engine.max_live_parameters - sum(t.elements for t in small))
    return kept + (whole if elements <= room else engine.element_bytes * room)


def small_bytes(engine: EngineRank) -> int:
    """Bytes of the weights that ZeRO-3 keeps whole between steps, on several ranks."""
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
