"""`dsforge explain`: each figure of a plan with its formula, inputs and source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsforge.explain.explanation import Explanation
    from dsforge.explain.figures import Figure, Given

LARGE = 1e4  # from here on thousands are separated
LEAST_WORD, MOST_NEAR = 3, 6  # letters of a word that tells something; names that are shown


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("figure", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def explain(*, plan: Path, figure: str | None, as_json: bool) -> None:
    """Show each figure of a plan with its formula, inputs and source.

    PLAN is a plan.json or the folder that `dsforge gen` wrote. With the name of a FIGURE only that
    one is shown, and what it rests on.
    """
    from dsforge.cli.show import note, show_json
    from dsforge.explain.explanation import explanation
    from dsforge.reading.stored import read_plan

    found = explanation(read_plan(plan / "plan.json" if plan.is_dir() else plan))
    shown = found if figure is None else _narrowed(found, figure)
    if as_json:
        show_json(shown.model_dump(mode="json"))
        return
    print("\n".join(_lines(shown)))
    for other in found.disagreements:
        note(
            f"the plan says {other.name} = {_number(other.stated)}, this version works out "
            f"{_number(other.worked_out)}: run `dsforge gen` again"
        )


def _narrowed(found: Explanation, name: str) -> Explanation:
    """One figure and what it rests on. Raises DsforgeError with the nearest names."""
    from dsforge.errors import DsforgeError

    try:
        return found.model_copy(update={"figures": found.resting_on(name)})
    except KeyError:
        near = ", ".join(_near(name, [figure.name for figure in found.figures]))
        hint = "`dsforge explain PLAN` lists all figures"
        message = f"the plan has no figure `{name}`"
        raise DsforgeError(message, f"near it: {near}; {hint}" if near else hint) from None


def _near(name: str, names: list[str]) -> list[str]:
    """Names like a misspelt one, and those that share a word of it."""
    from difflib import get_close_matches

    words = {word for word in re.split(r"[^a-z]+", name.lower()) if len(word) >= LEAST_WORD}
    sharing = [other for other in names if words & set(other.split("_"))]
    return list(dict.fromkeys([*get_close_matches(name, names, MOST_NEAR), *sharing]))[:MOST_NEAR]


def _lines(found: Explanation) -> Iterator[str]:
    """Figures by group, then every value that they rest on, once."""
    yield found.label
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
    yield f"  {figure.name} = {_quantity(figure.value, figure.unit)}"
    if figure.formula:
        yield f"      = {figure.formula}"
    inputs = ", ".join(f"{value.name} = {_number(value.value)}" for value in figure.inputs)
    if inputs:
        yield f"      with {inputs}"
    yield f"      because {figure.source}"


def _given(value: Given) -> str:
    return f"  {value.name} = {_quantity(value.value, value.unit)}: {value.source}"


def _quantity(value: float, unit: str) -> str:
    """A number with its unit; bytes in GiB, seconds and rates in words too."""
    from dsforge.units import gib, seconds, tflops

    said = f"{_number(value)} {unit}".strip()
    words = {"bytes": gib, "s": seconds, "FLOP/s": tflops}.get(unit)
    large = unit != "bytes" or value >= 1 << 20
    return f"{said} ({words(value)})" if words and value and large else said


def _number(value: float) -> str:
    """A number that loses nothing a reader could notice: whole ones in full, large ones nearly."""
    if float(value).is_integer() and abs(value) < 1e18:  # noqa: PLR2004
        return f"{value:.0f}" if abs(value) < LARGE else f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1e6 else f"{value:.12g}"  # noqa: PLR2004
