"""`dsforge explain`: each figure of a plan with its formula, inputs and source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.paths import NamedPath
from dsforge.explain.wording import number, quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsforge.explain.explanation import Explanation
    from dsforge.explain.figures import Figure, Given


@click.command()
@click.argument("plan", type=NamedPath())
@click.argument("figure", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(*, plan: Path, figure: str | None, as_json: bool) -> None:
    """Show each figure of a plan with its formula, inputs and source.

    PLAN is a plan.json or the folder that `dsforge gen` wrote. With the name of a FIGURE, only that
    figure and those it depends on are shown.
    """
    from dsforge.api.pricing import explain as explained
    from dsforge.cli.show import note, show_json

    found = explained(plan, figure)
    if as_json:
        show_json(found.model_dump(mode="json"))
        return
    print("\n".join(explanation_lines(found)))
    for other in found.disagreements:
        note(
            f"the plan has {other.name} = {number(other.stated)}, this version computes "
            f"{number(other.worked_out)}: run `dsforge gen` again"
        )


def explanation_lines(found: Explanation) -> Iterator[str]:
    """Figures by group, then every value that they rest on, once."""
    yield found.label
    for setting in found.settings:
        yield f"\n{setting.name} = {setting.value}\n      {setting.meaning}"
    if not found.figures:
        return
    group = ""
    given: dict[str, Given] = {}
    for figure in found.figures:
        if figure.group != group:
            group = figure.group
            yield f"\n{group}"
        yield from _figure(figure)
        given |= {value.name: value for value in figure.inputs}
    names = {figure.name for figure in found.figures}
    yield "\ngiven"
    yield from (_given(value) for name, value in sorted(given.items()) if name not in names)


def _figure(figure: Figure) -> Iterator[str]:
    """`name = value unit`, the formula, its inputs, why."""
    yield f"  {figure.name} = {quantity(figure.value, figure.unit)}"
    if figure.formula:
        yield f"      = {figure.formula}"
    inputs = ", ".join(f"{value.name} = {number(value.value)}" for value in figure.inputs)
    if inputs:
        yield f"      with {inputs}"
    yield f"      because {figure.source}"


def _given(value: Given) -> str:
    return f"  {value.name} = {quantity(value.value, value.unit)}: {value.source}"
