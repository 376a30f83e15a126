"""`dsforge plan`: the ranking of all strategies, and why the losers lost."""

from __future__ import annotations

from typing import Annotated

import typer

from dsforge.cli.flags import Flags, to_request, with_flags

DEFAULT_TOP = 10


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help="Rank every strategy for a model on a cluster, with reasons.")(plan)


@with_flags
def plan(
    *,
    flags: Flags,
    top: Annotated[int, typer.Option("--top", min=1, help="Plans to show.")] = DEFAULT_TOP,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON document instead.")] = False,
) -> None:
    """Search, then show the best plans."""
    from dsforge.planner import search

    found = search(to_request(flags))
    if as_json:
        from dsforge.cli.show import show_json
        from dsforge.document import plan_document

        show_json(plan_document(found, top).model_dump(mode="json"))
        return
    from dsforge.cli.priced import console, headline, losers, ranking
    from dsforge.cli.show import why

    out = console()
    out.print(headline(found.plans[0]), markup=False)
    out.print(ranking(found, top))
    for line in why(found.plans[0].choice.reasons):
        out.print(line, markup=False)
    if found.rejected:
        out.print("\nnot possible")
        out.print(losers(found))
    out.print(f"\n{found.candidates} candidates in {found.seconds:.2f} s", markup=False)
