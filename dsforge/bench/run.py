"""One launch for each cell, through the run folder's own script, as a user would start it.

Each cell gets a folder with the files of the run and a `train.yaml` that differs from the user's
in what the comparison needs: which ds_config, how many steps, nothing saved. So every strategy
sees the same samples in the same order, and a cell can be started again by hand.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dsforge import process
from dsforge.bench.matrix import Cell, priced
from dsforge.bench.report import Outcome
from dsforge.diagnose import diagnose_files
from dsforge.diagnose.words import shortly
from dsforge.errors import DsforgeError, RunError
from dsforge.job import TrainJob
from dsforge.plan import Plan
from dsforge.reading.job import read_job
from dsforge.train.record import Measurement

SCRIPT = "launch/deepspeed.sh"
Stored = TypeVar("Stored", bound=BaseModel)

COPIED = ("hostfile", ".deepspeed_env", SCRIPT)
OUTPUT = "output"
LOG = "log.txt"


@dataclass(frozen=True, slots=True)
class Bench:
    """What all cells share: the run folder as read, where cells go, steps and time limit."""

    run: Path
    plan: Plan
    job: TrainJob
    out: Path
    steps: int
    timeout_s: float


def read_bench(run: Path, out: Path, *, steps: int, timeout_s: float) -> Bench:
    """A comparison on a run folder; `steps` includes the warm-up.

    Raises DsforgeError where the folder is not one that `dsforge gen` wrote.
    """
    missing = [name for name in ("plan.json", "train.yaml", *COPIED) if not (run / name).exists()]
    if missing:
        raise DsforgeError(
            f"{run} lacks {', '.join(missing)}",
            "give a folder that `dsforge gen --out` has written",
        )
    plan, job = read_plan(run / "plan.json"), read_job(run / "train.yaml")
    return Bench(run.resolve(), plan, job, out.resolve(), steps, timeout_s)


def run_cell(bench: Bench, cell: Cell, on_line: Callable[[str], None]) -> Outcome:
    """What came of one launch. A failure is an outcome, so that other cells can go on."""
    folder = prepare_cell(bench, cell)
    start = time.monotonic()
    try:
        done = process.run(
            (str(folder / SCRIPT),),
            timeout_s=bench.timeout_s,
            environment=_environment(),
            on_line=on_line,
        )
        (folder / LOG).write_text(done.output, encoding="utf-8")
        done.check(f"the launch of {cell.name}")
        measurement = read_measurement(folder / OUTPUT / "measurement.json")
    except DsforgeError as error:
        tail = error.tail if isinstance(error, RunError) else error.hint
        text = "\n".join((f"{error.message}\n{tail}".rstrip(), *_cause(folder / LOG)))
        return Outcome(cell=cell, wall_s=time.monotonic() - start, error=text)
    return Outcome(cell=cell, wall_s=time.monotonic() - start, measurement=measurement)


def _cause(log: Path) -> list[str]:
    """What the log of a failed launch shows as its cause; nothing where that is not clear."""
    return shortly(diagnose_files([log])) if log.exists() else []


def prepare_cell(bench: Bench, cell: Cell) -> Path:
    """The folder of a cell, fresh, with every file that its launch needs."""
    folder = bench.out / cell.name
    if folder.exists() and not (folder / "train.yaml").exists():
        raise DsforgeError(f"{folder} is not a run of `dsforge bench`", "choose another --out")
    shutil.rmtree(folder, ignore_errors=True)
    for name in (*COPIED, cell.config):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(bench.run / name, folder / name)
    text = json.dumps(cell_job(bench, cell).model_dump(mode="json"), indent=2, ensure_ascii=False)
    (folder / "train.yaml").write_text(text + "\n", encoding="utf-8")  # JSON is YAML
    return folder


def cell_job(bench: Bench, cell: Cell) -> TrainJob:
    """The user's job with the cell's ds_config and steps; paths no longer depend on the folder."""
    job, data = bench.job, bench.job.data
    strategy = priced(bench.plan, cell.variant).strategy
    validation = None if data.validation is None else _absolute(bench.run, data.validation)
    return job.model_copy(
        update={
            "model": _absolute(bench.run, job.model),
            "data": data.model_copy(
                update={"train": _absolute(bench.run, data.train), "validation": validation}
            ),
            "deepspeed_config": cell.config,
            "gradient_checkpointing": strategy.recompute != "none",
            "steps": bench.steps,
            "output": OUTPUT,
            "checkpoint_every": None,
            "evaluate_every": None,
            "save": False,
        }
    )


def read_plan(path: Path) -> Plan:
    """The plan in a `plan.json`. Raises DsforgeError where it is none."""
    return _read_json(Plan, path, "written by another version of dsforge: run `dsforge gen` again")


def read_measurement(path: Path) -> Measurement:
    """The measurement that a run has left. Raises DsforgeError where there is none."""
    return _read_json(Measurement, path, "the run ended before it was measured")


def _read_json(kind: type[Stored], path: Path, hint: str) -> Stored:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DsforgeError(f"{path} cannot be read: {error.strerror}", hint) from error
    except ValidationError as error:
        what = f"{path} is not a {kind.__name__} ({error.error_count()} problems)"
        raise DsforgeError(what, hint) from error


def _absolute(folder: Path, name: str) -> str:
    """A name that means a file of the folder as absolute path; any other name unchanged."""
    path = folder / name
    return str(path.resolve()) if path.exists() else name


def _environment() -> dict[str, str]:
    """A free port for the rendezvous, so that a run does not wait for the last one's to close."""
    if "MASTER_PORT" in os.environ:
        return {}
    with socket.socket() as probe:
        probe.bind(("", 0))
        return {"MASTER_PORT": str(probe.getsockname()[1])}
