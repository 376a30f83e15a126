"""`dsforge validate`: predictions against a table of measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.numbers import Whole
from dsforge.cli.paths import NamedPath

if TYPE_CHECKING:
    from dsforge.cli.figures import Off
    from dsforge.validate.document import Compared, Quantity, Score, ValidationDocument
    from dsforge.validate.score import Decisions

WORST = 10


@click.command()
@click.argument("table", type=NamedPath(), help="CSV file of measured runs, one per row.")
@click.option(
    "--what",
    type=click.Choice(["memory", "step_time"]),
    help="Quantity to compare (default: both).",
)
@click.option("--sources", default="", help="Comma-separated sources to compare (default: all).")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Include rows tagged incomplete, suspect, approximate or unverified.",
)
@click.option("--worst", type=Whole(min=0), default=WORST, help="Number of worst rows to show.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def validate(
    table: Path, *, what: Quantity | None, sources: str, every: bool, worst: int, as_json: bool
) -> None:
    """Compare predictions with a table of measured runs or of published figures."""
    from dsforge.api.checking import TABLE_BYTES
    from dsforge.api.checking import validate as validated
    from dsforge.api.figures import validate_figures
    from dsforge.cli.figures import show_figures
    from dsforge.cli.show import show_json
    from dsforge.errors import DsforgeError
    from dsforge.reading.source import read_text
    from dsforge.validate import holds_figures

    if holds_figures(read_text(table, TABLE_BYTES)):
        found = validate_figures(table)
        show_json(found.model_dump(mode="json")) if as_json else show_figures(found, worst)
        return
    made = validated(table, what=what, sources=sources.split(","), every=every)
    _show(made, worst, as_json=as_json)
    if not made.rows:
        raise DsforgeError("no row could be compared", "the reasons are in the JSON document")


def _show(made: ValidationDocument, worst: int, *, as_json: bool) -> None:
    """The document, or tables for people."""
    from dsforge.cli.figures import show_worst

    if as_json:
        from dsforge.cli.show import show_json

        show_json(made.model_dump(mode="json"))
        return
    scores = {"memory": made.summary.memory, "step time": made.summary.step_time}
    for name, score in scores.items():
        if score is not None:
            _show_score(name, score)
    show_worst("rows", "measured", map(_error_row, made.rows), worst)
    _show_decisions(made.summary.decisions)
    print(f"{len(made.rows)} predictions, {len(made.skipped)} rows skipped")


def _show_score(name: str, score: Score) -> None:
    """Errors by source."""
    from rich.table import Table

    from dsforge.cli.priced import console

    table = Table(box=None, pad_edge=False)
    table.add_column(name)
    for column in ("rows", "median |error|", "90th percentile", "bias", "interval holds"):
        table.add_column(column, justify="right")
    for source, e in {**score.sources, "all, sources weigh equally": score.overall}.items():
        figures = (f"{e.median:.1%}", f"{e.p90:.1%}", f"{e.bias:+.1%}", f"{e.holds:.0%}")
        table.add_row(source, str(e.rows), *figures)
    console().print(table)
    print()


def _error_row(row: Compared) -> Off:
    from dsforge.cli.figures import Off

    unit = "GiB" if row.quantity == "memory" else "s"
    ends = (row.predicted, row.low, row.high)
    return Off(row.id, row.quantity, unit, *ends, row.measured, row.error)


def _show_decisions(found: Decisions | None) -> None:
    """How well the predicted order of layouts serves."""
    if found is not None:
        print(
            f"choice of layout in {found.groups} groups: mean rank correlation "
            f"{found.spearman:.2f}, mean regret {found.regret:.1%}, worst {found.worst_regret:.1%}"
        )
        if found.repeat_spread is not None:
            print(f"runs of equal settings differ by {found.repeat_spread:.1%} on average")
