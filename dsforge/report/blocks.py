"""Blocks of a report: what is shown, without how. HTML, Markdown and JSON show the same blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from markupsafe import Markup
from pydantic import Field

from dsforge.masking import printable

Verdict = Literal["fits", "tight", "does not fit", "measured"]
MOST_ROWS = 200  # of one table; longer ones are sampled by their makers or cut here


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    title: Annotated[str, Field(description="Heading of the column, with its unit if any.")]
    numeric: Annotated[bool, Field(description="Whether its cells are numbers.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; the first cell of a row names the row."""

    caption: Annotated[str, Field(description="What the table shows, with its scope.")]
    columns: Annotated[
        tuple[Column, ...], Field(description="Columns, the first with the row names.")
    ]
    rows: Annotated[tuple[tuple[str, ...], ...], Field(description="Cells as text, with units.")]

    @property
    def shown(self) -> tuple[tuple[tuple[str, bool], ...], ...]:
        """Each cell but the first of a row with whether it is a number, cut to `MOST_ROWS`."""
        numeric = [column.numeric for column in self.columns]
        return tuple(tuple(zip(row, numeric, strict=True)) for row in self.rows[:MOST_ROWS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture with the table of its figures."""

    name: Annotated[str, Field(description="Name of its file, without `.svg`.")]
    title: Annotated[str, Field(description="What the picture shows.")]
    table: Annotated[Table, Field(description="The same figures as a table.")]
    svg: Annotated[str, Field(exclude=True, description="The picture as SVG text.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file or a command that readers copy."""

    name: Annotated[str, Field(description="Path in the run folder, or what the command does.")]
    text: Annotated[str, Field(description="Content of the file, without secrets.")]

    @property
    def shown(self) -> Markup:
        """The content as it stands between two fences of Markdown."""
        return Markup(printable(self.text).rstrip("\n"))  # noqa: S704 (a fence ends only itself)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report with a heading."""

    id: Annotated[str, Field(description="Name of the section, for links.")]
    title: Annotated[str, Field(description="Heading of the section.")]
    note: Annotated[str, Field(description="How to read it.")] = ""
    lines: Annotated[tuple[str, ...], Field(description="Sentences, most important first.")] = ()
    charts: Annotated[tuple[Chart, ...], Field(description="Pictures with their tables.")] = ()
    tables: Annotated[tuple[Table, ...], Field(description="Tables without a picture.")] = ()
    commands: Annotated[tuple[TextFile, ...], Field(description="Commands to repeat it.")] = ()
    files: Annotated[tuple[TextFile, ...], Field(description="Files of the run folder.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """An interval relative to a limit, in percent of the bar."""

    low: Annotated[float, Field(description="Begin of the 80 % interval, %.")]
    likely: Annotated[float, Field(description="Likely value, %.")]
    high: Annotated[float, Field(description="End of the 80 % interval, %.")]
    limit: Annotated[float, Field(description="What there is, %.")]

    @property
    def width(self) -> float:
        """Length of the interval, %."""
        return self.high - self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One of the figures at the head of a report."""

    label: Annotated[str, Field(description="Name of the quantity.")]
    value: Annotated[str, Field(description="Likely or measured value with its unit.")]
    span: Annotated[str, Field(description="80 % interval of a prediction.")] = ""
    note: Annotated[str, Field(description="What it is compared with.")] = ""
    gauge: Annotated[Gauge | None, Field(description="The interval against what there is.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report: its head, then its sections."""

    schema_version: Annotated[
        Literal[1], Field(description="Version of the shape of this document.")
    ] = 1
    dsforge: Annotated[str, Field(description="Version of dsforge that made it.")]
    title: Annotated[str, Field(description="Model and cluster.")]
    headline: Annotated[str, Field(description="The job in one line.")]
    verdict: Annotated[
        Verdict, Field(description="Whether the plan fits; `measured`: runs decide.")
    ]
    choice: Annotated[str, Field(description="The strategy to use.")]
    stats: Annotated[tuple[Stat, ...], Field(description="Key figures at the head.")]
    sections: Annotated[tuple[Section, ...], Field(description="Parts in reading order.")]


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
