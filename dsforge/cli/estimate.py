"""`dsforge estimate`: the price of one strategy; what is not given is chosen and shown."""

from __future__ import annotations

import click

from dsforge.cli.flags import Flags, Sections, to_request, with_flags


@click.command(cls=Sections)
@with_flags
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def estimate(*, flags: Flags, as_json: bool) -> None:
    """Predict memory and step time of one strategy.

    What no flag fixes is chosen and shown. It is an answer, not an error, that it does not fit.
    """
    from dsforge.planner import appraise, remedies

    request = to_request(flags)
    plan = appraise(request)
    found = () if plan.choice.fits else remedies(request, plan.choice)
    if as_json:
        from dsforge.cli.show import show_json
        from dsforge.document import estimate_document

        show_json(estimate_document(plan, found).model_dump(mode="json"))
        return
    from dsforge.cli.priced import console, headline, terms, verdict
    from dsforge.cli.show import numbered, why

    out = console()
    out.print(headline(plan), markup=False)
    out.print(terms(plan))
    out.print(verdict(plan), markup=False)
    reasons = tuple(r for r in plan.choice.reasons if r.rule != "does-not-fit")  # said above
    for line in (*numbered(found), *why(reasons)):
        out.print(line, markup=False)
