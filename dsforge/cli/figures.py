"""What `dsforge validate` shows of a table of figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsforge.validate import FiguresDocument
    from dsforge.validate.comparison import FigureScore

LONGEST_NAME = 36  # characters of a source: the table fits 100 columns


def show_figures(made: FiguresDocument, worst: int) -> None:
    """Scores by source and regime, and the figures that are furthest off."""
    from rich.table import Table

    from dsforge.cli.priced import console

    groups = {"regime": made.regimes, "source": made.sources}
    for name, scores in groups.items():
        table = Table(box=None, pad_edge=False)
        table.add_column(name)
        columns = ("answered", "median |error|", "bias", "interval holds", "on paper")
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        rows = {**scores, "all, sources weigh equally": made.overall}
        for said, score in rows.items():
            table.add_row(said[:LONGEST_NAME], *_cells(score))
        console().print(table)
        print()
    table = Table(box=None, pad_edge=False)
    table.add_column("worst figures")
    for column in ("quantity", "predicted", "80 % interval", "published", "error"):
        table.add_column(column, justify="right")
    for row in sorted(made.rows, key=lambda row: -abs(row.error))[:worst]:
        interval = f"{row.low:.4g} to {row.high:.4g}"
        values = (f"{row.predicted:.4g} {row.unit}", interval, f"{row.published:.4g} {row.unit}")
        table.add_row(row.id, row.quantity, *values, f"{row.error:+.1%}")
    if made.rows and worst:
        console().print(table)
        print()
    print(
        f"{len(made.rows)} predictions, {len(made.unanswered)} figures without an answer; "
        "on paper: 6 or 8 FLOPs a parameter and token at 41 % of the peak, 18 bytes a parameter"
    )


def _cells(score: FigureScore) -> tuple[str, ...]:
    def share(value: float | None, form: str = ".0%") -> str:
        return "-" if value is None else format(value, form)

    return (
        f"{score.answered} of {score.figures}",
        share(score.median),
        share(score.bias, "+.0%"),
        share(score.inside),
        share(score.arithmetic),
    )
