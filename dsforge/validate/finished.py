"""A finished run beside its prediction without calibration: from a plan, or from a table's row."""

from __future__ import annotations

from dsforge.errors import Problem
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.time import estimate_time
from dsforge.plan import Plan
from dsforge.specs import ClusterSpec
from dsforge.units import GIB
from dsforge.validate.calibration import FinishedRun
from dsforge.validate.cases import Case, case_of, counter_of
from dsforge.validate.table import Row

OUT_OF_MEMORY = "out of memory"  # in the notes of a row


def run_of_plan(name: str, plan: Plan, step_s: float, allocated_bytes: float | None) -> FinishedRun:
    """The run of a plan."""
    case = Case(plan.model, _uncalibrated(plan.cluster), plan.workload, plan.strategy)
    return _run(name, case, step_s, allocated_bytes)


def run_of_row(row: Row) -> tuple[ClusterSpec, FinishedRun] | Problem:
    """The run of a row with its cluster, or why there is none."""
    case = case_of(row)
    if isinstance(case, str):
        return Problem("csv-run", f"{row.id}: {case}", "", "")
    if OUT_OF_MEMORY in row.notes.lower():
        predicted = estimate_memory(*case).device_bytes.likely
        run = _run(row.id, case, None, None)
        return case.cluster, run._replace(least_bytes=case.cluster.gpu.memory_bytes - predicted)
    if row.step_time_s is None:
        return Problem("csv-run", f"{row.id}: no step_time_s", f"or `{OUT_OF_MEMORY}` in notes", "")
    counted = counter_of(row) == "allocated" and row.peak_mem_gib is not None
    allocated = (row.peak_mem_gib or 0) * GIB if counted else None
    return case.cluster, _run(row.id, case, row.step_time_s, allocated)


def _uncalibrated(cluster: ClusterSpec) -> ClusterSpec:
    return cluster.model_copy(update={"calibration": None})


def _run(name: str, case: Case, step_s: float | None, allocated_bytes: float | None) -> FinishedRun:
    predicted = estimate_memory(*case).allocated_bytes.likely
    return FinishedRun(
        name=name,
        gpu=case.cluster.gpu.name,
        terms=estimate_time(*case).terms,
        step_s=step_s,
        allocated_bytes=None if allocated_bytes is None else (predicted, allocated_bytes),
    )
