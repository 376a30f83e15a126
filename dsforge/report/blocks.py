"""Blocks of a report: what is shown, without how. HTML, Markdown and JSON show the same blocks."""

from __future__ import annotations

from typing import Literal

from markupsafe import Markup
from pydantic import BaseModel, Field

from dsforge.masking import printable
from dsforge.specs import FROZEN

Verdict = Literal["fits", "tight", "does not fit", "measured"]
MOST_ROWS = 200  # of one table; longer ones are sampled by their makers or cut here


class Column(BaseModel):
    """A column of a table."""

    model_config = FROZEN

    title: str = Field(description="Heading.")
    numeric: bool = Field(default=False, description="Whether its cells are numbers.")


class Table(BaseModel):
    """A table; the first cell of a row names the row."""

    model_config = FROZEN

    caption: str = Field(description="What the table shows, with its scope.")
    columns: tuple[Column, ...] = Field(description="Columns, the first with the row names.")
    rows: tuple[tuple[str, ...], ...] = Field(description="Cells as text, with units.")

    @property
    def shown(self) -> tuple[tuple[tuple[str, bool], ...], ...]:
        """Each cell but the first of a row with whether it is a number, cut to `MOST_ROWS`."""
        numeric = [column.numeric for column in self.columns]
        return tuple(tuple(zip(row, numeric, strict=True)) for row in self.rows[:MOST_ROWS])


class Chart(BaseModel):
    """A picture with the table of its figures."""

    model_config = FROZEN

    name: str = Field(description="Name of its file, without `.svg`.")
    title: str = Field(description="What it shows.")
    svg: str = Field(exclude=True, description="The picture as SVG text.")
    table: Table = Field(description="The same figures as a table.")


class TextFile(BaseModel):
    """A file or a command that readers copy."""

    model_config = FROZEN

    name: str = Field(description="Path in the run folder, or what the command does.")
    text: str = Field(description="Content, without secrets.")

    @property
    def shown(self) -> Markup:
        """The content as it stands between two fences of Markdown."""
        return Markup(printable(self.text).rstrip("\n"))  # noqa: S704 (a fence ends only itself)


class Section(BaseModel):
    """A part of the report with a heading."""

    model_config = FROZEN

    id: str = Field(description="Name of the section, for links.")
    title: str = Field(description="Heading.")
    note: str = Field(default="", description="How to read it.")
    lines: tuple[str, ...] = Field(default=(), description="Sentences, most important first.")
    charts: tuple[Chart, ...] = Field(default=(), description="Pictures with their tables.")
    tables: tuple[Table, ...] = Field(default=(), description="Further tables.")
    commands: tuple[TextFile, ...] = Field(default=(), description="Commands to repeat it.")
    files: tuple[TextFile, ...] = Field(default=(), description="Files of the run folder.")


class Gauge(BaseModel):
    """An interval relative to a limit, in percent of the bar."""

    model_config = FROZEN

    low: float = Field(description="Begin of the 80 % interval, %.")
    likely: float = Field(description="Likely value, %.")
    high: float = Field(description="End of the 80 % interval, %.")
    limit: float = Field(description="What there is, %.")

    @property
    def width(self) -> float:
        """Length of the interval, %."""
        return self.high - self.low


class Stat(BaseModel):
    """One of the figures at the head of a report."""

    model_config = FROZEN

    label: str = Field(description="Name of the quantity.")
    value: str = Field(description="Likely or measured value with its unit.")
    span: str = Field(default="", description="80 % interval of a prediction.")
    note: str = Field(default="", description="What it is compared with.")
    gauge: Gauge | None = Field(default=None, description="The interval against what there is.")


class Report(BaseModel):
    """A report: its head, then its sections."""

    model_config = FROZEN

    schema_version: Literal[1] = Field(
        default=1, description="Version of the shape of this document."
    )
    dsforge: str = Field(description="Version of dsforge that made it.")
    title: str = Field(description="Model and cluster.")
    headline: str = Field(description="The job in one line.")
    verdict: Verdict = Field(description="Whether the plan fits; `measured`: runs decide.")
    choice: str = Field(description="The strategy to use.")
    stats: tuple[Stat, ...] = Field(description="Key figures.")
    sections: tuple[Section, ...] = Field(description="Parts in reading order.")


def gauge(low: float, likely: float, high: float, limit: float) -> Gauge:
    """A gauge whose bar ends at the limit, or at the interval where that reaches further."""
    whole = max(limit, high) or 1.0
    low, likely, high, limit = (100 * value / whole for value in (low, likely, high, limit))
    return Gauge(low=low, likely=likely, high=high, limit=limit)


def table(caption: str, columns: str, rows: tuple[tuple[str, ...], ...]) -> Table:
    """A table; headings are separated by `|`, those of numbers begin with `#`."""
    heads = tuple(
        Column(title=word.strip().lstrip("#"), numeric=word.strip().startswith("#"))
        for word in columns.split("|")
    )
    return Table(caption=caption, columns=heads, rows=rows)
