"""Folders of comparisons as reports read them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dsforge.bench.matrix import Cell, priced
from dsforge.bench.report import Report
from dsforge.errors import LayoutError
from dsforge.plan import Plan
from dsforge.reading.stored import read_plan, read_stored
from dsforge.report import TextFile
from dsforge.report.run_folder import PLAN, is_inside, read_file

PLACES = ("report/report.json", "report.json")
AGAIN = "written by another version of dsforge: run `dsforge bench` again"


class BenchFolder(NamedTuple):
    """A comparison, the plan that it tested where that is found, and the configs of its runs."""

    report: Report
    plan: Plan | None
    files: tuple[TextFile, ...]


def find_report(folder: Path) -> Path | None:
    """The report.json of a comparison in its folder or in that of its report; none without one."""
    return next((folder / p for p in PLACES if is_inside(folder / p, folder)), None)


def read_bench_folder(report: Path, folder: Path) -> BenchFolder:
    """A comparison with what lies around it. Raises DsforgeError where it is not readable."""
    made, plan = read_stored(Report, report, AGAIN), folder.resolve().parent / PLAN
    tested = read_plan(plan) if is_inside(plan, plan.parent) else None
    if tested is not None and not _is_of(made, tested):
        tested = None
    return BenchFolder(made, tested, cell_files(folder, made))


def _is_of(report: Report, plan: Plan) -> bool:
    """Whether a plan is the one that was tested: it predicts what the report says."""
    try:
        return all(priced(plan, r.variant).time.step_s == r.step_s.predicted for r in report.rows)
    except LayoutError:  # that plan has no such variant
        return False


def cell_files(folder: Path, report: Report) -> tuple[TextFile, ...]:
    """The ds_config of each strategy, from the first run of it."""
    names = [f"{cell.name}/{cell.config}" for cell in _first_cells(report)]
    return tuple(read_file(folder, name) for name in names if is_inside(folder / name, folder))


def _first_cells(report: Report) -> list[Cell]:
    first: dict[str, Cell] = {}
    for outcome in report.outcomes:
        first.setdefault(outcome.cell.variant, outcome.cell)
    return list(first.values())
