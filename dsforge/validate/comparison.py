"""Figures and their answers side by side, and the score by source, by regime and over all.

Sources weigh the same: one page of seventy figures must not decide. What could not be answered is
counted, as a tool that answers little would look good otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, median
from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.errors import DsforgeError
from dsforge.plan import Plan
from dsforge.planner.inverse import Answer
from dsforge.specs import FROZEN
from dsforge.validate.arithmetic import on_paper
from dsforge.validate.figures import Figure, Quantity, answer


class Asked(NamedTuple):
    """What the predictor says to the spec of a figure."""

    plan: Plan
    largest: Answer | None = None  # for figures that ask for the largest model


Ask = Callable[[Figure], Asked]


class AnsweredFigure(BaseModel):
    """One prediction beside what was published, both in the figure's unit."""

    model_config = FROZEN

    id: str = Field(description="Of the row in the table.")
    source: str = Field(description="Who published it.")
    regime: str = Field(description="Kind of use, such as `memory, lora`.")
    quantity: Quantity = Field(description="What was published.")
    unit: str = Field(description="Unit of all values of this row.")
    predicted: float = Field(
        description="Expected value of the prediction, in the unit of the row."
    )
    low: float = Field(description="Lower end of the 80 % interval.")
    high: float = Field(description="Upper end of the 80 % interval.")
    published: float = Field(description="Published value; 1 for `yes`, 0 for `no`.")
    error: float = Field(description="predicted / published - 1; 1 for a wrong yes or no.")
    inside: bool = Field(description="Whether the interval contains the published value.")
    arithmetic_error: float | None = Field(
        description="Error of the rule of thumb; none: there is no rule for the quantity."
    )


class UnansweredFigure(BaseModel):
    """A figure that cannot be asked or was refused."""

    model_config = FROZEN

    id: str = Field(description="Of the row in the table.")
    source: str = Field(description="Who published it.")
    regime: str = Field(description="Kind of use.")
    reason: str = Field(description="Reason why there is no prediction.")


class FigureScore(BaseModel):
    """Errors of some figures."""

    model_config = FROZEN

    figures: int = Field(description="Published figures, answered or not.")
    answered: int = Field(description="Figures with a prediction.")
    median: float | None = Field(description="Median of |error|; none without an answer.")
    bias: float | None = Field(description="Median of the signed error.")
    inside: float | None = Field(description="Share of values inside the 80 % interval.")
    arithmetic: float | None = Field(
        description="Median of |error| of a rule of thumb on the same figures."
    )


class FiguresDocument(BaseModel):
    """All figures with their answers, and the scores."""

    model_config = FROZEN

    rows: tuple[AnsweredFigure, ...] = Field(description="Figures with a prediction.")
    unanswered: tuple[UnansweredFigure, ...] = Field(description="Figures without one, and why.")
    sources: dict[str, FigureScore] = Field(description="Scores by source.")
    regimes: dict[str, FigureScore] = Field(description="Scores by kind of use.")
    overall: FigureScore = Field(
        description="Medians over sources of the sources' medians, mean of their shares inside."
    )


def compared(figures: Iterable[Figure], ask: Ask) -> FiguresDocument:
    """Ask for each figure, and judge. Refusals of the predictor count as unanswered."""
    rows: list[AnsweredFigure] = []
    unanswered: list[UnansweredFigure] = []
    for figure in figures:
        reason = figure.why_or_nearest or "a spec cannot express it"
        if figure.express != "none":
            try:
                rows.append(_answered(figure, ask(figure)))
                continue
            except DsforgeError as error:
                problems = getattr(error, "problems", ())
                reason = "; ".join(map(str, problems)) or error.message
        place = {"id": figure.id, "source": figure.source, "regime": figure.regime}
        unanswered.append(UnansweredFigure(**place, reason=reason))
    sources = _scores(rows, unanswered, "source")
    regimes = _scores(rows, unanswered, "regime")
    return FiguresDocument(
        rows=tuple(rows),
        unanswered=tuple(unanswered),
        sources=sources,
        regimes=regimes,
        overall=_overall(tuple(sources.values())),
    )


def _answered(figure: Figure, asked: Asked) -> AnsweredFigure:
    found, published = answer(figure, asked.plan, asked.largest), figure.value
    paper = on_paper(figure, asked.plan)
    yes_or_no = figure.quantity == "fits"
    wrong = float(found.likely != published)
    return AnsweredFigure(
        id=figure.id,
        source=figure.source,
        regime=figure.regime,
        quantity=figure.quantity,
        unit=figure.unit,
        predicted=found.likely,
        low=found.low,
        high=found.high,
        published=published,
        error=wrong if yes_or_no else found.likely / published - 1,
        inside=not wrong if yes_or_no else found.low <= published <= found.high,
        arithmetic_error=None if paper is None else paper / published - 1,
    )


def _scores(
    rows: Sequence[AnsweredFigure], unanswered: Sequence[UnansweredFigure], key: str
) -> dict[str, FigureScore]:
    """The score of each source or regime, in alphabetical order."""
    answered: dict[str, list[AnsweredFigure]] = defaultdict(list)
    missing: dict[str, int] = defaultdict(int)
    for row in rows:
        answered[getattr(row, key)].append(row)
    for figure in unanswered:
        missing[getattr(figure, key)] += 1
    names = sorted({*answered, *missing})
    return {name: _score(answered[name], missing[name]) for name in names}


def _score(rows: Sequence[AnsweredFigure], missing: int) -> FigureScore:
    on_paper = [abs(row.arithmetic_error) for row in rows if row.arithmetic_error is not None]
    return FigureScore(
        figures=len(rows) + missing,
        answered=len(rows),
        median=median(abs(row.error) for row in rows) if rows else None,
        bias=median(row.error for row in rows) if rows else None,
        inside=mean(row.inside for row in rows) if rows else None,
        arithmetic=median(on_paper) if on_paper else None,
    )


def _overall(sources: Sequence[FigureScore]) -> FigureScore:
    """Every source with the same weight; the share answered is over figures."""

    def over(values: Iterable[float | None], judge: Callable[[list[float]], float]) -> float | None:
        known = [value for value in values if value is not None]
        return judge(known) if known else None

    return FigureScore(
        figures=sum(score.figures for score in sources),
        answered=sum(score.answered for score in sources),
        median=over((score.median for score in sources), median),
        bias=over((score.bias for score in sources), median),
        inside=over((score.inside for score in sources), mean),
        arithmetic=over((score.arithmetic for score in sources), median),
    )
