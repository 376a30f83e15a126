"""`dsforge estimate`: the price of one strategy; what is not given is chosen and shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.asked import asked_of, to_request
from dsforge.cli.flags import Flags
from dsforge.cli.options import with_flags, with_verbose
from dsforge.cli.paths import NamedPath
from dsforge.cli.sections import Sections
from dsforge.cli.show import numbered, save, show_json
from dsforge.cli.text import show

if TYPE_CHECKING:
    from dsforge.api.results import FindResult
    from dsforge.plan import Plan
    from dsforge.planner.axes import Question

# What --find looks for, and the flags that would fix it.
SOUGHT: dict[Question, tuple[str, ...]] = {
    "micro-batch": ("micro_batch",),
    "seq-len": ("seq_len",),
    "gpus": ("nodes", "hostfile"),
    "model": ("model",),
}


@click.command(cls=Sections)
@with_flags
@click.option(
    "--find",
    type=click.Choice(tuple(SOUGHT)),
    metavar="WHAT",
    help="Find the largest micro-batch, seq-len or model that fits, or the fewest gpus.",
)
@click.option(
    "--trace",
    type=NamedPath(),
    help="Write the timeline of a step for Perfetto to this file.",
)
@click.option("--ds-config", type=NamedPath(), help="Existing ds_config.json to price.")
@click.option(
    "--exact",
    is_flag=True,
    help="Also simulate a step tensor by tensor (Llama, Mistral and Qwen2 under ZeRO with AdamW).",
)
@with_verbose
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def estimate(
    *,
    flags: Flags,
    find: Question | None,
    trace: Path | None,
    ds_config: Path | None,
    exact: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Predict memory and step time of one strategy.

    Settings without a flag are chosen and shown. A strategy that does not fit is reported with exit
    code 0. --find searches for the largest value that fits. --ds-config reads the ZeRO stage,
    offload, buffer and batch sizes from a file; flags override it. --exact also simulates a step
    and shows memory by phase and owner.

    Where sharding, a split or offload are fixed, anybody's scripts are priced, with the wider
    intervals of what is not known of them; --software dsforge prices `dsforge train`.
    """
    if find is not None:
        _refuse_beside_find({"--trace": trace, "--ds-config": ds_config, "--exact": exact})
        _find(flags, find, verbose=verbose, as_json=as_json)
        return
    from dsforge.api.pricing import estimate as estimated

    found = estimated(to_request(flags, ds_config), exact=exact)
    if trace is not None:
        from dsforge.explain.trace import step_trace

        save(trace, step_trace(found.plan))
    if as_json:
        show_json(found.document.model_dump(mode="json"))
        return
    _show(found.plan, numbered(found.remedies), verbose=verbose)
    if found.exact is not None:
        from dsforge.cli.exact import exact_lines

        show(exact_lines(found.plan, found.exact))


def _show(plan: Plan, ways: list[str], *, verbose: bool) -> None:
    """The figures with their terms, and the ways to make it fit; all tables where asked for."""
    from dsforge.cli.brief import every_reason, head

    if not verbose:
        show(screen_lines(plan, ways))
        return
    from dsforge.cli.priced import console, terms

    show([*head(plan), *ways, ""])
    console().print(terms(plan))
    show(["", *every_reason(plan.choice.reasons)])


def screen_lines(plan: Plan, ways: list[str]) -> list[str]:
    """The figures of a strategy on one screen, with the ways to make it fit."""
    from dsforge.cli.brief import defaults, screen, term_lines

    below = term_lines(plan)
    return screen(plan, below=lambda most: below[:most], last=[*ways, *defaults(plan)])


def _refuse_beside_find(asked: dict[str, Path | bool | None]) -> None:
    """Raise where something of one strategy is asked for and --find looks for one."""
    for name, value in asked.items():
        if value:
            raise click.UsageError(f"{name} cannot be combined with --find.")


def _find(flags: Flags, sought: Question, *, verbose: bool, as_json: bool) -> None:
    """Answer an inverse question."""
    _refuse_beside_find({"--from": flags.imported})
    for field in SOUGHT[sought]:
        if getattr(flags, field) is not None:
            name = "--" + field.replace("_", "-")
            raise click.UsageError(
                f"{name} cannot be combined with --find {sought}, which searches for it."
            )
    from dsforge.api.sizing import find, opened
    from dsforge.reading.request import read_request

    found = find(sought, read_request(opened(sought, asked_of(flags))))
    if as_json:
        show_json(found.document.model_dump(mode="json"))
        return
    show(answer_lines(found, verbose=verbose))


def answer_lines(found: FindResult, *, verbose: bool) -> list[str]:
    """The answer to an inverse question, with the plan at its value."""
    from dsforge.cli.brief import defaults, every_reason, head
    from dsforge.cli.priced import answer, neighbours

    reasons = found.plan.choice.reasons
    last = every_reason(reasons) if verbose else defaults(found.plan)
    return [*answer(found), "", *head(found.plan), "", *neighbours(found), "", *last]
