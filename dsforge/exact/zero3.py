"""Weights gathered under ZeRO-3 at each moment, as the engine's coordinator decides.

A module's weights are gathered before it runs and released after it, unless they are small or used
again soon; those of the next modules are prefetched within the engine's limits. Source:
DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py and partition_parameters.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from dsforge.exact.autograd_sim import Block, Tape, Value
from dsforge.exact.residency import EngineRank, gathered_elements, weight_bytes

Arrived = Callable[[int, Block], None]


class Weights:
    """Whole weights on every rank: nothing happens as modules come and go."""

    def __init__(self, engine: EngineRank, tape: Tape, arrived: Arrived) -> None:
        self.engine, self.tape = engine, tape
        self.values = [self._value(index, arrived) for index in range(len(engine.tensors))]

    def _value(self, index: int, arrived: Arrived) -> Value:
        tensor = self.engine.tensors[index]
        size = tensor.elements * weight_bytes(self.engine, tensor)
        if not tensor.trainable:
            return Value(None, size)
        return self.tape.parameter(size, lambda gradient: arrived(index, gradient))

    def value(self, index: int) -> Value:
        """The parameter on the tape."""
        return self.values[index]

    def before(self, indices: tuple[int, ...], *, forward: bool) -> None:
        """The module begins."""

    def after(self, indices: tuple[int, ...], *, forward: bool) -> None:
        """The module ends."""

    def begin(self) -> None:
        """A micro step begins."""

    def end(self) -> None:
        """Its backward pass is over."""


class _Gather:
    """A gather under way: one flat buffer until the last of its weights has been asked for."""

    def __init__(self, places: set[int], buffer: Block) -> None:
        self.places, self.buffer, self.waited = places, buffer, False


class PartitionedWeights(Weights):
    """Weights in partitions, gathered for each module.

    The engine notes the order of the modules in its first micro step and fetches ahead from the
    second one on.
    """

    def __init__(self, engine: EngineRank, tape: Tape, arrived: Arrived) -> None:
        super().__init__(engine, tape, arrived)
        small = [i for i in range(len(engine.tensors)) if self._small(i)]
        self.whole: dict[int, Block | None] = dict.fromkeys(small)
        self.under_way: dict[int, _Gather] = {}
        self.running: dict[int, set[tuple[int, ...]]] = {}
        self.trace: list[tuple[int, ...]] = []
        self.order: tuple[tuple[int, ...], ...] = ()

    def begin(self) -> None:
        """Nothing has been fetched yet but what is kept for good."""
        self.order = self.order or tuple(self.trace)
        self.moment = 0
        self.queue = deque((i, at) for at, indices in enumerate(self.order) for i in indices)
        self.fetched_for: dict[int, int] = {}
        self.available = 0
        self.before((), forward=True)  # the model itself

    def end(self) -> None:
        """Release what no module has released, the embedding among them."""
        for index in list(self.whole):
            if not self._small(index):
                self.running.pop(index, None)
                self._release(index)

    def before(self, indices: tuple[int, ...], *, forward: bool) -> None:
        """Gather what is missing, wait for it, and fetch ahead."""
        self._gather([i for i in indices if i not in self.whole and i not in self.under_way])
        for index in indices:
            self.running.setdefault(index, set()).add(indices)
            if index in self.under_way:
                self._wait(index)
        if self.order:
            self._pass_over(indices)
            self._fetch_ahead()
        else:
            self.trace.append(indices)
        self.moment += 1

    def after(self, indices: tuple[int, ...], *, forward: bool) -> None:
        """Release what is neither small nor used again soon."""
        leaving = self._leaving(indices)
        for index in indices:
            self.running.get(index, set()).discard(indices)
            if index in leaving and not self.running.get(index):
                self._release(index)

    def _small(self, index: int) -> bool:
        return self.engine.tensors[index].elements <= self.engine.persistence_threshold

    def _gather(self, places: Sequence[int]) -> None:
        """Start a gather; a single weight is gathered in its own place."""
        if not places:
            return
        self.available += sum(self.engine.tensors[i].elements for i in places)
        if self.engine.world_size == 1:
            self.whole.update(dict.fromkeys(places))
            return
        sizes = [gathered_elements(self.engine, i) * self._element_bytes(i) for i in places]
        gather = _Gather(set(places), self.tape.block(sum(sizes)))
        self.under_way.update(dict.fromkeys(places, gather))

    def _element_bytes(self, index: int) -> int:
        return weight_bytes(self.engine, self.engine.tensors[index])

    def _wait(self, index: int) -> None:
        """Copy a whole gather out of its buffer when the first of it is needed."""
        gather = self.under_way.pop(index)
        if len(gather.places) == 1:
            self.whole[index] = gather.buffer
            return
        if not gather.waited:
            gather.waited = True
            for one in gather.places:
                size = self.engine.tensors[one].elements * self._element_bytes(one)
                self.whole[one] = self.tape.block(size)

    def _pass_over(self, indices: tuple[int, ...]) -> None:
        """Take this module's weights from the queue, unless fetching ahead has done so."""
        missing = {i for i in indices if self.fetched_for.get(i, -1) < self.moment}
        while self.queue and missing:
            index, at = self.queue.popleft()
            self.fetched_for[index] = at
            missing.discard(index)

    def _fetch_ahead(self) -> None:
        engine = self.engine
        room = min(engine.max_live_parameters - self.available, engine.prefetch_bucket_size)
        places: list[int] = []
        elements = 0
        while self.queue and elements < room:
            index, at = self.queue.popleft()
            self.fetched_for[index] = max(self.fetched_for.get(index, -1), at)
            if index in self.whole or index in self.under_way or index in places:
                continue
            places.append(index)
            elements += engine.tensors[index].elements
        self._gather(places)

    def _leaving(self, indices: tuple[int, ...]) -> set[int]:
        """What may go: nothing whose next use has been counted on or is near."""
        leaving = {i for i in indices if not self._small(i)}
        if not self.order:
            return leaving
        leaving -= {i for i in indices if self.fetched_for.get(i, -1) > self.moment}
        passed = 0
        for module in self.order[self.moment :]:
            if passed >= self.engine.max_reuse_distance:
                break
            leaving -= set(module)
            passed += sum(self.engine.tensors[i].elements for i in module)
        return leaving

    def _release(self, index: int) -> None:
        if index in self.whole:
            del self.whole[index]
            self.available -= self.engine.tensors[index].elements
