"""`dsforge catalog`: the models, accelerators and links that dsforge knows by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import click

from dsforge.errors import Problem, SpecError

WIDE = 200  # columns of a table that goes into a file or a pipe


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

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        shown.add_column(column.heading, justify="right" if column.right else "left")
    for row in rows:
        shown.add_row(*(column.cell(row) for column in columns))
    out = Console(highlight=False, markup=False)
    if not out.is_terminal:
        out.width = WIDE
    out.print(shown)


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
