"""Timeline of allocations by owner, recorded in a rehearsal; without torch.

Time is counted in allocations and releases: nothing computes, so there are no seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

Owner = Literal["parameter", "gradient", "optimizer_state", "buffer", "activation"]
OWNERS: tuple[Owner, ...] = ("parameter", "gradient", "optimizer_state", "buffer", "activation")


class Change(NamedTuple):
    """Bytes allocated (or, negative, released) on the device or on the host."""

    owner: Owner
    on_device: bool
    size_bytes: int


class Span(NamedTuple):
    """A phase: the changes from `start` up to `end`."""

    name: str
    start: int
    end: int


class Timeline(NamedTuple):
    """All changes in order, and the phases they belong to."""

    changes: tuple[Change, ...]
    spans: tuple[Span, ...]


class Level(NamedTuple):
    """Bytes of each owner at one moment, in the order of OWNERS."""

    parameter: int = 0
    gradient: int = 0
    optimizer_state: int = 0
    buffer: int = 0
    activation: int = 0

    @property
    def total(self) -> int:
        """Bytes of all owners."""
        return sum(self)


class PhaseLevels(NamedTuple):
    """A phase: what is left at its end, and what was there at its fullest moment."""

    name: str
    resident: Level
    peak: Level


def levels(timeline: Timeline, *, on_device: bool = True) -> Iterator[Level]:
    """The level after each change, of the device or of the host."""
    held = [0] * len(OWNERS)
    for change in timeline.changes:
        if change.on_device == on_device:
            held[OWNERS.index(change.owner)] += change.size_bytes
        yield Level(*held)


def phase_levels(timeline: Timeline, *, on_device: bool = True) -> tuple[PhaseLevels, ...]:
    """Resident and peak bytes of each phase."""
    course = [Level(), *levels(timeline, on_device=on_device)]
    found = []
    for span in timeline.spans:
        within = course[span.start : span.end + 1]
        found.append(PhaseLevels(span.name, within[-1], max(within, key=sum)))
    return tuple(found)
