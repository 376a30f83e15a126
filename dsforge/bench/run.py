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

from dsforge import process
from dsforge.artifacts.anchored import anchored
from dsforge.artifacts.owner import check_owner
from dsforge.artifacts.whole import make_folder
from dsforge.artifacts.writing import PRIVATE
from dsforge.bench.matrix import ON_TORCH, SPLIT, Cell, priced
from dsforge.bench.report import Outcome
from dsforge.diagnose import diagnose_files
from dsforge.diagnose.report import shortly
from dsforge.errors import DsforgeError, RunError
from dsforge.job import TrainJob
from dsforge.masking import masked
from dsforge.measurement import Measurement
from dsforge.outside import UnreadableError, read_bytes
from dsforge.plan import Plan
from dsforge.reading.job import read_job
from dsforge.reading.stored import read_plan, read_stored
from dsforge.render import ds_config
from dsforge.render.torch import torch_settings

SCRIPT = "launch/deepspeed.sh"
COPIED = ("hostfile", ".deepspeed_env", SCRIPT)
OUTPUT = "output"
OTHER = "choose another --out"
MAX_BYTES = 16 << 20  # of a file that is copied
GRACE_S = "3"  # less than `process.end_group` waits
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
            "give a folder that `dsforge gen --for deepspeed --out` has written",
        )
    if out.is_symlink():
        hint = f"give the folder itself: --out {out.resolve()}"
        raise DsforgeError(f"`--out` (={out}) is a symbolic link", hint)
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
        (folder / LOG).write_text(masked(done.output), encoding="utf-8")
        done.check(f"the launch of {cell.name}")
        measurement = read_measurement(folder / OUTPUT / "measurement.json")
    except DsforgeError as error:
        tail = error.tail if isinstance(error, RunError) else error.hint
        text = masked("\n".join((f"{error.message}\n{tail}".rstrip(), *_cause(folder / LOG))))
        return Outcome(cell=cell, wall_s=time.monotonic() - start, error=text)
    return Outcome(cell=cell, wall_s=time.monotonic() - start, measurement=measurement)


def _cause(log: Path) -> list[str]:
    """What the log of a failed launch shows as its cause; nothing where that is not clear."""
    return shortly(diagnose_files([log])) if log.exists() else []


def prepare_cell(bench: Bench, cell: Cell) -> Path:
    """The folder of a cell, fresh, with every file that its launch needs."""
    folder = bench.out / cell.name
    if folder.is_symlink() or (folder.exists() and not (folder / "train.yaml").exists()):
        raise DsforgeError(f"{folder} is not a run of `dsforge bench`", OTHER)
    if folder.exists():
        with anchored(folder) as anchor:
            check_owner(anchor.descriptor, folder)
    shutil.rmtree(folder, ignore_errors=True)
    planned = cell.variant in SPLIT  # `gen` writes no config of it
    for name in (*COPIED, *(() if planned else (cell.config,))):
        make_folder((folder / name).parent, OTHER)
        _copy(bench.run / name, folder / name)
    if planned:
        (folder / cell.config).parent.mkdir(exist_ok=True)
        text = ds_config(bench.plan, priced(bench.plan, cell.variant))
        (folder / cell.config).write_text(text, encoding="utf-8")
    text = json.dumps(cell_job(bench, cell).model_dump(mode="json"), indent=2, ensure_ascii=False)
    (folder / "train.yaml").write_text(text + "\n", encoding="utf-8")  # JSON is YAML
    return folder


def _copy(source: Path, target: Path) -> None:
    """Copy a file of the run folder with its mode, which is there before its content."""
    if source.is_symlink():
        raise DsforgeError(f"{source} is a symbolic link", "replace it with the file itself")
    try:
        content = read_bytes(source, MAX_BYTES, pipes=False)
    except UnreadableError as error:
        raise DsforgeError(f"{source} {error.reason}") from error
    mode = PRIVATE if source.name == ".deepspeed_env" else source.stat().st_mode & 0o777
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


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
            **_engine(bench.plan, cell),
            "gradient_checkpointing": strategy.recompute != "none",
            "steps": bench.steps,
            "output": OUTPUT,
            "checkpoint_every": None,
            "evaluate_every": None,
            "save": False,
        }
    )


def _engine(plan: Plan, cell: Cell) -> dict[str, object]:
    """The fields of the job that name the engine of a cell and its settings."""
    if cell.variant not in ON_TORCH:
        return {"deepspeed_config": cell.config, "torch": None}
    strategy = priced(plan, cell.variant).strategy
    return {"deepspeed_config": None, "torch": torch_settings(plan.workload, strategy)}


def read_measurement(path: Path) -> Measurement:
    """The measurement that a run has left. Raises DsforgeError where there is none."""
    return read_stored(Measurement, path, "the run ended before it was measured")


def _absolute(folder: Path, name: str) -> str:
    """A name that means a file of the folder as absolute path; any other name unchanged."""
    path = folder / name
    return str(path.resolve()) if path.exists() else name


def _environment() -> dict[str, str]:
    """A free port for the rendezvous, so that a run does not wait for the last one's to close.

    Ranks that are stopped have nothing to save, and must be gone before the next cell begins.
    """
    if "MASTER_PORT" in os.environ:
        return {"DSFORGE_GRACE_S": GRACE_S}
    with socket.socket() as probe:
        probe.bind(("", 0))
        return {"DSFORGE_GRACE_S": GRACE_S, "MASTER_PORT": str(probe.getsockname()[1])}
