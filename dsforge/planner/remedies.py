"""What would make it fit, cheapest first: single changes, and pairs where none of those suffices.

Each change is made to the request, and the planner is asked again: a remedy is a plan that fits,
and its figures are that plan's. Cheapest is what costs the fewest seconds of GPU time for a token;
what costs more than three times as many is left out, unless it is the only way to keep the job and
the accelerators: more RAM, or a disk. A change of the strategy comes before another engine, then
another batch, other machines, another job: whoever asked wants this job, on these machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.plan import Priced, Request
from dsforge.planner.changes import METHOD, MOST_RAM_BYTES, ROOM, Change, Kind, changes
from dsforge.planner.explore import Explorer
from dsforge.planner.fitting import nearest
from dsforge.planner.preference import choice
from dsforge.planner.pricing import HOST_SHARE, missing, price
from dsforge.specs import FROZEN
from dsforge.strategy import Strategy
from dsforge.units import GIB, gib

SHOWN = 4
DEAREST = 3.0  # times the GPU time of a token: beyond, nobody takes it
NOTICED = 0.005  # a smaller difference of time is none
TIMES = 2  # from here on a factor reads better than per cent
MANY_TIMES = 10  # from here on a factor reads better for what takes less, too
NOTICED_RAM_BYTES = 1 << 30
OPPOSITE = {"fewer", "nodes"}  # axes that undo each other


class Remedy(BaseModel):
    """One change, or two together, after which the job fits."""

    model_config = FROZEN

    changes: tuple[str, ...] = Field(description="Changes in words: `recompute full`, `ZeRO-3`.")
    saved_bytes: int = Field(description="Likely memory saved on each accelerator.")
    slowdown: float = Field(
        description="GPU time per token relative to the strategy before the change."
    )
    cost: str = Field(description="Cost of the change, in words.")
    strategy: Strategy = Field(description="The strategy after the change.")

    def __str__(self) -> str:
        """`recompute full: saves 31 GiB, about 27% more step time (compute)`."""
        saved = f"saves {gib(self.saved_bytes)}, " if self.saved_bytes > 0 else ""
        return f"{' and '.join(self.changes)}: {saved}{self.cost}"


class Working(NamedTuple):
    """Changes that suffice and the request after them; `further`: a milder one does, too."""

    remedy: Remedy
    request: Request
    axes: tuple[str, ...]
    kind: Kind
    further: bool


def remedies(request: Request, nearest: Priced) -> tuple[Remedy, ...]:
    """The cheapest changes that make a request fit which does not; empty where none is known."""
    return tuple(works.remedy for works in working(request, nearest))


def working(request: Request, before: Priced) -> tuple[Working, ...]:
    """The remedies of a request, each with the request that it stands for."""
    singles = tuple(changes(request, _host_bytes_wanted(request)))
    found = list(_working_changes(request, before, ((single,) for single in singles)))
    if len(found) < SHOWN:
        enough = {axis for works in found for axis in works.axes}
        found += _working_changes(request, before, _pairs(singles, enough))
    found.sort(key=lambda works: (works.further, works.kind, works.remedy.slowdown))
    return tuple(_affordable(found)[:SHOWN])


def _affordable(found: list[Working]) -> list[Working]:
    """The remedies that are worth their time; of those that only add room the best one always."""
    rooms = [works.remedy.slowdown for works in found if only_adds_room(works.axes)]
    limit = max(DEAREST, min(rooms, default=0.0))
    return [works for works in found if works.remedy.slowdown <= limit]


def only_adds_room(axes: tuple[str, ...]) -> bool:
    """Whether job, strategy and accelerators stay as they are: more RAM, or a disk."""
    return len(axes) == 1 and axes[0] in ROOM


def _host_bytes_wanted(request: Request) -> int:
    """RAM of a node with which something would fit, in whole GiB; 0 where none would be enough."""
    light = nearest(request)
    if light is None:
        return 0
    peak = light.memory.host_bytes.peak
    if request.cluster.gpu.is_cpu:  # what lacks least: a choice would fill any RAM with its batch
        peak += round(request.cluster.gpus_per_node * light.memory.device_bytes.likely)
    elif missing(request.cluster, light.memory).get("device", 1) > 0:
        plenty = {"host_memory_bytes": MOST_RAM_BYTES}
        roomy = request.cluster.model_copy(update=plenty)
        best = planned(request.model_copy(update={"cluster": roomy}))
        if best is None:
            return 0
        peak = best.memory.host_bytes.peak
    return -(-round(peak / HOST_SHARE) // GIB) * GIB


def planned(request: Request) -> Priced | None:
    """What the planner takes for a request; none where nothing fits."""
    light = nearest(request)
    if light is None or light.missing_bytes > 0:
        return None
    fitting = tuple(one for found in Explorer(request).every() for one in found.fitting)
    if not fitting:
        return None
    best = choice(request, fitting)
    return price(request.model, request.cluster, request.workload, best.strategy)


def _pairs(singles: tuple[Change, ...], enough: set[str]) -> Iterator[tuple[Change, Change]]:
    """Two changes on different axes, neither of which suffices alone; adapters with more RAM."""
    left = [single for single in singles if single.axis not in enough]
    axes = list(dict.fromkeys(single.axis for single in left))
    for first in left:
        if first.axis == METHOD:
            host_bytes = _host_bytes_wanted(first.request)
            more = changes(first.request, host_bytes)
            yield from ((first, second) for second in more if second.axis in ROOM)
            continue
        for second in changes(first.request, 0):
            later = second.axis in axes and axes.index(second.axis) > axes.index(first.axis)
            if later and {first.axis, second.axis} != OPPOSITE:
                yield first, second


def _working_changes(
    request: Request, before: Priced, ways: Iterable[tuple[Change, ...]]
) -> Iterator[Working]:
    """What fits: the mildest on each combination of axes, of a strategy's single axis all."""
    seen, plans = set(), set()
    for made in ways:
        axes, last = tuple(change.axis for change in made), made[-1].request
        kind = max(change.kind for change in made)
        further = axes in seen
        if further and (kind != Kind.strategy or len(made) > 1):
            continue
        after = planned(last)
        if after is None:
            continue
        if kind <= Kind.engine and after.strategy in plans:  # under another name
            continue
        seen.add(axes)
        plans.add(after.strategy)
        remedy = _remedy(made, request, before, after)
        if remedy.slowdown <= DEAREST or only_adds_room(axes):
            yield Working(remedy, last, axes, kind, further)


def _remedy(made: tuple[Change, ...], start: Request, before: Priced, after: Priced) -> Remedy:
    """The change with its price."""
    saved = before.memory.device_bytes.likely - after.memory.device_bytes.likely
    slowdown = before.time.tokens_per_s_per_gpu / after.time.tokens_per_s_per_gpu
    end = made[-1].request
    costs = (
        _machines(start, end),
        *_job(start, end),
        _speed(_Run(start, before), _Run(end, after), slowdown),
        _ram(before, after),
    )
    return Remedy.model_construct(
        changes=tuple(change.named(after.strategy) for change in made),
        saved_bytes=round(saved),
        slowdown=slowdown,
        cost=", ".join(cost for cost in costs if cost),
        strategy=after.strategy,
    )


def _machines(start: Request, end: Request) -> str:
    more = end.cluster.gpus - start.cluster.gpus
    if not more:
        return ""
    return f"{abs(more)} {'more' if more > 0 else 'fewer'} accelerator{'s' * (abs(more) > 1)}"


def _job(start: Request, end: Request) -> Iterator[str]:
    """What of the job is another one."""
    before, after = start.workload, end.workload
    if after.sequence_length != before.sequence_length:
        yield f"samples truncated to {after.sequence_length} tokens"
    if after.global_batch_size != before.global_batch_size:
        yield f"global batch {after.global_batch_size}"
    if after.lora and not before.lora:
        yield f"trains only adapters of rank {after.lora.rank}"
    if after.is_quantised and not before.is_quantised:
        yield "frozen matrices in 4 bits"


class _Run(NamedTuple):
    """A request and the price of its plan."""

    request: Request
    priced: Priced

    def gpu_s_per_token(self, term: str) -> float:
        """GPU time of one token that a time term takes, s."""
        seconds: float = getattr(self.priced.time.terms, term)
        asked = self.request
        return seconds * asked.cluster.gpus / asked.workload.tokens_per_step


def _speed(before: _Run, after: _Run, slowdown: float) -> str:
    """How much more time it takes, and what most of that is."""
    first, second = before.request, after.request
    same = (first.cluster, first.workload) == (second.cluster, second.workload)
    unit = "step time" if same else "GPU time per token"
    if abs(slowdown - 1) < NOTICED:
        return f"the same {unit}"
    if slowdown >= TIMES:
        return f"{slowdown:.1f}x the {unit}"
    if slowdown <= 1 / MANY_TIMES:
        return f"{1 / slowdown:.0f}x less {unit}"
    if slowdown < 1:
        return f"about {1 - slowdown:.0%} less {unit}"
    grown = {
        name: after.gpu_s_per_token(name) - before.gpu_s_per_token(name)
        for name, _ in after.priced.time.terms
    }
    what = max(grown, key=lambda name: grown[name]).removesuffix("_s")
    return f"about {slowdown - 1:.0%} more {unit} ({what})"


def _ram(before: Priced, after: Priced) -> str:
    more = after.memory.host_bytes.peak - before.memory.host_bytes.peak
    return f"{gib(more)} more host RAM per node at its peak" if more > NOTICED_RAM_BYTES else ""
