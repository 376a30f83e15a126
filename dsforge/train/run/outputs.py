"""Outputs of a run: what it writes, and which of it may be removed or replaced.

`output: .` beside a folder `model` with the base model would have the final weights take its place.
So a run is refused, before it begins, where one of its own inputs lies in the place of a result;
and of an earlier run only what looks like the results of one is removed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

from dsforge.errors import Problem, SpecError
from dsforge.job import TrainJob
from dsforge.measurement import Evaluation, StepMetrics
from dsforge.train.checkpoints.note import NOTE
from dsforge.train.relay import LOGS

RESULTS = ("checkpoints", "model", "adapter", "metrics.jsonl", "measurement.json")
# All that a run writes; what it replaces itself or shares with others is never removed.
PLACES = (*RESULTS, "hang", ".lock", LOGS, "report.html")
OWN_CHECKPOINT = re.compile(r"(spoilt_)?global_step\d+|latest|\..+")
METRICS = {field.name for kind in (StepMetrics, Evaluation) for field in fields(kind)}
MAX_LINE_BYTES = 64 * 1024
HINT = "move it away, or use another `--output`"


def check_inputs(job: TrainJob, path: Path, output: Path) -> None:
    """Refuse an output folder in which a result would take the place of an input.

    `path` is that of train.yaml. Raises SpecError with all of them.
    """
    problems = [
        Problem("input-in-output", message, "use another `--output`", name)
        for name, message in _replaced(_inputs(job, path), output)
    ]
    if problems:
        raise SpecError(
            tuple(problems), f"the results in {output} would overwrite inputs of the run"
        )


def _inputs(job: TrainJob, path: Path) -> dict[str, Path]:
    """What a job reads, by the key in train.yaml, where it is on this disk."""
    names = {
        "model": job.model,
        "tokenizer": job.tokenizer,
        "deepspeed_config": job.deepspeed_config,
        "data.train": job.data.train,
        "data.validation": job.data.validation,
    }
    folder = path.resolve().parent
    # not Path.expanduser, which raises for a user that does not exist
    known = {key: os.path.expanduser(name) for key, name in names.items() if name}  # noqa: PTH111
    found = {key: folder / name for key, name in known.items()}
    return {"train.yaml": path} | {key: p for key, p in found.items() if os.path.lexists(p)}


def _replaced(inputs: Mapping[str, Path], output: Path) -> Iterable[tuple[str, str]]:
    """Inputs that are, or lie in, the place of a result; links count by name and by target."""
    for key, path in inputs.items():
        ways = path.resolve(), path.parent.resolve() / path.name
        for result in PLACES:
            place = output.resolve() / result
            if any(way.is_relative_to(home) for way in ways for home in (place, place.resolve())):
                yield key, f"{path} is at a path that a run writes to ({place})"
                break


def check_removable(paths: Iterable[Path], output: Path) -> None:
    """Raise SpecError where one of the results in an output folder is not that of a run."""
    told = ((path, _why_not(path, output)) for path in paths)
    problems = [Problem("not-a-result", why, HINT, str(path)) for path, why in told if why]
    if problems:
        message = f"{output} contains files that dsforge did not write; nothing was removed"
        raise SpecError(tuple(problems), message)


def _why_not(path: Path, output: Path) -> str:
    """Why a path is not a result that may be removed; empty where it is one."""
    if path.is_symlink():
        return "is a link"
    if path.name not in ("checkpoints", "model", "adapter"):
        return (
            "" if path.is_file() and _is_figures(path) else "does not contain the metrics of a run"
        )
    if not path.is_dir():
        return "is not a folder"
    if path.name == "checkpoints":
        odd = sorted(p.name for p in path.iterdir() if not OWN_CHECKPOINT.fullmatch(p.name))
        return f"contains {odd[0]!r}, which is not a checkpoint of a run" if odd else ""
    return "" if _has_run(output) else "its folder has no checkpoints or metrics of a run"


def _has_run(output: Path) -> bool:
    """Whether a run of dsforge wrote to a folder: it leaves checkpoints and figures."""
    if any(output.glob(f"checkpoints/global_step*/{NOTE}")):
        return True
    files = [output / name for name in ("metrics.jsonl", "measurement.json")]
    return any(file.is_file() and file.stat().st_size and _is_figures(file) for file in files)


def _is_figures(file: Path) -> bool:
    """Whether a file is metrics.jsonl or measurement.json as a run writes them."""
    text = b""
    try:
        with file.open("rb") as stream:
            text = stream.readline(MAX_LINE_BYTES) if file.suffix == ".jsonl" else stream.read()
        value = json.loads(text or b"{}")
    except (OSError, ValueError, RecursionError):
        return text.startswith(b'{"step": ')  # a line that was cut when a run died
    if not isinstance(value, dict):
        return False
    return set(value) <= METRICS if file.suffix == ".jsonl" else "world_size" in value
