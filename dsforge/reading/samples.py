"""How many training rows a JSONL file has: with epochs, that is how long a run is.

The beginning of a large file stands for the rest of it, so that planning stays quick on data of any
size; the reason says which of the two the figure is. Parquet keeps the number in its footer, which
only the training extra can read, so such a run has no length here.
"""

from __future__ import annotations

from pathlib import Path

from dsforge.outside import opened
from dsforge.plan import Reason
from dsforge.specs import DataSpec

SAMPLED_BYTES = 8 << 20
ROWS = (".jsonl", ".json")


def training_rows(data: DataSpec) -> tuple[int | None, Reason]:
    """Rows that a run trains on, those held out for validation not among them, and how known."""
    path = Path(data.train)
    counted = _rows(path) if path.suffix in ROWS else None
    if counted is None:
        message = (
            f"{data.train} cannot be counted here, so the length of the run is unknown; "
            "set `tokens`"
        )
        return None, Reason(rule="data-not-counted", message=message)
    rows, exactly = counted
    held_out = 0.0 if data.validation else data.validation_fraction
    trained = max(1, round(rows * (1 - held_out)))
    about = "" if exactly else "about "
    message = f"{path.name} has {about}{trained:,} rows to train on"
    return trained, Reason(rule="data-rows", message=message)


def _rows(path: Path) -> tuple[int, bool] | None:
    """Lines that are not blank, and whether all were counted; none where it cannot be read."""
    try:
        size = path.stat().st_size
        with opened(path, pipes=False) as stream:
            head = stream.read(SAMPLED_BYTES) or b""
    except (OSError, ValueError):
        return None
    if size > len(head):
        head = head[: head.rfind(b"\n") + 1]
    rows = sum(1 for line in head.splitlines() if line.strip())
    if not rows:
        return None
    return (rows, True) if size <= SAMPLED_BYTES else (round(rows * size / len(head)), False)
