"""`dsforge plan`: the ranking of all strategies, and why the losers lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.asked import to_request
from dsforge.cli.flags import Flags
from dsforge.cli.numbers import Whole
from dsforge.cli.options import with_flags, with_verbose
from dsforge.cli.paths import NamedPath
from dsforge.cli.sections import Sections
from dsforge.cli.show import show_json, show_nearest
from dsforge.cli.text import show
from dsforge.cli.wish import Wish, with_wish

if TYPE_CHECKING:
    from dsforge.api.results import PlanResult


@click.command(cls=Sections)
@with_flags
@with_wish
@click.option(
    "--top",
    type=Whole(min=1),
    help="Number of plans to show (default: 10 with --verbose and --json).",
)
@with_verbose
@click.option(
    "--argue", is_flag=True, help="Also show the Pareto front and what would change the choice."
)
@click.option("--plots", type=NamedPath(), help="Folder for SVG plots.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(
    *,
    flags: Flags,
    wish: Wish,
    top: int | None,
    verbose: bool,
    argue: bool,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Rank all strategies for a model on a cluster, with reasons."""
    from dsforge.api.planning import TOP
    from dsforge.api.planning import plan as ranked
    from dsforge.errors import DoesNotFitError

    request = to_request(flags)
    front = argue or plots is not None
    try:
        found = ranked(request, **wish, top=top or TOP, front=front, flips=argue)
    except DoesNotFitError as error:
        if as_json:
            show_nearest(request, error)
        raise
    if plots is not None:
        _save_plots(plots, found)
    if as_json:
        show_json(found.document.model_dump(mode="json"))
        return
    show([*(_all(found) if verbose else screen_lines(found, top)), *flip_lines(found)])


def screen_lines(found: PlanResult, top: int | None) -> list[str]:
    """The choice on one screen, or with as many ranks as were asked for."""
    from dsforge.cli.brief import alternatives, asked_and_lost, defaults, screen, table
    from dsforge.cli.priced import ranking

    plan, search = found.best, found.search
    others = [] if top else alternatives(plan, search, found.alternatives)
    last = [*asked_and_lost(found.request, search), *defaults(plan)]
    ranks = ["", *ranking(search, top)] if top else []
    return [
        *screen(plan, below=lambda most: table(plan, others, "alternatives", most), last=last),
        *ranks,
    ]


def _all(found: PlanResult) -> list[str]:
    """Figures, ranking, all reasons, other ways, what is impossible."""
    from dsforge.cli.brief import every_reason, head
    from dsforge.cli.priced import instead, losers, ranking

    plan, search = found.best, found.search
    lines = [*head(plan), "", *every_reason(plan.choice.reasons), "", *ranking(search, found.top)]
    if found.alternatives:
        lines += ["", "alternatives: the fastest plan of each other kind, nearest step time first"]
        lines += instead(found.alternatives)
    if search.rejected:
        lines += ["", "rejected: not possible, or not certain to fit", *losers(search)]
    return [*lines, "", f"{search.candidates:,} candidates in {search.seconds:.2f} s"]


def flip_lines(found: PlanResult) -> list[str]:
    """What would flip the choice, and the front; nothing where nobody asked."""
    if found.flips is None:
        return []
    from dsforge.cli.priced import flipping, fronts

    title = "Pareto front in time, GPUs, cost, memory; the choice for each number of GPUs"
    lines = ["", "changes that would change the choice", *flipping(found.flips)]
    return [*lines, "", title, *fronts(found.front or ())]


def _save_plots(folder: Path, found: PlanResult) -> None:
    """Four charts as SVG."""
    from dsforge.cli.show import note, save
    from dsforge.errors import DsforgeError

    texts = found.charts()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DsforgeError(f"cannot make {folder}: {error.strerror}") from error
    for name, text in texts.items():
        save(folder / name, text)
    note(f"{folder}: {', '.join(texts)}")
