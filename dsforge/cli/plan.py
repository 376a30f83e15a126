"""`dsforge plan`: the ranking of all strategies, and why the losers lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.flags import (
    Flags,
    Sections,
    Wish,
    to_request,
    wished,
    with_flags,
    with_verbose,
    with_wish,
)
from dsforge.cli.numbers import Whole
from dsforge.cli.show import show_json, show_nearest
from dsforge.cli.text import show

if TYPE_CHECKING:
    from dsforge.cli.argue import Argument
    from dsforge.plan import Request, Search

DEFAULT_TOP = 10
MOST_BARS = 8  # other strategies in the charts of terms


@click.command(cls=Sections)
@with_flags
@with_wish
@click.option("--top", type=Whole(min=1), help="Plans to rank; 10 with --verbose and --json.")
@with_verbose
@click.option("--argue", is_flag=True, help="Also the Pareto front and what flips the choice.")
@click.option("--plots", type=click.Path(path_type=Path), help="Folder for SVG plots.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
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
    """Rank every strategy for a model on a cluster, with reasons."""
    from dsforge.cli.argue import argument, with_flips, with_front
    from dsforge.errors import DoesNotFitError
    from dsforge.planner import search
    from dsforge.planner.explore import Explorer
    from dsforge.planner.parts import settled

    request = to_request(flags)
    try:
        explorer = settled(Explorer(wished(request, wish)))
        request = explorer.request
        found = search(request, explorer=explorer)
    except DoesNotFitError as error:
        if as_json:
            show_nearest(request, error)
        raise
    argued = argument(request, found.plans[0], explorer)
    if argue or plots is not None:
        argued = with_front(argued, request, explorer)
    if argue:
        argued = with_flips(argued, request, explorer)
    if plots is not None:
        _save_plots(plots, found, argued)
    if as_json:
        _show_document(found, argued, top or DEFAULT_TOP)
        return
    shown = _all(found, argued, top) if verbose else _screen(request, found, argued, top)
    show([*shown, *_argument(argued)])


def _show_document(found: Search, argued: Argument, top: int) -> None:
    """The ranking and what was argued, for programs."""
    from dsforge.document import plan_document

    others, front, flips = argued
    document = plan_document(found, top, others=others, front=front, flips=flips)
    show_json(document.model_dump(mode="json"))


def _screen(request: Request, found: Search, argued: Argument, top: int | None) -> list[str]:
    """The choice on one screen, or with as many ranks as were asked for."""
    from dsforge.cli.brief import alternatives, asked_and_lost, defaults, screen, table
    from dsforge.cli.priced import ranking

    plan = found.plans[0]
    others = [] if top else alternatives(plan, found, argued.others)
    last = [*asked_and_lost(request, found), *defaults(plan)]
    ranks = ["", *ranking(found, top)] if top else []
    return [
        *screen(plan, below=lambda most: table(plan, others, "alternatives", most), last=last),
        *ranks,
    ]


def _all(found: Search, argued: Argument, top: int | None) -> list[str]:
    """Figures, ranking, all reasons, other ways, what is impossible."""
    from dsforge.cli.brief import every_reason, head
    from dsforge.cli.priced import instead, losers, ranking

    plan = found.plans[0]
    lines = [
        *head(plan),
        "",
        *every_reason(plan.choice.reasons),
        "",
        *ranking(found, top or DEFAULT_TOP),
    ]
    if argued.others:
        lines += ["", "the fastest of each other kind, those with nearly the same step first"]
        lines += instead(argued.others)
    if found.rejected:
        lines += ["", "not possible, or not sure to fit", *losers(found)]
    return [*lines, "", f"{found.candidates:,} candidates in {found.seconds:.2f} s"]


def _argument(argued: Argument) -> list[str]:
    """What would flip the choice, and the front; nothing where nobody asked."""
    if argued.flips is None:
        return []
    from dsforge.cli.priced import flipping, fronts

    title = "the front: no plan beats these in time, GPUs, money and memory at once; and the choice"
    lines = ["", "what would flip the choice", *flipping(argued.flips)]
    return [*lines, "", f"{title} on so many GPUs", *fronts(argued.front or ())]


def _save_plots(folder: Path, found: Search, argued: Argument) -> None:
    """Four charts as SVG."""
    from dsforge.cli.show import note, save
    from dsforge.errors import DsforgeError
    from dsforge.explain.plots import Bars, front_plot, memory_plot, scaling_plot, time_plot
    from dsforge.planner import price

    plan, points = found.plans[0], argued.front or ()
    rows = [Bars(plan.strategy.label(), plan.choice)]
    for other in argued.others[:MOST_BARS]:
        priced = price(plan.model, plan.cluster, plan.workload, other.strategy)
        rows.append(Bars(other.label, priced))
    texts = {
        "memory.svg": memory_plot(plan, tuple(rows)),
        "time.svg": time_plot(plan, tuple(rows)),
        "front.svg": front_plot(plan, points),
        "scaling.svg": scaling_plot(plan, points),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DsforgeError(f"cannot make {folder}: {error.strerror}") from error
    for name, text in texts.items():
        save(folder / name, text)
    note(f"{folder}: {', '.join(texts)}")
