"""Checkpoints of every engine in the one form that any engine takes: parameter by parameter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dsforge.checkpoints.folder import Folder, rank_files
from dsforge.checkpoints.saved import read_checkpoint
from dsforge.checkpoints.zero.parameters import Saved
from dsforge.train.checkpoints.note import CheckpointNote


def saved_by(path: Path, note: CheckpointNote) -> Saved:
    """What a checkpoint holds, by the engine of its note. Raises DsforgeError."""
    saved = read_checkpoint(Folder(path, note.engine, rank_files(path)))
    progress = {
        "global_steps": note.step,
        "global_samples": note.step * note.global_batch_size,
        "skipped_steps": 0,
    }
    known = {key: value for key, value in saved.progress.items() if value is not None}
    return replace(saved, progress={**progress, **known})
