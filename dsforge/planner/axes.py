"""The values of each inverse question, and the request that each of them stands for.

Values ascend. What the user did not say follows them: a global batch that was only the default is
rounded up to what the micro batch and the accelerators need, so that no default limits an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from dsforge.constraints import Case, allows, case_of, divisors, shape_of
from dsforge.constraints.case import UNLIMITED_POSITIONS
from dsforge.constraints.inputs import sequence_in_positions
from dsforge.constraints.sizes import (
    pipeline_within_layers,
    tensor_divides_heads,
    tensor_divides_kv_heads,
)
from dsforge.estimate.params import parameters
from dsforge.layout import Layout
from dsforge.plan import Reason, Request
from dsforge.planner.back_ends import BACK_ENDS
from dsforge.planner.candidates import base
from dsforge.specs import ModelSpec

Question = Literal["micro-batch", "seq-len", "gpus", "model"]

FREE_BATCH = "default-global-batch"  # the rule of the reason that reading gives
LARGEST_MICRO_BATCH = 4096
SHORTEST, LONGEST = 128, 1 << 24  # tokens
SEQUENCES_AN_OCTAVE = 32  # values between two powers of two: exact to 3 %
MOST_NODES = 1024
NODES_AN_OCTAVE = 8


class Axis(NamedTuple):
    """What is looked for, and where."""

    question: Question
    values: tuple[int, ...]
    at: Callable[[int], Request]
    end: str  # why there is nothing beyond the last value
    holes: bool = False  # rules forbid values in between
    names: tuple[str, ...] = ()  # of the values, where they have some

    @property
    def smallest(self) -> bool:
        """Whether the smallest value is wanted, not the largest."""
        return self.question == "gpus"

    def beyond(self, value: int) -> Axis:
        """The axis from a value on, towards more memory."""
        index = self.values.index(value)
        return self._part(slice(index + 1) if self.smallest else slice(index, None))

    def up_to(self, value: int) -> Axis:
        """The axis up to a value, from less memory on."""
        index = self.values.index(value)
        return self._part(slice(index, None) if self.smallest else slice(index + 1))

    def _part(self, part: slice) -> Axis:
        return self._replace(values=self.values[part], names=self.names[part])

    def neighbours(self, value: int) -> tuple[int, ...]:
        """The next value and the one at twice the value (of accelerators: half); two models."""
        rest = self.beyond(value).values
        rest = rest[-2::-1] if self.smallest else rest[1:]
        if self.names:
            return rest[:2]
        far = (n for n in rest if (2 * n <= value if self.smallest else n >= 2 * value))
        return tuple(dict.fromkeys((*rest[:1], *list(far)[:1])))

    def name(self, value: int) -> str:
        """The name of a value; empty where values have none."""
        return self.names[self.values.index(value)] if self.names else ""


def micro_batch_axis(request: Request) -> Axis:
    """Any micro batch where the global batch is free, else its divisors."""
    batch = request.workload.global_batch_size
    free = _batch_is_free(request)

    def at(micro: int) -> Request:
        whole = request.constraints.context_parallel_size or 1  # a share of a sample is no sample
        sizes = {"micro_batch_size": micro, "context_parallel_size": whole}
        fixed = request.constraints.model_copy(update=sizes)
        asked = request.model_copy(update={"constraints": fixed})
        return _with_batch(asked, micro * request.cluster.gpus) if free else asked

    if free:
        values = tuple(range(1, LARGEST_MICRO_BATCH + 1))
        return Axis("micro-batch", values, at, "larger ones are not tried")
    return Axis("micro-batch", divisors(batch), at, f"the global batch is {batch}", holes=True)


def sequence_axis(request: Request) -> Axis:
    """Lengths in steps of at least 128 tokens, up to the positions of the model."""
    model = request.model
    unlimited = model.position in UNLIMITED_POSITIONS
    longest = LONGEST if unlimited else model.max_position_embeddings
    lengths = [n for n in _grid(SHORTEST, LONGEST, SEQUENCES_AN_OCTAVE) if n < longest]

    def at(length: int) -> Request:
        work = request.workload.model_copy(update={"sequence_length": length})
        return _asked(request, "default-sequence-length", workload=work)

    end = "longer ones are not tried" if unlimited else f"{model.name} has {longest} positions"
    return Axis("seq-len", (*lengths, longest), at, end)


def gpus_axis(request: Request) -> Axis:
    """Part of a node, a node, then whole nodes."""
    node = request.cluster.gpus_per_node
    nodes = [n for n in _grid(1, MOST_NODES, NODES_AN_OCTAVE) if n > 1]

    def at(gpus: int) -> Request:
        shape = {"nodes": -(-gpus // node), "gpus_per_node": min(gpus, node), "hosts": ()}
        smaller = request.cluster.model_copy(update=shape)
        asked = _asked(request, "default-nodes", cluster=smaller)
        return _with_batch(asked, gpus) if _batch_is_free(request) else asked

    values = (*range(1, node + 1), *(node * n for n in nodes))
    return Axis("gpus", values, at, "more are not tried", holes=True)


def model_axis(request: Request, known: tuple[ModelSpec, ...]) -> Axis:
    """Decoders of a list that have enough positions, by size; one of each size."""
    by_size = {parameters(model): model for model in known if _trainable(request, model)}
    values = tuple(sorted(by_size))

    def at(size: int) -> Request:
        return _asked(request, "model-size", model=by_size[size])

    names = tuple(by_size[size].name for size in values)
    least = request.workload.sequence_length
    end = f"no larger known decoder has {least} positions"
    return Axis("model", values, at, end, names=names)


def size_axis(request: Request, sized: Callable[[int], ModelSpec], near: int) -> Axis:
    """Sizes of two digits around a number of parameters, each a well-shaped model."""
    sizes = [
        digits * 10**power
        for power in range(7, 13)
        for digits in range(10, 100)
        if near / 2 <= digits * 10**power <= 2 * near
    ]

    def at(size: int) -> Request:
        model, length = sized(size), request.workload.sequence_length
        positions = max(length, model.max_position_embeddings)  # a shape is free to have them
        longer = model.model_copy(update={"max_position_embeddings": positions})
        return _asked(request, "model-size", model=longer)

    fixed = request.constraints
    if (fixed.tensor_parallel_size or 1) * (fixed.pipeline_parallel_size or 1) > 1:
        sizes = [size for size in sizes if _is_cut_evenly(request, at(size).model)]
    return Axis("model", tuple(sizes), at, "larger ones are not tried")


def _is_cut_evenly(request: Request, model: ModelSpec) -> bool:
    """Whether tensor and pipeline parallelism that are fixed divide the model."""
    fixed = request.constraints
    tp, pp = fixed.tensor_parallel_size or 1, fixed.pipeline_parallel_size or 1
    case = Case(
        back_end=fixed.back_end or BACK_ENDS[0],
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        by_others=fixed.software == "others",
        shape=shape_of(model),
        model=model,
    )
    return allows(case, tensor_divides_heads, tensor_divides_kv_heads, pipeline_within_layers)


def _trainable(request: Request, model: ModelSpec) -> bool:
    """Whether it is a decoder of text with as many positions as the samples have tokens."""
    anyhow = base(request, BACK_ENDS[0], Layout(), stage=0)
    case = case_of(model, request.cluster, request.workload, anyhow)
    cut = _is_cut_evenly(request, model)
    text = model.kind == "decoder" and model.tower is None
    return cut and text and allows(case, sequence_in_positions)


def _batch_is_free(request: Request) -> bool:
    """Whether reading chose the global batch, and not the user."""
    return any(reason.rule == FREE_BATCH for reason in request.reasons)


def _with_batch(request: Request, multiple: int) -> Request:
    """The request with its global batch rounded up to a multiple."""
    batch = -(-request.workload.global_batch_size // multiple) * multiple
    work = request.workload.model_copy(update={"global_batch_size": batch})
    message = f"`global_batch_size` is {batch}: it was not set, and must be a multiple"
    why = Reason(rule=FREE_BATCH, message=f"{message} of {multiple}")
    asked = _asked(request, FREE_BATCH, workload=work)
    return asked.model_copy(update={"reasons": (*asked.reasons, why)})


def _asked(request: Request, rule: str, **changed: Any) -> Request:
    """The request with one input changed, and without the reason for what that was before."""
    reasons = tuple(reason for reason in request.reasons if reason.rule != rule)
    return request.model_copy(update={**changed, "reasons": reasons, "others": ()})


def _grid(least: int, most: int, octave: int) -> Iterator[int]:
    """Multiples of the least number; from some point on `octave` of them between powers of two."""
    start = least
    while start < most:
        yield from range(start, 2 * start, max(least, start // octave))
        start *= 2
    yield most
