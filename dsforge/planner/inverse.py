"""The inverse questions: the largest, or the fewest, of something that fits.

What the request fixes stays fixed, the rest is chosen, and "fits" is the planner's own word: the
likely memory within the device, the node's RAM and the disk. Offload is a last resort here, and so
is Megatron for a model whose weights fit a device: an answer without them comes first, and what
they would reach stands beside.

Memory never falls with the micro batch or the sequence, and never grows with accelerators that
share it, so values are searched by doubling and bisection. Rules make holes: where a fixed batch
does not divide, values are looked at one by one. Models are not strictly ordered by their size
(vocabulary, shared key/value heads), so a few beyond the largest found are looked at, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.errors import DsforgeError, LayoutError, Problem
from dsforge.estimate.memory import MemoryTerms
from dsforge.plan import Plan, Request
from dsforge.planner.axes import (
    Axis,
    Question,
    gpus_axis,
    micro_batch_axis,
    model_axis,
    sequence_axis,
    size_axis,
)
from dsforge.planner.fitting import Nearest, nearest, preferred
from dsforge.planner.pricing import Bound, shortage
from dsforge.planner.search import appraise, choose
from dsforge.specs import FROZEN, ModelSpec
from dsforge.units import Interval

BEYOND = 4  # models larger than the largest found that are tried, too
TRIED_SIZES = 1.5  # between sizes that people try: 1.3, 2, 3, 4.5, 6.7, 10 billion and so on


Settle = Callable[[Request], Request]


class Neighbour(BaseModel):
    """A value next to the answer that does not fit, and why."""

    model_config = FROZEN

    value: int = Field(description="Value found, in samples, tokens, accelerators or parameters.")
    name: str = Field(description="Name of the model; empty for other quantities.")
    label: str = Field(description="Label of the strategy that was priced; empty if none is valid.")
    missing_bytes: int = Field(
        description="Bytes missing on one rank; 0 if a constraint forbids the value."
    )
    why: str = Field(description="What is missing, or the constraint that is violated.")
    terms: MemoryTerms | None = Field(description="Memory of that strategy by term.")


class Answer(BaseModel):
    """The largest value that fits, or the fewest accelerators that suffice."""

    model_config = FROZEN

    question: Question = Field(description="What was looked for.")
    value: int = Field(description="Value found, in samples, tokens, accelerators or parameters.")
    name: str = Field(description="Name of the largest known model; empty for other quantities.")
    certain: int | None = Field(description="Value that fits by the upper memory estimate.")
    possible: int = Field(description="Value that fits by the lower memory estimate.")
    offloaded: int | None = Field(description="Value with offload, if that is better.")
    on_megatron: int | None = Field(description="Value with Megatron-LM, if that is better.")
    well_shaped: int | None = Field(description="Parameters of the largest Llama-like shape.")
    well_shaped_certain: int | None = Field(
        default=None,
        description="Parameters of the largest such shape that fits by the upper memory estimate.",
    )
    well_shaped_possible: int | None = Field(
        default=None,
        description="Parameters of the largest such shape that fits by the lower memory estimate.",
    )
    limit: str = Field(description="Constraint that forbids the next value; empty: memory.")
    neighbours: tuple[Neighbour, ...] = Field(description="Next values, which do not fit.")
    seconds: float = Field(description="Wall time of the search, s.")

    @property
    def largest(self) -> Interval:
        """The largest model with its 80 % interval, parameters.

        Who tells the largest model that ran tried sizes that lie a factor apart, so the lower end
        is such a step below what surely fits.
        """
        likely = self.well_shaped or self.value
        certain = min(self.well_shaped_certain or self.certain or likely, likely)
        possible = max(self.well_shaped_possible or self.possible, likely)
        return Interval(certain / TRIED_SIZES, likely, possible)


class Found(NamedTuple):
    """An answer, and the plan at its value."""

    answer: Answer
    plan: Plan


def largest_micro_batch(request: Request) -> Found:
    """The largest micro batch that fits. Raises as `choose` does where not even one fits."""
    return _answered(request, micro_batch_axis)


def longest_sequence(request: Request) -> Found:
    """The longest sequence that fits, to 3 %, within the positions of the model."""
    return _answered(request, sequence_axis)


def fewest_gpus(request: Request) -> Found:
    """The fewest accelerators that suffice, on nodes as large as those of the request."""
    return _answered(request, gpus_axis)


def largest_model(
    request: Request, known: tuple[ModelSpec, ...], sized: Callable[[int], ModelSpec]
) -> Found:
    """The largest of the known decoders that fits, and the largest well-shaped size.

    `sized` gives a well-shaped model of a number of parameters.
    """
    started = perf_counter()
    found = _answered(request, lambda asked: model_axis(asked, known))
    way, near = found.plan.strategy, found.answer.value
    asked = request if way.offloads else _without_offload(request)
    settle = preferred if way.engine.has_zero_stages else _as_it_is

    def sizes_up_to(bound: Bound) -> int | None:
        return _largest_size(lambda size: size_axis(asked, sized, near=size), near, bound, settle)

    size = sizes_up_to("likely")
    sizes = {
        "well_shaped": size,
        "well_shaped_certain": sizes_up_to("high"),
        "well_shaped_possible": sizes_up_to("low"),
    }
    seconds = perf_counter() - started
    return found._replace(answer=found.answer.model_copy(update={**sizes, "seconds": seconds}))


def _largest_size(
    axis_near: Callable[[int], Axis], near: int, bound: Bound, settle: Settle
) -> int | None:
    """The largest size that fits: around a size, and further up while the last one does."""
    best: int | None = None
    while True:
        axis = axis_near(near)
        found = _Search(axis, bound, settle=settle).largest(near=True) if axis.values else None
        best = found or best
        if found is None or found < axis.values[-1] or found == near:
            return best
        near = found


def _answered(request: Request, axis_of: Callable[[Request], Axis]) -> Found:
    """The answer on one axis, by the first of three ways that has one.

    As in planning: DeepSpeed without offload for a small model, then with it, then Megatron.
    """
    started = perf_counter()
    axis, whole = axis_of(_without_offload(request)), axis_of(request)
    plain, offloading, megatron = _Search(axis), _Search(whole), _Search(axis, settle=_as_it_is)
    ways = (plain, offloading, megatron)
    search, value = next(((way, v) for way in ways if (v := way.best())), (None, None))
    if search is None or value is None:
        raise _refusal(whole)
    further = [way.beyond(value).best() if search is plain else None for way in ways]
    neighbours = tuple(search.neighbour(other) for other in axis.neighbours(value))
    answer = Answer.model_construct(
        question=axis.question,
        value=value,
        name=axis.name(value),
        certain=search.up_to(value, "high").best(),
        possible=search.beyond(value, "low").best() or value,
        offloaded=further[1] if further[1] != value else None,
        on_megatron=further[2] if further[2] != value else None,
        well_shaped=None,
        limit=_limit(axis, neighbours),
        neighbours=neighbours,
        seconds=perf_counter() - started,
    )
    return Found(answer, appraise(search.request(value)))


def _as_it_is(request: Request) -> Request:
    """The request with all back ends that its constraints leave."""
    return request


def _refusal(axis: Axis) -> DsforgeError:
    """Why not even the easiest value fits: what is missing, or the rule that forbids it."""
    if axis.values:
        try:
            choose(axis.at(axis.values[-1 if axis.smallest else 0]))
        except DsforgeError as error:
            return error
    problem = Problem("nothing-to-find", f"no value can be tried: {axis.end}")
    return LayoutError((problem,))


def _without_offload(request: Request) -> Request:
    """The request without offload and second copies, unless the user said something about them."""
    fixed = request.constraints
    kept: dict[str, object] = {"hpz_partition_size": fixed.hpz_partition_size or 1}
    if not (fixed.offload_optimizer or fixed.offload_parameters):
        kept |= {"offload_optimizer": "none", "offload_parameters": "none"}
    return request.model_copy(update={"constraints": fixed.model_copy(update=kept)})


class _Search:
    """The values of one axis that were looked at so far, with one end of the memory estimate."""

    def __init__(self, axis: Axis, bound: Bound = "likely", *, settle: Settle = preferred) -> None:
        self.axis = axis
        self.bound = bound
        self.settle = settle
        self._seen: dict[int, Nearest | None] = {}

    def beyond(self, value: int, bound: Bound = "likely") -> _Search:
        """The search from a value on."""
        return _Search(self.axis.beyond(value), bound, settle=self.settle)

    def up_to(self, value: int, bound: Bound) -> _Search:
        """The search up to a value."""
        return _Search(self.axis.up_to(value), bound, settle=self.settle)

    def request(self, value: int) -> Request:
        """The request that a value stands for, with the back end that planning prefers."""
        return self.settle(self.axis.at(value))

    def best(self) -> int | None:
        """The largest value that fits, or the smallest; none where no value does."""
        if self.axis.smallest:
            return self._smallest()
        if self.axis.holes:
            return next((v for v in reversed(self.axis.values) if self.fits(v)), None)
        return self.largest()

    def nearest(self, value: int) -> Nearest | None:
        """What fits at a value or comes nearest to it; none where nothing is legal."""
        if value not in self._seen:
            self._seen[value] = nearest(self.request(value), self.bound)
        return self._seen[value]

    def fits(self, value: int) -> bool:
        """Whether anything fits at a value."""
        found = self.nearest(value)
        return found is not None and found.missing_bytes <= 0

    def largest(self, *, near: bool = False) -> int | None:
        """The last value that fits, where all before it do: doubling, then bisection.

        `near`: the values lie around the answer, so that doubling gains nothing.
        """
        values = self.axis.values
        high = len(values) if near else 1
        while high < len(values) and self.fits(values[high]):
            high *= 2
        count = bisect_left(values[:high], True, key=lambda v: not self.fits(v))
        if self.axis.names:
            count = self._count_past_gaps(count)
        return values[count - 1] if count else None

    def _count_past_gaps(self, count: int) -> int:
        """As `count`, how many values end with the last that fits, after some that do not."""
        beyond = range(count, min(count + BEYOND, len(self.axis.values)))
        fitting = [index for index in beyond if self.fits(self.axis.values[index])]
        return self._count_past_gaps(fitting[-1] + 1) if fitting else count

    def _smallest(self) -> int | None:
        """The first value that fits: by doubling, then one by one after the last that failed."""
        failed, wanted = 0, 0
        for value in self.axis.values:
            if value >= wanted:
                if self.fits(value):
                    return next(v for v in self.axis.values if v > failed and self.fits(v))
                failed, wanted = value, 2 * value
        return None

    def neighbour(self, value: int) -> Neighbour:
        """What comes nearest to fitting at a value that does not, or the rule that forbids it."""
        found, request = self.nearest(value), self.request(value)
        label, short, why, terms = "", 0, "no strategy is valid", None
        if found is not None:
            label, short, terms = found.strategy.label(), found.missing_bytes, found.memory.terms
            why = shortage(request.cluster, found.memory)
        else:
            try:
                appraise(request)
            except LayoutError as error:
                why = str(error.problems[0])
        name = self.axis.name(value)
        return Neighbour.model_construct(
            value=value, name=name, label=label, missing_bytes=short, why=why, terms=terms
        )


def _limit(axis: Axis, neighbours: tuple[Neighbour, ...]) -> str:
    """Why there is no next value; empty where it lacks memory."""
    if not neighbours:
        return "1 is the minimum" if axis.smallest else axis.end
    return "" if neighbours[0].label else neighbours[0].why
