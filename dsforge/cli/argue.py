"""The argument for a plan: other ways to train, what would flip the choice, the Pareto front."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsforge.planner.alternatives import Alternative, alternatives
from dsforge.planner.explore import Explorer
from dsforge.planner.front import FrontPoint, front
from dsforge.planner.parts import parts
from dsforge.planner.pieces import fitting
from dsforge.planner.preference import choice

if TYPE_CHECKING:
    from dsforge.plan import Plan, Request
    from dsforge.planner.flips import Flip

NEAREST = 3  # other ways that are shown unless more was asked for


class Argument(NamedTuple):
    """What speaks for a choice and against it."""

    others: tuple[Alternative, ...]
    front: tuple[FrontPoint, ...] | None = None
    flips: tuple[Flip, ...] | None = None


def argument(request: Request, plan: Plan, explorer: Explorer) -> Argument:
    """The other ways: they take no further search."""
    return Argument(alternatives(request, plan.choice, fitting(explorer)))


def with_front(found: Argument, request: Request, explorer: Explorer) -> Argument:
    """And the front: a search for each part of the cluster."""
    return found._replace(front=front(tuple(parts(request, explorer))))


def with_flips(found: Argument, request: Request, explorer: Explorer) -> Argument:
    """And what would flip the choice: a search for each change, up to thirty."""
    from dsforge import catalog
    from dsforge.planner.flips import Known, flips

    known = Known(
        tuple(catalog.link(name) for name in catalog.link_names()),
        tuple(catalog.gpu(name) for name in catalog.gpu_names()),
    )
    chosen = choice(request, fitting(explorer))
    return found._replace(flips=flips(request, chosen, known))
