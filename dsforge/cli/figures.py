"""What `dsforge validate` shows of a table of figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dsforge.validate import FiguresDocument
    from dsforge.validate.comparison import AnsweredFigure, FigureScore

LONGEST_NAME = 36  # characters of a source: the table fits 100 columns


class Off(NamedTuple):
    """One prediction beside the value that it is held against, both in `unit`."""

    id: str
    quantity: str
    unit: str
    predicted: float
    low: float
    high: float
    value: float
    error: float


def show_worst(kind: str, column: str, rows: Iterable[Off], worst: int) -> None:
    """The rows that are furthest off; nothing where there is none."""
    from rich.table import Table

    from dsforge.cli.priced import console

    furthest = sorted(rows, key=lambda row: -abs(row.error))[:worst]
    if not furthest:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column(f"worst {kind}")
    for title in ("quantity", "predicted", "80 % interval", column, "error"):
        table.add_column(title, justify="right")
    for row in furthest:
        interval = f"{row.low:.4g} to {row.high:.4g}"
        values = (f"{row.predicted:.4g} {row.unit}", interval, f"{row.value:.4g} {row.unit}")
        table.add_row(row.id, row.quantity, *values, f"{row.error:+.1%}")
    console().print(table)
    print()


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
    show_worst("figures", "published", map(_error_row, made.rows), worst)
    print(
        f"{len(made.rows)} predictions, {len(made.unanswered)} figures without an answer; "
        "rule of thumb: 6 or 8 FLOPs a parameter and token at 41 % of the peak, 18 bytes a "
        "parameter"
    )


def _error_row(row: AnsweredFigure) -> Off:
    ends = (row.predicted, row.low, row.high)
    return Off(row.id, row.quantity, row.unit, *ends, row.published, row.error)


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
