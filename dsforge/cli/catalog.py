"""`dsforge catalog`: the models, accelerators and links that dsforge knows by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dsforge.errors import Problem, SpecError

if TYPE_CHECKING:
    from rich.console import JustifyMethod

WIDE = 200  # columns of a table that goes into a file or a pipe, where COLUMNS does not say
GAP, NARROWEST_TEXT = 3, 20  # columns between two, and of a text that is broken into lines


class Table(StrEnum):
    """What can be listed."""

    models = "models"
    gpus = "gpus"
    links = "links"


class Column(NamedTuple):
    """A column: its heading, and what it shows of a row; numbers are set to the right."""

    heading: str
    cell: Callable[[dict[str, Any]], str]
    right: bool = True


@click.command()
@click.argument("table", type=click.Choice(Table), help="What to list.")
@click.argument(
    "words", nargs=-1, metavar="[FILTER]...", help="Parts of a name, such as llama 70b."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with sources.")
def catalog(*, table: Table, words: tuple[str, ...], as_json: bool) -> None:
    """List the models, accelerators and links of the catalog."""
    from dsforge import catalog as known

    wanted = " ".join(words)
    rows = {
        Table.models: lambda: known.rows("model", wanted),
        Table.gpus: lambda: known.rows("gpu", wanted),
        Table.links: lambda: known.rows("link", wanted),
    }[table]()
    if not rows:
        message = f"none of the {table} is named like {wanted[:80]!r}"
        hint = f"`dsforge catalog {table}` lists all"
        raise SpecError((Problem("catalog-filter", message, hint),))
    if as_json:
        from dsforge.cli.show import show_json

        show_json({str(table): rows})
        return
    _show(COLUMNS[table], rows)


def _show(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> None:
    """A table on stdout, as wide as it needs where no terminal limits it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    out = Console(highlight=False, markup=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = WIDE
    fitting = _fitting(columns, rows, out.width)
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(fitting):
        side: JustifyMethod = "right" if column.right else "left"
        shown.add_column(column.heading, justify=side, no_wrap=column.right or place == 0)
    for row in rows:
        shown.add_row(*(column.cell(row) for column in fitting))
    out.print(shown)
    left_out = [column.heading for column in columns if column not in fitting]
    if left_out:
        from dsforge.cli.show import note

        note(f"not shown in {out.width} columns: {', '.join(left_out)}; --json has everything")


def _fitting(
    columns: tuple[Column, ...], rows: list[dict[str, Any]], width: int
) -> tuple[Column, ...]:
    """The columns that fit into a width, in their order; a text is broken into lines if need be."""
    chosen: list[Column] = []
    left = width
    for column in columns:
        cells = [column.cell(row) for row in rows]
        wide = max(map(len, (column.heading, *cells)))
        needed = GAP + (wide if column.right or not chosen else min(wide, NARROWEST_TEXT))
        if needed <= left:
            chosen.append(column)
            left -= needed
    return tuple(chosen)


def _parameters(row: dict[str, Any]) -> str:
    from dsforge.units import count

    return count(row["params_exact"])


def _active(row: dict[str, Any]) -> str:
    from dsforge.units import count

    return count(row["params_active"]) if "params_active" in row else ""


def _field(name: str) -> Callable[[dict[str, Any]], str]:
    """The cell of a field; empty where the row does not have it."""
    return lambda row: "" if row.get(name) is None else f"{row[name]}"


def _peak(precision: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row['peak_tflops'].get(precision, '-')}"


COLUMNS: dict[Table, tuple[Column, ...]] = {
    Table.models: (
        Column("model", _field("name"), right=False),
        Column("parameters", _parameters),
        Column("active", _active),
        Column("layers", _field("layers")),
        Column("hidden", _field("hidden_size")),
        Column("heads/kv", lambda row: f"{row['attention_heads']}/{row['kv_heads']}"),
        Column("vocabulary", _field("vocab_size")),
        Column("positions", _field("max_position_embeddings")),
        Column("hub id", _field("hub_id"), right=False),
    ),
    Table.gpus: (
        Column("card", _field("name"), right=False),
        Column("usable GiB", _field("usable_gib")),
        Column("GB/s", _field("memory_gb_per_s")),
        Column("bf16 TFLOP/s", _peak("bf16")),
        Column("fp16", _peak("fp16")),
        Column("fp8", _peak("fp8")),
        Column("fp32", _peak("fp32")),
        Column("reached", lambda row: f"{row['matmul_efficiency']:.0%}"),
        Column("host GB/s", _field("host_link_gb_per_s")),
        Column("in a node", _field("intra_node"), right=False),
        Column("W", _field("power_w")),
    ),
    Table.links: (
        Column("link", _field("name"), right=False),
        Column("kind", _field("kind"), right=False),
        Column("GB/s one way", _field("gb_per_s")),
        Column("latency us", _field("latency_us")),
        Column("reached", lambda row: f"{row['efficiency']:.0%}"),
        Column("source", _field("source"), right=False),
    ),
}
