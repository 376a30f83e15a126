"""One step laid out in time, from the very terms that the prediction sums.

The prediction knows the slowest pipeline stage and the mean of all. So the last stage is drawn as
the slowest and the others as the mean: then 1F1B takes exactly the predicted time. What waits for
collectives and copies stands where the prediction puts it: in each micro step, or once at the end.
Collectives that run beside compute have a lane of their own, as long as they are on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from dsforge.estimate.family_costs import FamilyCosts
from dsforge.estimate.layer_time import setting_of
from dsforge.estimate.micro_batch_time import MicroBatchTime
from dsforge.estimate.time import STEP_OVERHEAD_S, Seconds, StepCosts, step_costs
from dsforge.estimate.traffic import Exchange
from dsforge.explain.pipeline import Shape, Slot, played
from dsforge.strategy import Strategy

AT_WORK, BESIDE = 0, 1  # lanes of a stage
AFTER_OPTIMIZER = "updated weights gathered"


class Slice(NamedTuple):
    """An interval of time on one lane of one pipeline stage."""

    stage: int
    lane: int
    name: str
    start_s: float
    end_s: float
    depth: int = 0  # 1: a part of the slice around it


class _Part(NamedTuple):
    """A piece of work that has no position in time yet."""

    name: str
    seconds: float


class _Step(NamedTuple):
    """The parts of a step."""

    shape: Shape
    found: Seconds
    work: MicroBatchTime
    step_costs: StepCosts
    forward: tuple[_Part, ...]  # of one piece of the slowest stage
    backward: tuple[_Part, ...]
    mean_share: float  # of a mean stage's piece in that of the slowest, without what waits

    @property
    def last(self) -> int:
        """The slowest stage."""
        return self.shape.stages - 1


def timeline(
    costs: FamilyCosts, strategy: Strategy, stages: frozenset[int] | None = None
) -> tuple[Slice, ...]:
    """All slices of one step, outer before inner; the last one ends with the step.

    With `stages` only the pieces of work of those pipeline stages, which takes less time.
    """
    step = _step(costs, strategy)
    slots = list(played(step.shape, *_paces(step)))
    end_s = max(slot.end_s for slot in slots)
    shown = [slot for slot in slots if stages is None or slot.piece.stage in stages]
    return (
        *(piece for slot in shown for piece in _drawn(step, slot)),
        *_overlapped_slices(step, [slot for slot in slots if slot.piece.stage == step.last]),
        *_tail(step, end_s),
    )


def _step(costs: FamilyCosts, strategy: Strategy) -> _Step:
    """The parts of a step, from the prediction's own account of it."""
    batching, pipeline = strategy.batching, strategy.layout.pipeline_parallel_size
    chunks, step_time = batching.virtual_stages, step_costs(costs, strategy)
    tokens = batching.micro_batch_size * step_time.sample_tokens
    found, work = step_time.at(batching), step_time.stage_times.at(tokens)
    setting = setting_of(costs.cluster.gpu, costs.workload, strategy)
    share, again = 1 / setting.passes, setting.repeated / setting.passes
    half = 1 / 3 if strategy.recompute == "full" else 1 / 2  # of the collectives inside layers
    sends_s = step_time.between.exposed_s(batching, tokens, batching.steps * step_time.busy_s(work))
    send = _Part("send to the next stage", sends_s / (2 * chunks * batching.steps))
    forward = (
        _Part("products and kernels", share * work.compute_s / chunks),
        _Part("collectives in layers", half * work.exposed_s / chunks),
        send,
    )
    backward = (
        _Part("recompute", again * work.compute_s / chunks),
        _Part("products and kernels", (1 - share - again) * work.compute_s / chunks),
        _Part("collectives in layers", (1 - half) * work.exposed_s / chunks),
        send._replace(name="send back"),
        *(
            _Part(f"waits: {e.name}", e.exposed_s(work.layers, work.compute_s) / chunks)
            for e in step_time.exchanges
            if e.every_micro_step
        ),
        _Part("waits: offload copies", _copies_s(step_time, work, batching.steps) / chunks),
    )
    mean_s = found.bubble_s * chunks / (pipeline - 1) if pipeline > 1 else 0.0
    return _Step(
        Shape(pipeline, batching.steps, chunks),
        found,
        work,
        step_time,
        tuple(part for part in forward if part.seconds),
        tuple(part for part in backward if part.seconds),
        mean_s / (work.compute_s + work.exposed_s),
    )


def _copies_s(step_time: StepCosts, work: MicroBatchTime, micro_steps: int) -> float:
    """Seconds of a micro step's copies that no work beside them hides."""
    return step_time.moved.each_s(micro_steps, step_time.busy_s(work))


def _mean(step: _Step, parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
    """The parts of a stage that is not the slowest, without waiting."""
    own = (part for part in parts if not part.name.startswith(("send", "waits")))
    return tuple(part._replace(seconds=part.seconds * step.mean_share) for part in own)


def _parts(step: _Step, *, stage: int, backward: bool) -> tuple[_Part, ...]:
    parts = step.backward if backward else step.forward
    return parts if stage == step.last else _mean(step, parts)


def _paces(step: _Step) -> tuple[list[float], list[float]]:
    """Seconds of a forward and of a backward piece on each stage."""
    forward, backward = (
        [sum(p.seconds for p in _parts(step, stage=s, backward=way)) for s in range(step.last + 1)]
        for way in (False, True)
    )
    return forward, backward


def _drawn(step: _Step, slot: Slot) -> Iterator[Slice]:
    """A piece of work and its parts."""
    way, batch, chunk, stage = slot.piece
    name = f"{'backward' if way else 'forward'} {batch}"
    name += f" chunk {chunk}" if step.shape.chunks > 1 else ""
    yield Slice(stage, AT_WORK, name, slot.start_s, slot.end_s)
    parts = _parts(step, stage=stage, backward=way)
    yield from _in_turn(parts, stage, slot.start_s, slot.end_s)


def _in_turn(parts: tuple[_Part, ...], stage: int, start_s: float, end_s: float) -> Iterator[Slice]:
    """Parts in sequence; the last one ends with the enclosing slice."""
    ends = [*accumulate((part.seconds for part in parts[:-1]), initial=start_s), end_s]
    for part, begin_s, stop_s in zip(parts, ends[:-1], ends[1:], strict=True):
        yield Slice(stage, AT_WORK, part.name, begin_s, max(begin_s, stop_s), depth=1)


def _busy_s(step: _Step, exchange: Exchange) -> float:
    """Duration of a collective, overlapped or not."""
    return exchange.seconds + step.work.layers * exchange.layer_s


def _exposed_s(step: _Step, exchange: Exchange) -> float:
    return exchange.exposed_s(step.work.layers, step.work.compute_s)


def _overlapped_slices(step: _Step, slots: list[Slot]) -> Iterator[Slice]:
    """Collectives of each micro-step, and those that overlap from the previous step."""
    every = [e for e in step.step_costs.exchanges if e.every_micro_step]
    for slot in slots:
        if slot.piece.backward and slot.piece.chunk == 0:
            copies_s = _copies_s(step.step_costs, step.work, step.shape.micro_batches)
            end_s = slot.end_s - copies_s / step.shape.chunks
            for exchange in reversed(every):
                yield _wire(step, exchange.name, end_s - _busy_s(step, exchange), end_s)
                end_s -= _exposed_s(step, exchange)
    for exchange in step.step_costs.exchanges:
        hidden_s = _busy_s(step, exchange) - _exposed_s(step, exchange)
        if exchange.name == AFTER_OPTIMIZER and hidden_s:
            yield _wire(step, f"{exchange.name}, of the step before", 0.0, hidden_s)


def _wire(step: _Step, name: str, start_s: float, end_s: float) -> Slice:
    return Slice(step.last, BESIDE, name, start_s, end_s)


def _tail(step: _Step, start_s: float) -> Iterator[Slice]:
    """Work done once per step on every stage: reduction, copies, optimizer, new weights."""
    once = [e for e in step.step_costs.exchanges if not e.every_micro_step]
    before = [e for e in once if e.name != AFTER_OPTIMIZER]
    now_s = start_s
    for exchange in before:
        exposed_s = _exposed_s(step, exchange)
        hidden_s = _busy_s(step, exchange) - exposed_s
        begin_s = max(0.0, start_s - hidden_s) if now_s == start_s else now_s
        yield _wire(step, exchange.name, begin_s, now_s + exposed_s)
        yield from _everywhere(step, _Part(f"waits: {exchange.name}", exposed_s), now_s)
        now_s += exposed_s
    for part in _ending(step):
        yield from _everywhere(step, part, now_s)
        now_s += part.seconds
    for exchange in once:
        if exchange.name == AFTER_OPTIMIZER:
            exposed_s = _exposed_s(step, exchange)
            yield _wire(step, exchange.name, now_s, now_s + exposed_s)
            yield from _everywhere(step, _Part(f"waits: {exchange.name}", exposed_s), now_s)
            now_s += exposed_s


def _ending(step: _Step) -> tuple[_Part, ...]:
    """Copies and the optimizer: on the CPU, on the device, and Python around it."""
    on_cpu_s = step.step_costs.moved.cpu_s
    on_device_s = step.found.optimizer_s - on_cpu_s - STEP_OVERHEAD_S
    parts = (
        _Part("gradient norm, clipping, schedule", STEP_OVERHEAD_S),
        _Part("optimizer on the CPU", on_cpu_s),
        _Part("optimizer on the device", on_device_s),
        _Part("waits: offload copies", step.step_costs.moved.once_s),
    )
    return tuple(part for part in parts if part.seconds > 0)


def _everywhere(step: _Step, part: _Part, start_s: float) -> Iterator[Slice]:
    for stage in range(step.shape.stages):
        yield Slice(stage, AT_WORK, part.name, start_s, start_s + part.seconds)
