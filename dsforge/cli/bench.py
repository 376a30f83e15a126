"""`dsforge bench`: the same job under several strategies, beside the plan's predictions."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.numbers import Real, Whole
from dsforge.cli.paths import NamedPath

if TYPE_CHECKING:
    from dsforge.bench.matrix import Cell
    from dsforge.bench.report import Outcome, Report
    from dsforge.bench.run import Bench

LIFE = re.compile(r", \d+ s$")  # how lines end that say what a run is waiting for
SHOWN_LINES = ("step ", "error", "train")  # how lines begin that say how far a run is


@click.command()
@click.argument(
    "run",
    type=NamedPath(),
    default=".",
    help="Run folder of `dsforge gen` (default: current folder).",
)
@click.option(
    "--stages",
    default="2,3",
    help="Comma-separated ZeRO stages, or names: zero3_offload, ddp, torch_zero1, fsdp2, 3d.",
)
@click.option("--steps", type=Whole(min=1), default=20, help="Measured steps per run.")
@click.option("--warmup", type=Whole(min=0), default=3, help="Warm-up steps that are not measured.")
@click.option("--repeats", type=Whole(min=1), default=1, help="Runs per strategy, interleaved.")
@click.option(
    "--out",
    "-o",
    type=NamedPath(),
    help="Folder of the report (default: RUN/bench).",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Real(min=1),
    default=7200,
    help="Time limit per run in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def bench(
    *,
    run: Path,
    stages: str,
    steps: int,
    warmup: int,
    repeats: int,
    out: Path | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Launch the same job with several strategies and recommend one."""
    from dsforge.artifacts import write_all
    from dsforge.bench.folder import cell_files
    from dsforge.bench.matrix import matrix, parse_strategies
    from dsforge.bench.pages import pages
    from dsforge.bench.report import report
    from dsforge.bench.run import read_bench
    from dsforge.cli.show import note
    from dsforge.errors import DsforgeError

    # SystemExit unwinds through process.run, which ends the ranks; the default would leave them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    variants = parse_strategies(stages)
    folder = out or run / "bench"
    given = read_bench(run, folder, steps=warmup + steps, timeout_s=timeout_s)
    cells = matrix(given.plan, variants, repeats)
    outcomes = tuple(_run(given, cell, n, len(cells)) for n, cell in enumerate(cells, start=1))
    made = report(given.plan, outcomes, warmup_steps=warmup)
    files = cell_files(given.out, made)
    write_all(pages(made, given.plan, files), folder / "report", force=True)
    _show(made, as_json=as_json)
    note(f"report: {folder / 'report' / 'report.html'}, report.md, report.json")
    if made.recommendation.variant is None:
        raise DsforgeError("no run was measured", f"the output of each run is in {folder}")


def _run(given: Bench, cell: Cell, number: int, count: int) -> Outcome:
    """One launch with its progress on stderr."""
    from dsforge.bench.run import run_cell
    from dsforge.cli.alive import alive
    from dsforge.cli.show import note
    from dsforge.units import seconds

    head = f"[{number}/{count}] {cell.name}"
    note(f"{head}: starting {given.steps} steps")

    with alive(f"{head}: under way") as beat:

        def show(line: str) -> None:
            if line.startswith(SHOWN_LINES) or LIFE.search(line):
                note(f"{head}: {line}")
                beat.spoke()

        outcome = run_cell(given, cell, show)
    end = "failed" if outcome.error else "measured"
    note(f"{head}: {end} after {seconds(outcome.wall_s)}\n{outcome.error}".rstrip())
    return outcome


def _show(made: Report, *, as_json: bool) -> None:
    """The table and the verdict, or the document."""
    from dsforge.bench.pages import row_texts, verdict, workload
    from dsforge.cli.show import show_json

    if as_json:
        show_json(made.model_dump(mode="json"))
        return
    from rich.console import Console
    from rich.table import Table

    names = ", ".join(row.variant for row in made.rows)
    table = Table(title=f"{names}: {made.model}", caption=workload(made))
    for name in ("", "step time", "tokens/s", made.memory_counter, "sent", "loss"):
        table.add_column(name)
    for row in row_texts(made):
        table.add_row(row.variant, row.step, row.tokens, row.memory, row.sent, row.loss)
        predicted = (row.predicted_step, row.predicted_tokens, row.predicted_memory)
        table.add_row("predicted", *predicted, row.predicted_sent, style="dim", end_section=True)
    Console().print(table)
    print(verdict(made))
    print("\n".join(f"  because   {reason}" for reason in made.recommendation.reasons))
