"""Published figures, each with the spec of its run, asked and judged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsforge.api.inputs import by_others, load_request, with_loss
from dsforge.api.sizing import find
from dsforge.errors import DsforgeError

if TYPE_CHECKING:
    from dsforge.api.inputs import PathInput
    from dsforge.plan import Plan, Request
    from dsforge.validate.comparison import Ask, Asked, FiguresDocument
    from dsforge.validate.figures import Figure

CONFIG = re.compile(r"[A-Za-z0-9_-]{1,60}/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,100}\.json")


def validate_figures(table: PathInput) -> FiguresDocument:
    """Predictions for published figures, and how far off they are.

    Args:
        table: CSV with one figure a row: quantity, published value, and the spec of its run, with
            the columns of `benchmarks/published/figures.csv`.

    Returns:
        Every prediction beside the published value in its unit, figures without an answer, scores
        by source and by kind of use, and those of one line of arithmetic.

    Raises:
        DsforgeError: The table cannot be read. What a single spec gets wrong is an unanswered row.

    Examples:
        >>> import dsforge
        >>> found = dsforge.validate_figures("benchmarks/published/figures.csv")
        >>> found.overall.figures > 200, found.overall.answered > 200
        (True, True)

    """
    from dsforge.api.checking import TABLE_BYTES
    from dsforge.reading.source import read_text
    from dsforge.validate import compared, parse_figures

    path = Path(table)
    return compared(parse_figures(read_text(path, TABLE_BYTES), str(path)), asker(path))


def asker(table: Path) -> Ask:
    """A function that answers the spec of a figure; its models may be beside the table."""

    def ask(figure: Figure) -> Asked:
        from dsforge.planner import appraise
        from dsforge.validate import Asked

        request = by_others(load_request(spec={**figure.spec, "model": _model(figure, table)}))
        if figure.quantity == "find model" and not figure.counts_states:
            found = find("model", request)
            return Asked(found.plan, found.answer)
        plan = appraise(request)
        if figure.quantity == "fits" or plan.choice.fits:
            return Asked(plan)
        return Asked(_chunked(request) or plan)

    return ask


def _chunked(request: Request) -> Plan | None:
    """A published run did fit: if only with a chunked loss, it had one, where none is stated."""
    from dsforge.planner import appraise

    try:
        plan = appraise(with_loss(request, "chunked"))
    except DsforgeError:
        return None
    return plan if plan.choice.fits else None


def _model(figure: Figure, table: Path) -> Any:
    """A catalog name as it is; a config, `FOLDER/NAME.json`, only from a folder beside it."""
    said = figure.spec.get("model")
    if not isinstance(said, str):
        return said
    path = (table.parent / said).resolve() if CONFIG.fullmatch(said) else None
    inside = path is not None and path.is_relative_to(table.parent.resolve()) and path.is_file()
    return str(path) if inside else Path(said).name
