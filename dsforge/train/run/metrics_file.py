"""metrics.jsonl: one JSON object a line, written as it happens, cut back on resume.

Lines of optimizer steps, every `log_every` of them: `step` (from 1), `loss` (mean per answer
token of the global batch, per pair with preferences, before the step), `learning_rate`,
`gradient_norm` (before clipping; null where the engine has none or fp16 overflowed), `step_s`,
`tokens` (of all ranks, without padding),
`tokens_per_s`, `host_bytes` and `allocated_bytes` (peaks so far of the first rank: resident memory,
and device memory as torch counts it, 0 on CPU ranks), `mfu` (useful FLOPs over the peak of all
ranks; null without a plan of this run), `ended_at` (Unix time in seconds), `reward_margin` and
`reward_accuracy` (of preferences, means over pairs; null without). Lines of validations: `step` and
`validation_loss` (mean per answer token, or per pair).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsforge.artifacts.whole import write_whole
from dsforge.errors import DsforgeError
from dsforge.measurement import Evaluation, StepMetrics

MAX_LINE_BYTES = 64 * 1024


class MetricsFile:
    """The open metrics.jsonl of the first rank."""

    def __init__(self, path: Path, done_steps: int) -> None:
        self._path = path
        try:
            kept = _lines_up_to(path, done_steps) if path.is_file() else []
            write_whole(path, "".join(kept), over_links=True)
        except OSError as error:
            raise _unwritten(path, error) from error

    def add(self, record: StepMetrics | Evaluation) -> None:
        """Append one line."""
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(record)) + "\n")
        except OSError as error:
            raise _unwritten(self._path, error) from error


def monitor(deepspeed: Any, record: StepMetrics | Evaluation) -> None:
    """Hand figures to what the DeepSpeed config enables: TensorBoard, Weights & Biases, CSV, Comet.

    On the first rank, by optimizer step; DeepSpeed adds figures of its own by samples.
    """
    if not deepspeed.monitor.enabled:
        return
    values = asdict(record)
    step = values.pop("step")
    events = [(f"Train/{name}", v, step) for name, v in values.items() if v is not None]
    deepspeed.monitor.write_events([event for event in events if event[0] != "Train/ended_at"])


def _lines_up_to(path: Path, step: int) -> list[str]:
    """The lines of steps that the checkpoint already holds."""
    kept = []
    with path.open("rb") as stream:
        for line in iter(lambda: stream.readline(MAX_LINE_BYTES), b""):
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line.decode("utf-8"))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # a line that was cut when a run died, or is none of ours
    return kept


def _unwritten(path: Path, error: OSError) -> DsforgeError:
    why = error.strerror or str(error)
    return DsforgeError(f"{path} cannot be written: {why}", "remove it, or free space on its disk")
