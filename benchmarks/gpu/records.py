"""The result file: one record for each configuration, complete in itself, written as a whole.

A record says what was run on what, with which inputs and versions, what dsforge had predicted, and
what was measured; nobody needs this repository's state of that day to use it. The file is replaced
by a rename after each record, so it can be read, and the run ended, at any moment.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from dsforge.errors import DsforgeError
from dsforge.estimate.flops import step_flops
from dsforge.specs import FROZEN
from gpu.configurations import Case
from gpu.ranks import Ended

Outcome = Literal["measured", "oom", "crashed", "failed", "timeout", "skipped"]
FINAL: tuple[Outcome, ...] = ("measured", "oom")  # the others are tried again by the next run
COUNTERS = ("allocated", "reserved", "device")


class Record(BaseModel):
    """One configuration: inputs, prediction, outcome."""

    model_config = FROZEN

    name: str
    outcome: Outcome
    error: str = Field(default="", description="Why it was not measured; end of the log.")
    measured: dict[str, Any] | None = Field(
        default=None, description="Worst over ranks; of a run that failed, what it got to."
    )
    predicted: dict[str, Any] = Field(description="Memory, time, buckets, whether it fits.")
    plan: dict[str, Any] = Field(description="Model, cluster, workload, strategy, ds_config.")
    notes: tuple[str, ...] = ()
    dry_run: bool = False
    started: str = Field(description="UTC.")
    wall_s: float = Field(default=0.0, description="Start and end of the ranks included.")
    versions: dict[str, str]
    hardware: dict[str, Any]
    command: str

    def predicted_bytes(self, counter: str) -> float:
        """Likely bytes of a counter on the fullest rank."""
        return float(self.predicted["memory"][f"{counter}_bytes"]["likely"])

    def measured_bytes(self, counter: str) -> int | None:
        """Peak bytes of a counter over all steps and ranks; none where it was not read."""
        peak = (self.measured or {}).get("peak", {})
        return peak.get(f"{counter}_bytes") if self.outcome == "measured" else None

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step after warm-up; none where not measured."""
        return (self.measured or {}).get("median_step_s") if self.outcome == "measured" else None


class Results(BaseModel):
    """A result file."""

    model_config = FROZEN

    schema_version: Literal[1] = 1
    ceilings: dict[str, Any] = {}
    records: tuple[Record, ...] = ()

    def record(self, name: str) -> Record | None:
        """The record of a configuration, if there is one."""
        return next((record for record in self.records if record.name == name), None)

    def with_record(self, record: Record) -> Results:
        """A copy that holds the record instead of an earlier one of the same name."""
        others = tuple(r for r in self.records if r.name != record.name)
        return self.model_copy(update={"records": (*others, record)})


def read_results(path: Path, hardware: dict[str, Any]) -> Results:
    """The results so far; empty where there is no file. Raises DsforgeError for a foreign one."""
    if not path.exists():
        return Results()
    try:
        results = Results.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DsforgeError(
            f"{path} is no result of this benchmark", "choose another --out"
        ) from error
    for record in results.records:
        for key in ("gpu", "gpus"):
            if record.hardware.get(key) != hardware[key]:
                other = f"{record.hardware.get('gpus')} x {record.hardware.get('gpu')}"
                raise DsforgeError(f"{path} was measured on {other}", "choose another --out")
    return results


def write_results(path: Path, results: Results) -> None:
    """Replace the file by one rename; one line for each record."""
    lines = ",\n".join(record.model_dump_json() for record in results.records)
    ceilings = TypeAdapter(dict[str, Any]).dump_json(results.ceilings).decode()
    text = f'{{"schema_version": 1,\n"ceilings": {ceilings},\n"records": [\n{lines}\n]}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def record_of(
    case: Case,
    ended: Ended | None,
    *,
    facts: dict[str, Any],
    ds_config: dict[str, Any],
    notes: tuple[str, ...],
) -> Record:
    """The record of what came of a case; `ended` none: it was not started.

    `facts` are `versions`, `hardware`, `command`, `dry_run` and, where it was skipped, `error`.
    """
    priced = case.priced
    return Record(
        name=case.configuration.name,
        outcome="skipped" if ended is None else ended.outcome,
        measured=None if ended is None else _measured(case, ended),
        predicted={
            "memory": priced.memory.model_dump(mode="json", warnings=False),
            "time": priced.time.model_dump(mode="json", warnings=False),
            "buckets": priced.buckets.model_dump(mode="json"),
            "fits": priced.fits,
        },
        plan={
            "configuration": case.configuration._asdict(),
            "model": case.model.model_dump(mode="json"),
            "cluster": case.cluster.model_dump(mode="json"),
            "workload": case.workload.model_dump(mode="json"),
            "strategy": priced.strategy.model_dump(mode="json"),
            "ds_config": ds_config,
        },
        notes=notes,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_s=0.0 if ended is None else round(ended.wall_s, 2),
        **({"error": ended.error} if ended else {}),
        **facts,
    )


def _measured(case: Case, ended: Ended) -> dict[str, Any]:
    """The worst of all ranks, and what follows from it."""
    first = ended.ranks[0]
    found = {key: value for key, value in first.items() if key not in ("log", "outcome", "error")}
    for key in ("init", "ready", "peak"):
        each = [rank[key] for rank in ended.ranks if key in rank]
        if each:
            found[key] = {name: max(values[name] for values in each) for name in each[0]}
    counted = first.get("step_s", [])[first.get("warmup_steps", 0) :]
    if counted:
        peaks = case.cluster.gpu.peak_flops
        step_s = median(counted)
        useful = step_flops(case.model, case.workload) / case.cluster.gpus / step_s
        found["median_step_s"] = step_s
        found["model_tflops_per_gpu"] = useful / 1e12
        found["mfu"] = useful / peaks.get(case.workload.precision, max(peaks.values()))
    return found
