"""How far a run is, from the lines that `dsforge train` writes while it trains."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from dsforge.errors import DsforgeError
from dsforge.reading.job import read_job

TAIL_BYTES = 1 << 16
RECENT = 20  # steps whose median pace the end is told by


class Progress(NamedTuple):
    """Steps done, of how many, and what the newest line says."""

    step: int
    steps: int | None
    loss: float | None
    step_s: float | None

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step at the present pace; none where that is not known."""
        if self.steps is None or self.step_s is None:
            return None
        return max(self.steps - self.step, 0) * self.step_s


def output_of(run: Path) -> Path:
    """The output folder of a run; the usual one where train.yaml does not say."""
    try:
        return run / read_job(run / "train.yaml").output
    except DsforgeError:
        return run / "output"


def progress(run: Path, steps: int | None) -> Progress | None:
    """Progress by metrics.jsonl; none where there is no line of a step."""
    metrics = output_of(run) / "metrics.jsonl"
    rows = [row for row in _tail(metrics) if type(row.get("step")) is int and "loss" in row]
    if not rows:
        return None
    paces = [row["step_s"] for row in rows[-RECENT:] if isinstance(row.get("step_s"), float)]
    loss = rows[-1]["loss"]
    return Progress(
        step=rows[-1]["step"],
        steps=steps or _steps(run),
        loss=loss if isinstance(loss, float) else None,
        step_s=median(paces) if paces else None,
    )


def _steps(run: Path) -> int | None:
    """Steps that train.yaml asks for; none where epochs decide."""
    try:
        return read_job(run / "train.yaml").steps
    except DsforgeError:
        return None


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of a file of JSON lines; broken ones are left out."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - TAIL_BYTES, 0))
        lines = stream.read(TAIL_BYTES).decode(errors="replace").splitlines()
    found = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            found.append(row)
    return found
