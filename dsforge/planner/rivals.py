"""What a choice is weighed against: the fastest plan of each family, and what fits less surely."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NamedTuple

from dsforge.plan import Request
from dsforge.planner.explore import Candidate, Explored
from dsforge.planner.preference import doubt, tight_and_faster
from dsforge.strategy import Strategy


class Rivals(NamedTuple):
    """What else was found, the fastest member of each family standing for it."""

    explored: tuple[Explored, ...]
    likewise: tuple[Candidate, ...]  # of those that fit as surely as the choice
    kept: tuple[Candidate, ...]  # of those, recomputing nothing
    fitting: tuple[Candidate, ...]  # of all that likely fit
    tight: Candidate | None  # the fastest that fits less surely, where it beats all these

    def fastest(self, wanted: Callable[[Strategy], bool]) -> Candidate | None:
        """The fastest that fits likewise, of the families that are wanted."""
        return fastest(c for c in self.likewise if wanted(c.family))

    def legal(self, wanted: Callable[[Strategy], bool]) -> bool:
        """Whether a family that is wanted breaks no rule."""
        return any(wanted(found.family) and not found.problems for found in self.explored)

    def likely(self, wanted: Callable[[Strategy], bool]) -> Candidate | None:
        """The fastest that likely fits, of the families that are wanted."""
        return fastest(c for c in self.fitting if wanted(c.family))


def rivals(request: Request, explored: tuple[Explored, ...]) -> Rivals:
    """What else was found; once for all rows of a search."""
    fitting = tuple(candidate for found in explored for candidate in found.fitting)
    most = doubt(request, fitting)
    members = [
        [candidate for candidate in found.fitting if candidate.excess_bytes <= most]
        for found in explored
    ]
    kept = ([c for c in group if c.recompute == "none"] for group in members)
    return Rivals(
        explored=explored,
        likewise=tuple(filter(None, map(fastest, members))),
        kept=tuple(filter(None, map(fastest, kept))),
        fitting=tuple(filter(None, (fastest(found.fitting) for found in explored))),
        tight=tight_and_faster(request, fitting) if fitting else None,
    )


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The candidate with the smallest step; none of none."""
    return min(candidates, key=attrgetter("step_s"), default=None)
