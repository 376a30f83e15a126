"""`dsforge plan`: the ranking of all strategies, and why the losers lost."""

from __future__ import annotations

import click

from dsforge.cli.flags import Flags, Sections, to_request, with_flags
from dsforge.cli.show import show_json, show_nearest, why

DEFAULT_TOP = 10


@click.command(cls=Sections)
@with_flags
@click.option("--top", type=click.IntRange(min=1), default=DEFAULT_TOP, help="Plans to show.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def plan(*, flags: Flags, top: int, as_json: bool) -> None:
    """Rank every strategy for a model on a cluster, with reasons."""
    from dsforge.errors import DoesNotFitError
    from dsforge.planner import search

    request = to_request(flags)
    try:
        found = search(request)
    except DoesNotFitError as error:
        if as_json:
            show_nearest(request, error)
        raise
    if as_json:
        from dsforge.document import plan_document

        show_json(plan_document(found, top).model_dump(mode="json"))
        return
    from dsforge.cli.priced import console, headline, losers, ranking

    out = console()
    out.print(headline(found.plans[0]), markup=False)
    out.print(ranking(found, top))
    for line in why(found.plans[0].choice.reasons):
        out.print(line, markup=False)
    if found.rejected:
        out.print("\nnot possible")
        out.print(losers(found))
    out.print(f"\n{found.candidates} candidates in {found.seconds:.2f} s", markup=False)
