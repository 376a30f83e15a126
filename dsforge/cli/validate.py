"""`dsforge validate`: predictions against a table of measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.numbers import Whole

if TYPE_CHECKING:
    from dsforge.validate.document import Document, Score
    from dsforge.validate.score import Decisions

MAX_BYTES = 64 * 1024 * 1024
WORST = 10


@click.command()
@click.argument("table", type=click.Path(path_type=Path), help="CSV of measured runs, one a row.")
@click.option("--what", type=click.Choice(["memory", "step_time"]), help="Both unless given.")
@click.option("--sources", default="", help="Only these, with commas; all unless given.")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Rows tagged incomplete, suspect, approximate or unverified too.",
)
@click.option("--worst", type=Whole(min=0), default=WORST, help="Worst rows to show.")
@click.option("--json", "as_json", is_flag=True, help="A JSON document instead.")
def validate(
    table: Path, *, what: str | None, sources: str, every: bool, worst: int, as_json: bool
) -> None:
    """Predict each run of a table and say how far off the predictions are."""
    from dsforge.errors import DsforgeError
    from dsforge.reading.source import read_text
    from dsforge.validate import holds_figures, parse_table, validation
    from dsforge.validate.document import QUANTITIES

    text = read_text(table, MAX_BYTES)
    if holds_figures(text):
        _figures(table, text, worst, as_json=as_json)
        return
    rows = parse_table(text, str(table))
    wanted = [name.strip() for name in sources.split(",") if name.strip()]
    unknown = sorted(set(wanted) - {row.source for row in rows})
    if unknown:
        known = ", ".join(sorted({row.source for row in rows}))
        raise DsforgeError(f"no rows of {', '.join(unknown)} in {table}", f"it has {known}")
    quantities = [quantity for quantity in QUANTITIES if what in (None, quantity)]
    made = validation(rows, what=quantities, sources=wanted, every=every)
    _show(made, worst, as_json=as_json)
    if not made.rows:
        raise DsforgeError("no row could be compared", "each one's reason is in the document")


def _figures(table: Path, text: str, worst: int, *, as_json: bool) -> None:
    """The same for a table of figures, each with the spec of its run."""
    from dsforge.cli.figures import asker, show_figures
    from dsforge.cli.show import show_json
    from dsforge.validate import compared, parse_figures

    made = compared(parse_figures(text, str(table)), asker(table))
    if as_json:
        show_json(made.model_dump(mode="json"))
    else:
        show_figures(made, worst)


def _show(made: Document, worst: int, *, as_json: bool) -> None:
    """The document, or tables for people."""
    if as_json:
        from dsforge.cli.show import show_json

        show_json(made.model_dump(mode="json"))
        return
    scores = {"memory": made.summary.memory, "step time": made.summary.step_time}
    for name, score in scores.items():
        if score is not None:
            _show_score(name, score)
    _show_worst(made, worst)
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


def _show_worst(made: Document, worst: int) -> None:
    """The rows that are furthest off."""
    from rich.table import Table

    from dsforge.cli.priced import console

    rows = sorted(made.rows, key=lambda row: -abs(row.error))[:worst]
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("worst rows")
    for column in ("quantity", "predicted", "80 % interval", "measured", "error"):
        table.add_column(column, justify="right")
    for row in rows:
        unit = "GiB" if row.quantity == "memory" else "s"
        interval = f"{row.low:.4g} to {row.high:.4g}"
        figures = (f"{row.predicted:.4g} {unit}", interval, f"{row.measured:.4g} {unit}")
        table.add_row(row.id, row.quantity, *figures, f"{row.error:+.1%}")
    console().print(table)
    print()


def _show_decisions(found: Decisions | None) -> None:
    """How well the predicted order of layouts serves."""
    if found is not None:
        print(
            f"choice of layout in {found.groups} groups: mean rank correlation "
            f"{found.spearman:.2f}, mean regret {found.regret:.1%}, worst {found.worst_regret:.1%}"
        )
