"""What would make it fit, cheapest first: single changes, and pairs where those do not suffice.

Cheapest is what costs the fewest seconds of GPU time for a token. A change of the strategy comes
before more machines, and those before another job: whoever asked wants this job, on these machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.estimate.memory import estimate_memory
from dsforge.plan import Priced, Request
from dsforge.planner.changes import Change, Kind, changes
from dsforge.planner.pricing import HOST_SHARE, missing, missing_bytes, price
from dsforge.rules import Case, check
from dsforge.specs import FROZEN
from dsforge.strategy import Strategy
from dsforge.units import gib

SHOWN = 3
NOTICED = 0.005  # a smaller difference of time is none
TIMES = 2  # from here on a factor reads better than per cent
NOTICED_RAM_BYTES = 1 << 30


class Remedy(BaseModel):
    """One change, or two together, after which the job fits."""

    model_config = FROZEN

    changes: tuple[str, ...] = Field(description="In words: `recompute full`, `ZeRO-3`.")
    saved_bytes: int = Field(description="Likely memory saved on each accelerator.")
    slowdown: float = Field(description="GPU time of a token over that before the change.")
    cost: str = Field(description="What it costs, in words.")
    strategy: Strategy = Field(description="The strategy after the change.")

    def __str__(self) -> str:
        """`recompute full: saves 31 GiB, about 27% more step time (compute)`."""
        saved = f"saves {gib(self.saved_bytes)}, " if self.saved_bytes > 0 else ""
        return f"{' and '.join(self.changes)}: {saved}{self.cost}"


class _Working(NamedTuple):
    """Changes that suffice; `further`: a milder one on the same axis does, too."""

    made: tuple[Change, ...]
    kind: Kind
    further: bool
    remedy: Remedy


def remedies(request: Request, nearest: Priced) -> tuple[Remedy, ...]:
    """The cheapest changes that make a strategy fit which does not; empty where none is known."""
    start = Case(request.model, request.cluster, request.workload, nearest.strategy)
    host_bytes = _host_bytes_wanted(request, nearest)
    singles = tuple(changes(start, host_bytes))
    found = list(_working(start, nearest, ((single,) for single in singles)))
    if len(found) < SHOWN:
        enough = {change.axis for works in found for change in works.made}
        left = [single for single in singles if single.axis not in enough]
        found += _working(start, nearest, _pairs(left, host_bytes, enough))
    found.sort(key=lambda works: (works.further, works.kind, works.remedy.slowdown))
    return tuple(works.remedy for works in found[:SHOWN])


def _host_bytes_wanted(request: Request, nearest: Priced) -> int:
    """RAM of a node with which the host would not be short."""
    short = missing(request.cluster, nearest.memory)["host"] * request.cluster.gpus_per_node
    return request.cluster.host_memory_bytes + round(max(0, short) / HOST_SHARE)


def _pairs(
    firsts: list[Change], host_bytes: int, enough: set[str]
) -> Iterator[tuple[Change, Change]]:
    """Two changes on different axes, neither of which suffices alone."""
    axes = list(dict.fromkeys(first.axis for first in firsts))
    for first in firsts:
        for second in changes(first.case, host_bytes):
            known = axes.index(second.axis) if second.axis in axes else len(axes)
            if second.axis not in enough and known > axes.index(first.axis):
                yield first, second


def _working(
    start: Case, before: Priced, tried: Iterable[tuple[Change, ...]]
) -> Iterator[_Working]:
    """What fits: the mildest on each combination of axes, of a strategy's single axis all."""
    seen = set()
    for made in tried:
        axes, case = tuple(change.axis for change in made), made[-1].case
        kind = max(change.kind for change in made)
        further = axes in seen
        if (further and (kind != Kind.strategy or len(made) > 1)) or check(*case):
            continue
        memory = estimate_memory(*case)
        if missing_bytes(case.cluster, memory) <= 0:
            seen.add(axes)
            after = price(*case)
            yield _Working(made, kind, further, _remedy(made, start, before, after))


def _remedy(made: tuple[Change, ...], start: Case, before: Priced, after: Priced) -> Remedy:
    """The change with its price."""
    saved = before.memory.device_bytes.likely - after.memory.device_bytes.likely
    slowdown = before.time.tokens_per_s_per_gpu / after.time.tokens_per_s_per_gpu
    end = made[-1].case
    costs = (
        _machines(start, end),
        *_job(start, end),
        _speed(_Run(start, before), _Run(end, after), slowdown),
        _ram(before, after),
    )
    return Remedy.model_construct(
        changes=tuple(change.name for change in made),
        saved_bytes=round(saved),
        slowdown=slowdown,
        cost=", ".join(cost for cost in costs if cost),
        strategy=after.strategy,
    )


def _machines(start: Case, end: Case) -> str:
    more = end.cluster.gpus - start.cluster.gpus
    return f"{more} more accelerator{'s' if more > 1 else ''}" if more else ""


def _job(start: Case, end: Case) -> Iterator[str]:
    """What of the job is another one."""
    before, after = start.workload, end.workload
    if after.sequence_length != before.sequence_length:
        yield f"samples cut at {after.sequence_length} tokens"
    if after.global_batch_size != before.global_batch_size:
        yield f"global batch {after.global_batch_size}"
    if after.lora and not before.lora:
        yield f"only adapters of rank {after.lora.rank} learn"
    if after.in_4_bits and not before.in_4_bits:
        yield "frozen matrices in 4 bits"


class _Run(NamedTuple):
    """A case and its price."""

    case: Case
    priced: Priced

    def gpu_s_per_token(self, term: str) -> float:
        """GPU time of one token that a time term takes, s."""
        seconds: float = getattr(self.priced.time.terms, term)
        return seconds * self.case.cluster.gpus / self.case.workload.tokens_per_step


def _speed(before: _Run, after: _Run, slowdown: float) -> str:
    """How much more time it takes, and what most of that is."""
    same = before.case[:3] == after.case[:3]  # model, cluster, workload
    unit = "step time" if same else "GPU time a token"
    if abs(slowdown - 1) < NOTICED:
        return f"the same {unit}"
    if slowdown >= TIMES:
        return f"{slowdown:.1f}x the {unit}"
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
    return f"{gib(more)} more host RAM a node" if more > NOTICED_RAM_BYTES else ""
