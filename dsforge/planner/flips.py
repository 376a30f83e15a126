"""What would flip the choice: another network, card or batch, planned anew for each.

Values are those that exist: links and memory sizes of the catalog, batches and sequences of twice
or half the size. On each axis the search ends with the first value that changes the kind of plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from dsforge.plan import Request
from dsforge.planner.alternatives import fastest_of_kinds, kind_of
from dsforge.planner.explore import Candidate, Explorer
from dsforge.planner.parts import settled
from dsforge.planner.pieces import fitting
from dsforge.planner.preference import choice
from dsforge.specs import FROZEN, GpuSpec, LinkSpec
from dsforge.units import gib, times

APART = 1.5  # values nearer to each other than this factor are one
TRIED = 3  # values in each direction of an axis
NETWORKS = ("infiniband", "ethernet", "fabric")
SLOTS = ("nvlink", "xgmi", "pcie")
SHARES = (2, 4, 8)
TIE = 0.02  # kinds whose steps are nearer to each other than this are not told apart


class Flip(BaseModel):
    """One change of the circumstances after which another kind of plan is chosen."""

    model_config = FROZEN

    axis: str = Field(description="inter_node, intra_node, memory, global_batch_size, ...")
    change: str = Field(description="Change in words: `100gbe instead of 10gbe`.")
    kind: str = Field(description="Kind of the plan that is then chosen.")
    label: str = Field(description="Label of that plan.")
    margin: float | None = Field(
        description="How much longer the present kind's step is then, as a share; negative: it is "
        "shorter, but the new kind is simpler. None: the present kind no longer fits."
    )
    instead_of: str = Field(description="Kind that is chosen without the change.")

    def __str__(self) -> str:
        """`with 100gbe instead of 10gbe, ZeRO-3 is 1.12x faster`."""
        if self.margin is None:
            return f"with {self.change}, {self.kind} is chosen: {self.instead_of} does not fit"
        if self.margin < 0:
            less = f"{self.instead_of} is {times(1 + self.margin, 1)}"
            return f"with {self.change}, {self.kind} is chosen as the simpler one, although {less}"
        return f"with {self.change}, {self.kind} is {times(1, 1 + self.margin)}"


class Known(NamedTuple):
    """What exists: the catalog, which the core does not read."""

    links: tuple[LinkSpec, ...]
    gpus: tuple[GpuSpec, ...]


class _Change(NamedTuple):
    """One value on one axis."""

    words: str
    request: Request


def flips(request: Request, chosen: Candidate, known: Known) -> tuple[Flip, ...]:
    """The nearest changes, one for each axis and direction, that flip the choice."""
    mine = kind_of(chosen.family)
    found = []
    for axis, directions in _axes(request, known):
        for changes in directions:
            flip = next(filter(None, (_flip(axis, c, mine) for c in changes)), None)
            if flip is not None:
                found.append(flip)
    return tuple(found)


def _flip(axis: str, change: _Change, mine: str) -> Flip | None:
    """The change where another kind is chosen under it; none where it is not, or nothing fits."""
    asked = change.request.model_copy(update={"part_step_s": inf})  # known of the old machines only
    looked = settled(Explorer(asked))
    members = fitting(looked)
    if not members:
        return None
    winner = choice(looked.request, members)
    kind = kind_of(winner.family)
    if kind == mine:
        return None
    old = fastest_of_kinds(members).get(mine)
    if old is not None and 0 <= old.step_s / winner.step_s - 1 < TIE:
        return None
    return Flip.model_construct(
        axis=axis,
        change=change.words,
        kind=kind,
        label=winner.strategy.label(),
        margin=None if old is None else old.step_s / winner.step_s - 1,
        instead_of=mine,
    )


_Axis = tuple[str, tuple[Iterable[_Change], ...]]


def _axes(request: Request, known: Known) -> Iterator[_Axis]:
    """Axes with their changes upwards and downwards, mildest first."""
    cluster = request.cluster
    if cluster.nodes > 1:
        yield "inter_node", _links(request, known.links, "inter_node")
    if cluster.gpus_per_node > 1 and not cluster.gpu.is_cpu:
        yield "intra_node", _links(request, known.links, "intra_node")
    if not cluster.gpu.is_cpu:
        yield "memory", _memories(request, known.gpus)
    yield "global_batch_size", _sizes(request, "global_batch_size", "a global batch of {}")
    yield "sequence_length", _sizes(request, "sequence_length", "sequences of {} tokens")


def _spaced(values: list[float], start: float, *, upwards: bool) -> list[float]:
    """Values beyond the start, each a good step from the one before."""
    found, last = [], start
    for value in sorted(set(values), reverse=not upwards):
        if value > last * APART if upwards else value < last / APART:
            found.append(value)
            last = value
    return found[:TRIED]


def _links(
    request: Request, links: tuple[LinkSpec, ...], field: str
) -> tuple[Iterable[_Change], ...]:
    now: LinkSpec = getattr(request.cluster, field)
    kinds = NETWORKS if field == "inter_node" else SLOTS
    by_rate = {link.bytes_per_s: link for link in reversed(links) if link.kind in kinds}

    def changed(rates: list[float]) -> Iterator[_Change]:
        for rate in rates:
            link = by_rate[rate]
            asked = _with_cluster(request, {field: link})
            yield _Change(f"{link.name} instead of {now.name}", asked)

    up, down = (_spaced(list(by_rate), now.bytes_per_s, upwards=way) for way in (True, False))
    return changed(up), changed(down)


def _memories(request: Request, gpus: tuple[GpuSpec, ...]) -> tuple[Iterable[_Change], ...]:
    card = request.cluster.gpu
    sizes = [float(gpu.memory_bytes) for gpu in gpus if not gpu.is_cpu]

    def changed(values: list[float]) -> Iterator[_Change]:
        for size in values:
            other = card.model_copy(update={"memory_bytes": round(size)})
            words = f"{gib(size)} on each card instead of {gib(card.memory_bytes)}"
            yield _Change(words, _with_cluster(request, {"gpu": other}))

    up, down = (_spaced(sizes, card.memory_bytes, upwards=way) for way in (True, False))
    return changed(up), changed(down)


def _sizes(request: Request, field: str, words: str) -> tuple[Iterable[_Change], ...]:
    now: int = getattr(request.workload, field)

    def changed(values: Iterable[int]) -> Iterator[_Change]:
        for value in values:
            work = request.workload.model_copy(update={field: value})
            text = f"{words.format(value)} instead of {now}"
            yield _Change(text, request.model_copy(update={"workload": work}))

    down = (now // share for share in SHARES if now % share == 0)
    return changed(now * share for share in SHARES), changed(down)


def _with_cluster(request: Request, fields: dict[str, Any]) -> Request:
    cluster = request.cluster.model_copy(update=fields)
    return request.model_copy(update={"cluster": cluster, "others": ()})
