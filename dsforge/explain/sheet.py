"""The sheet on which a prediction is worked out, figure by figure."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, Field

from dsforge.explain.formula import names_in, value_of
from dsforge.specs import FROZEN

SAME = 1e-9  # relative: two ways to the same number in floating point


class Given(BaseModel):
    """A value that nothing here computes: from the plan, or a constant of the model."""

    model_config = FROZEN

    name: str = Field(description="Name of the value in formulas.")
    value: float = Field(description="The value itself, in `unit`.")
    unit: str = Field(description="Unit of the value; empty for counts and shares.")
    source: str = Field(description="Where the value comes from.")


class Figure(BaseModel):
    """A value with the formula that gives it from others."""

    model_config = FROZEN

    group: str = Field(description="What it belongs to: memory, time, ...")
    name: str = Field(description="Name of the figure in formulas.")
    value: float = Field(description="The value itself, in `unit`.")
    unit: str = Field(description="Unit of the value; empty for counts and shares.")
    formula: str = Field(description="Python arithmetic of the inputs; max, min, ceil, log2.")
    inputs: tuple[Given, ...] = Field(description="Every name in the formula with its value.")
    source: str = Field(description="Why the formula is so.")


class Sheet:
    """Given values and figures under one name each; later formulas use earlier ones."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}
        self.values: dict[str, float] = {}
        self._given: dict[str, Given] = {}

    def give(self, source: str, unit: str = "", /, **values: float) -> None:
        """Values that the formulas rest on."""
        for name, value in values.items():
            self._given[name] = Given(name=name, value=value, unit=unit, source=source)
            self.values[name] = value

    def work_out(self, group: str, lines: tuple[Line, ...]) -> None:
        """Figures of one group, in turn."""
        for line in lines:
            value = float(value_of(line.formula, self.values))
            self.values[line.name] = value
            self.figures[line.name] = Figure.model_construct(
                group=group,
                name=line.name,
                value=value,
                unit=line.unit,
                formula=line.formula,
                inputs=tuple(self._input(name) for name in names_in(line.formula)),
                source=line.source,
            )

    def check(self, name: str, value: float, source: str) -> None:
        """Take the prediction's own value where a figure does not reproduce it.

        What was measured on a cluster has its own account; the figure then says so.
        """
        mine = self.values[name]
        if abs(mine - value) > SAME * max(abs(mine), abs(value)):
            figure = self.figures.pop(name)
            self.give(source, figure.unit, **{name: value})

    def _input(self, name: str) -> Given:
        if name in self._given:
            return self._given[name]
        figure = self.figures[name]
        return Given.model_construct(
            name=name, value=figure.value, unit=figure.unit, source=f"figure of {figure.group}"
        )


class Line(NamedTuple):
    """A figure before it is worked out."""

    name: str
    unit: str
    formula: str
    source: str
