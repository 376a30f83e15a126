"""How `dsforge validate` asks for the figures of a table, and shows what it got."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsforge.plan import Request
    from dsforge.validate import Asked, Figure, FiguresDocument
    from dsforge.validate.comparison import FigureScore

LONGEST_NAME = 36  # characters of a source: the table fits 100 columns
CONFIGS = "configs"  # folder beside the table with the models that no catalog holds


def asker(table: Path) -> Any:
    """A function that answers the spec of a figure; its models may lie beside the table."""

    def ask(figure: Figure) -> Asked:
        from dsforge import catalog
        from dsforge.planner import appraise
        from dsforge.planner.inverse import largest_model
        from dsforge.reading.sizes import llama_like
        from dsforge.validate import Asked

        request = _request(figure, table)
        if figure.quantity != "find model":
            return Asked(appraise(request))
        known = tuple(catalog.model(name) for name in catalog.model_names())
        found = largest_model(request, known, llama_like)
        return Asked(found.plan, found.answer)

    return ask


def _request(figure: Figure, table: Path) -> Request:
    from dsforge.reading.request import Asked, read_request
    from dsforge.reading.source import Setting

    place = f"{table}: {figure.id}"
    spec = {**figure.spec, "model": _model(figure.spec.get("model"), table)}
    settings = [
        Setting((part, key), value, place)
        for part in ("cluster", "workload", "strategy")
        for key, value in spec.get(part, {}).items()
    ]
    return read_request(Asked(settings=(Setting(("model",), spec["model"], place), *settings)))


def _model(said: Any, table: Path) -> Any:
    """A catalog name as it is; a config only from the folder beside the table."""
    if not isinstance(said, str):
        return said
    path = table.parent / CONFIGS / Path(said).name
    return str(path) if said == f"{CONFIGS}/{path.name}" and path.is_file() else Path(said).name


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
