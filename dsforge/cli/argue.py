"""Tables of an argument: other ways to train, what would flip the choice, the Pareto front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from dsforge.planner.alternatives import Alternative, alternatives
from dsforge.planner.explore import Explorer
from dsforge.planner.front import FrontPoint, Part, fitting, front, parts
from dsforge.units import GIB, amount, seconds

if TYPE_CHECKING:
    from dsforge.plan import Plan, Request
    from dsforge.planner.flips import Flip

NEAREST = 3
LARGE = 2.0  # a slower plan than this on as many GPUs is left out of the table


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


def instead(found: Iterable[Alternative]) -> Table:
    """The best plan of each other kind against the choice."""
    table = Table(box=None, pad_edge=False)
    for name in ("kind", "strategy", "step", "of ours"):
        table.add_column(name, justify="right" if name in ("step", "of ours") else "left")
    table.add_column("differs most in", overflow="fold")
    table.add_column("GiB/GPU", justify="right")
    for other in found:
        more = "+" if other.term_s > 0 else "-"
        table.add_row(
            other.kind,
            other.label,
            seconds(other.step_s),
            f"{other.slowdown:.2f}x",
            f"{other.term} {more}{seconds(abs(other.term_s))}",
            f"{-other.saved_bytes / GIB:+.1f}",
        )
    return table


def flipping(found: tuple[Flip, ...]) -> list[str]:
    """One line for each change, or that nothing nearby flips the choice."""
    if not found:
        return ["  nothing near: no other link, memory size, batch or sequence within 8x"]
    return [f"  {flip} ({flip.label})" for flip in found]


def fronts(found: tuple[FrontPoint, ...]) -> Table:
    """For each number of GPUs the fastest, our choice and the roomiest; all are in --json."""
    table = Table(box=None, pad_edge=False)
    for name in ("GPUs", "step", "GPU s", "GiB free"):
        table.add_column(name, justify="right")
    priced = any(point.run and point.run.money for point in found)
    timed = any(point.run for point in found)
    for name, shown in (("days", timed), ("money", priced)):
        if shown:
            table.add_column(name, justify="right")
    table.add_column("strategy")
    table.add_column("")
    for point, why in _shown(found):
        run = point.run
        days = [amount(run.days.likely)] if run else []
        money = [amount(run.money.likely)] if run and run.money else []
        table.add_row(
            str(point.gpus),
            seconds(point.step_s.likely),
            amount(point.gpu_s),
            f"{point.free_bytes / GIB:.1f}",
            *days,
            *money,
            point.label,
            why,
        )
    return table


def _shown(found: tuple[FrontPoint, ...]) -> Iterator[tuple[FrontPoint, str]]:
    """The points that stand for each number of GPUs, and what each of them is."""
    for gpus in dict.fromkeys(point.gpus for point in found):
        here = [point for point in found if point.gpus == gpus]
        fastest = min(here, key=lambda p: p.step_s.likely)
        bound = LARGE * fastest.step_s.likely
        roomiest = max((p for p in here if p.step_s.likely <= bound), key=lambda p: p.free_bytes)
        for point in here:
            words = ["fastest"] if point is fastest else []
            words += ["chosen"] if point.chosen else []
            words += ["roomiest"] if point is roomiest and len(here) > 1 else []
            if words:
                yield point, ", ".join(words)
