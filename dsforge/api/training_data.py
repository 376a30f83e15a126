"""A look at the training data while a run is planned: what no rank could read is refused now."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from dsforge.errors import Problem, SpecError
from dsforge.plan import Plan

LOOKED_AT = 100  # rows from the beginning of a file
SHOWN = 3
TEXT_SUFFIXES = (".jsonl", ".json")


def data_paths(plan: Plan, out: Path) -> tuple[Path, ...]:
    """The files of rows that `train.yaml` of a run folder names; it names them from that folder."""
    data = plan.workload.data
    named = (data.train, data.validation) if data else ()
    folder = os.path.realpath(out)  # which need not be there yet: `..` is resolved in the text
    paths = (os.path.normpath(os.path.join(folder, name)) for name in named if name)  # noqa: PTH118
    return tuple(Path(os.path.relpath(path)) for path in paths)


def check_rows(plan: Plan, out: Path) -> None:
    """Raises SpecError where the first rows of a file are none that `dsforge train` reads.

    A file that is not on this machine is not looked at: plans are made far from the cluster. Tables
    are read by the ranks alone.
    """
    from dsforge.train.data.rows import each_row

    if plan.workload.data is None or plan.strategy.back_end != "deepspeed":
        return
    for path in data_paths(plan, out):
        if path.suffix in TEXT_SUFFIXES and path.exists():
            shape = "pairs" if plan.workload.preference else plan.workload.data.shape
            looked = list(islice(each_row(path, shape), LOOKED_AT))
            problems = [row for row in looked if isinstance(row, Problem)]
            if len(problems) == len(looked):
                empty = Problem("data-empty", "holds no rows", place=str(path))
                raise SpecError(tuple(problems[:SHOWN]) or (empty,))
