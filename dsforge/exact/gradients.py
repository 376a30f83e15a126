"""Gradients in the engine: reduced as they arrive, and used up by the optimizer's step.

Whole gradients (ZeRO-0), buckets that are reduced when full (1 and 2), partitions (3). Source:
DeepSpeed 0.19.8: engine.py, runtime/fp16/fused_optimizer.py, runtime/zero/stage_1_and_2.py and
stage3.py. Bytes that `residency.resident` counts at the end of a step are not counted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from dsforge.exact.autograd_sim import Block, MemoryMeter
from dsforge.exact.residency import (
    EngineRank,
    gathered_elements,
    partition_elements,
    partition_offsets,
    partition_pieces,
    small_bytes,
    touched_elements,
    weight_bytes,
)
from dsforge.strategy import FULLY_SHARDED

FLOAT64_BYTES = 8  # bytes: norms are computed in it
ALLREDUCE_ELEMENTS = 500_000_000  # ZeRO-0 reduces in messages of so many, engine.py


class Reduction(Protocol):
    """The engine's side of the gradients, by the place of their parameter in the model."""

    def arrived(self, index: int, gradient: Block, *, last: bool) -> None:
        """A gradient is there; `last`: of the last micro step."""

    def finish(self, *, last: bool) -> None:
        """The backward pass is over."""

    def step(self) -> None:
        """The optimizer steps."""


def reduction(engine: EngineRank, meter: MemoryMeter) -> Reduction:
    """What this ZeRO stage does."""
    if engine.zero_stage == 0:
        return _Whole(engine, meter)
    return (_Partitions if engine.zero_stage == FULLY_SHARDED else _Buckets)(engine, meter)


class _Whole:
    """ZeRO-0: gradients add up in place and are reduced in copies."""

    def __init__(self, engine: EngineRank, meter: MemoryMeter) -> None:
        self.engine, self.meter = engine, meter
        self.held: dict[int, Block] = {}

    def arrived(self, index: int, gradient: Block, *, last: bool) -> None:
        """Keep it, or add it to the one of the micro step before."""
        self.held.setdefault(index, gradient)

    def finish(self, *, last: bool) -> None:
        """Reduce copies in long messages."""
        if not last:
            return
        chunks = _chunks([self.engine.tensors[i].elements for i in self.held], ALLREDUCE_ELEMENTS)
        for chunk in chunks:
            if len(chunk) > 1:
                self.meter.allocate_and_free(self.engine.element_bytes * sum(chunk))

    def step(self) -> None:
        """16-bit gradients are copied to float32 one by one, then into one buffer."""
        trained = sum(self.engine.trained)
        if self.engine.mixed:
            flat = Block(self.meter, 0)
            copies = Block(self.meter, self.engine.master_bytes * trained)
            flat = Block(self.meter, self.engine.master_bytes * trained)
            del copies
            self.held.clear()
            del flat
        self.held.clear()


class _Buckets:
    """ZeRO-1 and 2: gradients are copied into a bucket, which is reduced when it is full.

    One that is larger than the bucket is reduced in its place. ZeRO-1 keeps whole gradients until
    the last micro step.
    """

    def __init__(self, engine: EngineRank, meter: MemoryMeter) -> None:
        self.engine, self.meter = engine, meter
        self.buffers: Block | None = None
        self.whole: dict[int, Block] = {}  # of ZeRO-1, and what was too large for the bucket
        self.bucket: list[int] = []
        self.elements = 0
        self.fresh: Block | None = None  # this rank's part from this micro step
        self.part: Block | None = None  # and the sum
        self.offsets = partition_offsets(engine)

    def arrived(self, index: int, gradient: Block, *, last: bool) -> None:
        """Put it into the bucket, after reducing one that is too full for it."""
        engine = self.engine
        self.buffers = self.buffers or self._new_buffers()
        if engine.zero_stage == 1:
            if index in self.whole:  # added in place
                gradient.free()
                gradient = self.whole.pop(index)
            if not last:
                self.whole[index] = gradient
                return
        elements = engine.tensors[index].elements
        if self.elements + elements > engine.reduce_bucket_size:
            self._reduce(last=last)
        if elements > engine.reduce_bucket_size:
            self.whole[index] = gradient
            if engine.offload_optimizer:
                self.whole[index] = Block(self.meter, gradient.size)
        self.elements += elements
        self.bucket.append(index)

    def finish(self, *, last: bool) -> None:
        """Reduce what is left and release the buckets."""
        if self.engine.zero_stage == 1 and not last:
            return
        self._reduce(last=last)
        if not self.engine.offload_optimizer:
            self.part = self.part or self.fresh or self._padding()
        self.fresh = self.buffers = None
        self.whole.clear()

    def step(self) -> None:
        """The norm, tensor by tensor; then one float32 gradient of the partition."""
        engine, meter = self.engine, self.meter
        if engine.offload_optimizer:
            return
        own, size = partition_pieces(engine), partition_elements(engine)
        meter.allocate_and_free(FLOAT64_BYTES * max(own))
        flat = Block(meter, engine.element_bytes * size if len(own) > 1 else 0)
        gradient = Block(meter, engine.master_bytes * size) if engine.mixed else flat
        del flat
        self.part = None
        del gradient

    def _new_buffers(self) -> Block:
        engine = self.engine
        copies = 2 if engine.overlap_comm else 1
        return Block(self.meter, copies * engine.element_bytes * engine.reduce_bucket_size)

    def _padding(self) -> Block:
        size = self.engine.element_bytes * partition_elements(self.engine)
        return Block(self.meter, size)

    def _slices(self, index: int) -> Iterator[tuple[int, int]]:
        """Ranks that a tensor belongs to, and the elements of each."""
        begin, size = self.offsets[index], partition_elements(self.engine)
        end = begin + self.engine.tensors[index].elements
        while begin < end:
            rank = begin // size
            stop = min(end, (rank + 1) * size)
            yield rank, stop - begin
            begin = stop

    def _reduce(self, *, last: bool) -> None:
        """Slices for several ranks are joined into messages of about a bucket's size."""
        engine = self.engine
        merged: list[tuple[int, int]] = []
        for rank, elements in (piece for index in self.bucket for piece in self._slices(index)):
            before = merged.pop()[1] if merged and merged[-1][0] == rank else 0
            merged.append((rank, before + elements))
        for chunk in _chunks([n for _, n in merged], engine.reduce_bucket_size):
            if len(chunk) > 1:
                self.meter.allocate_and_free(engine.element_bytes * sum(chunk))
        for index in self.bucket:
            self._keep(index, last=last)
        self.bucket, self.elements = [], 0

    def _keep(self, index: int, *, last: bool) -> None:
        """Copy out what is this rank's; ZeRO-2 releases the rest.

        Of what goes to the host, only the last micro step lets go before the backward pass is over
        (copy_grads_in_partition, stage_1_and_2.py:2149).
        """
        engine = self.engine
        own = sum(n for rank, n in self._slices(index) if rank == engine.rank)
        if own and engine.offload_optimizer:
            if last:
                self.meter.allocate_and_free(FLOAT64_BYTES * own)
                self.meter.allocate_and_free(engine.master_bytes * own if engine.mixed else 0)
        elif own and self.fresh is None:
            size = engine.element_bytes * sum(touched_elements(engine))
            self.fresh = Block(self.meter, size)
        waits = own and engine.offload_optimizer and not last
        if not waits and (own or engine.zero_stage > 1):
            self.whole.pop(index, None)


class _Partitions:
    """ZeRO-3: a bucket that is always there; each rank keeps its part of every gradient."""

    def __init__(self, engine: EngineRank, meter: MemoryMeter) -> None:
        self.engine, self.meter = engine, meter
        self.large: list[Block] = []
        self.bucket: list[int] = []
        self.elements = 0

    def arrived(self, index: int, gradient: Block, *, last: bool) -> None:
        """Put it into the bucket; one that is larger stays where it is."""
        engine = self.engine
        elements = engine.tensors[index].elements
        if self.elements and self.elements + elements > engine.reduce_bucket_size:
            self._reduce(last=last)
        if self.elements + elements > engine.reduce_bucket_size:
            self.large.append(gradient)
        self.elements += elements
        self.bucket.append(index)

    def finish(self, *, last: bool) -> None:
        """Reduce what is left."""
        self._reduce(last=last)

    def step(self) -> None:
        """The norm, tensor by tensor; then a float32 gradient of each sub-group in turn.

        Small weights are released first, and gathered again at the end.
        """
        engine, meter = self.engine, self.meter
        parts = [-(-elements // engine.world_size) for elements in engine.trained]
        if engine.offload_optimizer:
            return
        meter.change(-small_bytes(engine))
        meter.allocate_and_free(FLOAT64_BYTES * max(parts))
        for group in _chunks(parts, engine.sub_group_size - 1):
            flat = Block(meter, engine.element_bytes * sum(group) if len(group) > 1 else 0)
            gradient = Block(meter, engine.master_bytes * sum(group)) if engine.mixed else flat
            del flat, gradient
        meter.change(small_bytes(engine))

    def _reduce(self, *, last: bool) -> None:
        """Padded partitions of all gradients side by side; a single one is reduced in place."""
        engine, indices = self.engine, self.bucket
        if not indices:
            return
        alone = len(indices) == 1
        alone = alone and engine.tensors[indices[0]].elements % engine.world_size == 0
        joined = sum(
            gathered_elements(engine, i) * weight_bytes(engine, engine.tensors[i]) for i in indices
        )
        buffer = Block(self.meter, 0 if alone else joined)
        if engine.offload_optimizer:
            self._move_out(last=last)
        del buffer
        self.large.clear()
        self.bucket, self.elements = [], 0

    def _move_out(self, *, last: bool) -> None:
        """Each part on its way to the host: itself, its norm, its float32 copy."""
        engine = self.engine
        for index in self.bucket:
            part = -(-engine.tensors[index].elements // engine.world_size)
            held = Block(self.meter, engine.element_bytes * part)
            if last:
                self.meter.allocate_and_free(FLOAT64_BYTES * part)
            del held


def _chunks(sizes: Iterable[int], limit: int) -> Iterator[list[int]]:
    """Sizes in order, each list closed as soon as its sum is above the limit."""
    chunk: list[int] = []
    for size in sizes:
        chunk.append(size)
        if sum(chunk) > limit:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
