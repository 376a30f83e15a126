"""Options of `gen` and `plan` that say what the whole run should reach: objective and limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypedDict

import click

from dsforge.cli.numbers import Real

if TYPE_CHECKING:
    from dsforge.planner.objectives import Objective


class Wish(TypedDict):
    """What a user wants of the run as a whole; `None` where nothing was said."""

    objective: Objective | None
    deadline_days: float | None
    budget: float | None
    prefer: float | None
    risk: bool


def with_wish(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its `wish: Wish` parameter filled from its options."""

    @wraps(command)
    def filled(**values: Any) -> None:
        wish = {field: values.pop(field) for field in Wish.__annotations__}
        command(wish=wish, **values)

    above = Real(min=0, min_open=True)
    for option in (
        click.option(
            "--risk",
            is_flag=True,
            help="Also consider plans that probably fit, not only those sure to.",
        ),
        click.option(
            "--prefer",
            type=click.FloatRange(min=1),
            metavar="FACTOR",
            help="Prefer a simpler plan up to this much slower (default: 1.25; 1: never).",
        ),
        click.option("--budget", type=above, help="Largest cost of the run, at --gpu-hour-price."),
        click.option("--deadline-days", type=above, help="Longest duration of the run in days."),
        click.option(
            "--objective",
            type=click.Choice(("fastest", "cheapest", "fewest-gpus")),
            metavar="WHAT",
            help="fastest, cheapest or fewest-gpus; may use part of the cluster.",
        ),
    ):
        filled = option(filled)
    return filled
