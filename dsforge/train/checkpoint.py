"""Checkpoints: DeepSpeed's own files, and a small note that marks a complete one.

DeepSpeed's `latest` is written whether or not every rank finished, and it does not say for how many
ranks a checkpoint is good. The note is written last, so a checkpoint without one does not count.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from dsforge.errors import DsforgeError
from dsforge.specs import FROZEN
from dsforge.train.agreement import all_arrive, on_first_rank

NOTE = "dsforge.json"
TAG = re.compile(r"global_step(\d+)")


class CheckpointNote(BaseModel):
    """What a checkpoint is good for."""

    model_config = FROZEN

    step: int = Field(ge=0, description="Optimizer steps done.")
    world_size: int = Field(ge=1)
    zero_stage: int = Field(ge=0, le=3)
    global_batch_size: int = Field(ge=1)
    seed: int
    samples: int = Field(ge=1, description="Training samples; the order depends on them.")


def tag_of(step: int) -> str:
    """The folder name of a checkpoint."""
    return f"global_step{step}"


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    found = [p for p in folder.glob("global_step*") if TAG.fullmatch(p.name)]
    return sorted((p for p in found if (p / NOTE).is_file()), key=step_of)


def step_of(path: Path) -> int:
    """Optimizer steps done at a checkpoint, from the name of its folder; -1 for other names."""
    match = TAG.fullmatch(path.name)
    return int(match[1]) if match else -1


def read_note(path: Path) -> CheckpointNote:
    """The note of a checkpoint. Raises DsforgeError."""
    try:
        return CheckpointNote.model_validate_json((path / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        hint = "name a folder `checkpoints/global_stepN` that `dsforge train` wrote"
        raise DsforgeError(f"{path} is not a complete checkpoint", hint) from error


def chosen_checkpoint(resume: str, folder: Path) -> Path | None:
    """The checkpoint to go on from: `auto` the newest, `never` none, else the path named."""
    if resume == "never":
        return None
    if resume == "auto":
        return next(reversed(checkpoints(folder)), None)
    path = Path(resume).expanduser().resolve()
    if not TAG.fullmatch(path.name):
        inside = checkpoints(path) or checkpoints(path / "checkpoints")
        path = inside[-1] if inside else path
    read_note(path)
    return path


def check_note(path: Path, present: CheckpointNote) -> CheckpointNote:
    """The note of a checkpoint that fits the present run. Raises DsforgeError where it does not."""
    note = read_note(path)
    names = {
        "world_size": "start as many ranks as before",
        "zero_stage": "use the ds_config of the checkpoint",
        "global_batch_size": "use the ds_config of the checkpoint",
        "seed": "use the seed of the checkpoint",
        "samples": "use the data of the checkpoint",
    }
    for name, hint in names.items():
        old, new = getattr(note, name), getattr(present, name)
        if old != new:
            message = f"{path.name} was saved with {name} {old}, this run has {new}"
            raise DsforgeError(message, f"{hint}, or start anew with `--overwrite`")
    return note


def save(engine: Any, folder: Path, note: CheckpointNote, keep: int) -> Path:
    """Save on all ranks, mark as complete, drop the oldest beyond `keep`."""
    path = folder / tag_of(note.step)

    def complete() -> None:
        for file in path.iterdir():
            flush(file)
        write_whole(path / NOTE, note.model_dump_json(indent=2) + "\n")
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old)

    on_first_rank(lambda: (path / NOTE).unlink(missing_ok=True))
    engine.save_checkpoint(str(folder), tag=path.name)
    all_arrive()
    on_first_rank(complete)
    return path


def restore(engine: Any, path: Path) -> None:
    """Load weights, optimizer, schedule and scaler into the engine. Raises DsforgeError."""
    loaded, _ = engine.load_checkpoint(str(path.parent), tag=path.name)
    if loaded is None:
        raise DsforgeError(f"DeepSpeed could not load {path}", "use an older checkpoint")


def write_whole(path: Path, text: str) -> None:
    """A text file that is there as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    flush(temporary)
    temporary.replace(path)


def flush(path: Path) -> None:
    """Bytes of a file or entries of a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
