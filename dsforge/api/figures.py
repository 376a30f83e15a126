"""Published figures, each with the spec of its run, asked and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsforge.api.inputs import by_others, load_request, with_loss
from dsforge.api.sizing import find
from dsforge.errors import DsforgeError

if TYPE_CHECKING:
    from dsforge.api.inputs import PathInput
    from dsforge.plan import Plan, Request
    from dsforge.strategy import AskedLoss
    from dsforge.validate.comparison import Ask, Asked, FiguresDocument
    from dsforge.validate.figures import Figure

# Of a run whose loss is not stated: Hugging Face's trainers hold the logits of a micro batch.
USUAL_LOSS: AskedLoss = "plain"
CONFIGS = "configs"  # folder beside the table with the models that no catalog holds


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
        asked = with_loss(request, USUAL_LOSS)
        if figure.quantity == "find model":
            found = find("model", asked)
            return Asked(found.plan, found.answer)
        plans = (appraise(asked), *(() if asked is request else _other_readings(request)))
        # A published run did fit: a reading that cannot have been is not the likely one.
        judged = figure.quantity == "fits"
        likely = next((plan for plan in plans if judged or plan.choice.fits), plans[0])
        return Asked(likely, others=tuple(plan for plan in plans if plan is not likely))

    return ask


def _other_readings(request: Request) -> tuple[Plan, ...]:
    """What else an unstated loss may have been: chunked, where an engine can."""
    from dsforge.planner import appraise

    try:
        return (appraise(with_loss(request, "chunked")),)
    except DsforgeError:
        return ()


def _model(figure: Figure, table: Path) -> Any:
    """A catalog name as it is; a config only from the folder beside the table."""
    said = figure.spec.get("model")
    if not isinstance(said, str):
        return said
    path = table.parent / CONFIGS / Path(said).name
    return str(path) if said == f"{CONFIGS}/{path.name}" and path.is_file() else Path(said).name
