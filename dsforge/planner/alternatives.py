"""What else could be done: the best plan of each other kind, and what it loses or gains.

A kind is how users name a way to train: ZeRO-3, ZeRO-2 with offload, Megatron with TP, PP. Its
members differ by sizes only, so the fastest stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, Field

from dsforge.plan import Priced, Request
from dsforge.planner.explore import Candidate
from dsforge.planner.pricing import price
from dsforge.specs import FROZEN
from dsforge.strategy import Strategy
from dsforge.units import gib, seconds, times

AXES = ("tensor", "pipeline", "context", "expert")
SHORT = {"tensor": "TP", "pipeline": "PP", "context": "CP", "expert": "EP"}
NOTICED = 0.005  # a smaller difference of time is none
TIMES = 2.0  # from here on a factor reads better than per cent


class Alternative(BaseModel):
    """The fastest plan of another kind, against the choice."""

    model_config = FROZEN

    kind: str = Field(
        description="Kind of strategy without parallel sizes, such as `ZeRO-3 with offload to cpu`."
    )
    strategy: Strategy = Field(description="Fastest strategy of that kind.")
    label: str = Field(description="The strategy in short.")
    step_s: float = Field(description="Likely seconds of one optimizer step.")
    slowdown: float = Field(description="Step time relative to the chosen plan.")
    term: str = Field(description="Time term that differs most.")
    term_s: float = Field(description="Difference of that term in seconds; negative: shorter.")
    saved_bytes: int = Field(description="Likely memory saved on each accelerator.")

    def __str__(self) -> str:
        """`1.31x slower (communication +2.1 s), 12 GiB less device memory`."""
        more = "+" if self.term_s > 0 else "-"
        term = f"{self.term} {more}{seconds(abs(self.term_s))}"
        more = "less" if self.saved_bytes > 0 else "more"
        memory = f"{gib(abs(self.saved_bytes))} {more} device memory"
        return f"{times(self.slowdown, 1)} ({term}), {memory}"


def kind_of(strategy: Strategy) -> str:
    """How users call that way to train, without sizes."""
    sizes = {axis: getattr(strategy.layout, f"{axis}_parallel_size") for axis in AXES}
    found = [SHORT[axis] for axis, size in sizes.items() if size > 1]
    if not strategy.engine.has_zero_stages:
        return f"{strategy.engine.short_label} with {', '.join(found) or 'DP alone'}"
    places = {strategy.offload_optimizer, strategy.offload_parameters} - {"none"}
    found += [f"offload to {' and '.join(sorted(places))}"] if places else []
    found += ["hpZ"] if strategy.hpz_partition_size > 1 else []
    name = f"ZeRO-{strategy.zero_stage}"
    return f"{name} with {', '.join(found)}" if found else name


def fastest_of_kinds(fitting: Iterable[Candidate]) -> dict[str, Candidate]:
    """The fastest candidate of each kind."""
    best: dict[str, Candidate] = {}
    kinds: dict[int, str] = {}  # by family: its members are of one kind
    for candidate in fitting:
        family = candidate.family
        kind = kinds.get(id(family)) or kinds.setdefault(id(family), kind_of(family))
        known = best.get(kind)
        if known is None or candidate.step_s < known.step_s:
            best[kind] = candidate
    return best


def alternatives(
    request: Request, chosen: Priced, fitting: Iterable[Candidate]
) -> tuple[Alternative, ...]:
    """The other kinds that fit, those with nearly the same step first."""
    mine = kind_of(chosen.strategy)
    others = {kind: c for kind, c in fastest_of_kinds(fitting).items() if kind != mine}
    found = [_against(request, chosen, kind, c.strategy) for kind, c in others.items()]
    found.sort(key=lambda other: max(other.slowdown, 1 / other.slowdown))
    return tuple(found)


def _against(request: Request, chosen: Priced, kind: str, strategy: Strategy) -> Alternative:
    other = price(request.model, request.cluster, request.workload, strategy)
    mine, theirs = dict(chosen.time.terms), dict(other.time.terms)
    term = max(mine, key=lambda name: abs(theirs[name] - mine[name]))
    saved = chosen.memory.device_bytes.likely - other.memory.device_bytes.likely
    return Alternative.model_construct(
        kind=kind,
        strategy=strategy,
        label=strategy.label(),
        step_s=other.time.step_s.likely,
        slowdown=other.time.step_s.likely / chosen.time.step_s.likely,
        term=term.removesuffix("_s"),
        term_s=theirs[term] - mine[term],
        saved_bytes=round(saved),
    )
