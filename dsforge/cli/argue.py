"""The argument for a plan: other ways to train, what would flip the choice, the Pareto front."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsforge.planner.alternatives import Alternative, alternatives
from dsforge.planner.explore import Explorer
from dsforge.planner.front import FrontPoint, Part, fitting, front, parts

if TYPE_CHECKING:
    from dsforge.plan import Plan, Request
    from dsforge.planner.flips import Flip

NEAREST = 3  # other ways that are shown unless more was asked for


class Argument(NamedTuple):
    """What speaks for a choice and against it."""

    others: tuple[Alternative, ...]
    parts: tuple[Part, ...] = ()
    front: tuple[FrontPoint, ...] | None = None
    flips: tuple[Flip, ...] | None = None


def argument(request: Request, plan: Plan, explorer: Explorer, *, whole: bool) -> Argument:
    """The other ways; with `whole`, the front and the flips too, which takes many searches."""
    others = alternatives(request, plan.choice, fitting(explorer))
    if not whole:
        return Argument(others)
    from dsforge import catalog
    from dsforge.planner.flips import Known, flips

    known = Known(
        tuple(catalog.link(name) for name in catalog.link_names()),
        tuple(catalog.gpu(name) for name in catalog.gpu_names()),
    )
    found = tuple(parts(request, explorer))
    return Argument(others, found, front(found), flips(request, found[0].best, known))
