"""Writes checkpoints atomically and verifies them.

Every file is written into a temporary folder, flushed, dropped from the cache, opened again and
compared with what the engine held: names, shapes, types, every value. Only when all ranks say so
does the folder get its name and `latest` point to it. A rank that fails says why to all others, so
that a full disk ends in a message and not in a hang.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from dsforge.artifacts.whole import write_whole
from dsforge.checkpoints.output.disk import flush
from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.note import (
    NOTE,
    CheckpointNote,
    FileNote,
    checkpoints,
    remove,
    tag_of,
)
from dsforge.train.checkpoints.written import OwnFiles, reason
from dsforge.train.engines.engine import Engine
from dsforge.train.parallel.agreement import on_first_rank, summed

UNFINISHED = ".saving"  # the folder in which a checkpoint is written before it has a name


class SaveError(DsforgeError):
    """A checkpoint could not be written completely; earlier ones are still there."""


class Cost(NamedTuple):
    """What a checkpoint costs: bytes of all ranks, seconds."""

    bytes: int
    seconds: float


def save(engine: Engine, folder: Path, note: CheckpointNote, keep: int) -> Cost:
    """Save on all ranks, mark as good, drop the oldest beyond `keep`; what it cost.

    Raises SaveError, on all ranks, where the files do not hold what the engine holds; then
    nothing of it is left on the disk, and no earlier checkpoint was touched.
    """
    begin = perf_counter()
    files = write_files(engine, folder, tag_of(note.step))
    note = note.model_copy(update={"files": files, "any_ranks": engine.any_ranks()})
    on_first_rank(lambda: _named(folder, note, keep))
    return Cost(sum(file.bytes for file in files.values()), perf_counter() - begin)


def rehearse(engine: Engine, folder: Path) -> Cost:
    """What a save costs, found by writing one and dropping it. Raises SaveError as `save`."""
    begin = perf_counter()
    files = write_files(engine, folder, "rehearsal")
    on_first_rank(lambda: shutil.rmtree(folder / UNFINISHED))
    return Cost(sum(file.bytes for file in files.values()), perf_counter() - begin)


def predicted_bytes(engine: Engine) -> int:
    """Bytes that a checkpoint of an engine will take, all ranks together; all must call it."""
    return round(summed(float(engine.checkpoint_bytes()))[0])


def write_files(engine: Engine, folder: Path, tag: str) -> dict[str, FileNote]:
    """Write and compare the files of all ranks in the temporary folder. Raises SaveError."""
    unfinished = folder / UNFINISHED

    def make_room() -> None:
        try:
            remove(unfinished)
            (unfinished / tag).mkdir(parents=True)
        except OSError as error:
            raise DsforgeError(
                f"{unfinished} cannot be created: {reason(error, folder)}"
            ) from error

    on_first_rank(make_room)
    files, failures = _gathered(engine.write_checkpoint(unfinished, tag))
    if failures:
        on_first_rank(lambda: shutil.rmtree(unfinished, ignore_errors=True))
        raise SaveError(f"the checkpoint could not be written: {failures[0]}")
    return files


def _gathered(own: OwnFiles) -> tuple[dict[str, FileNote], list[str]]:
    """Files and failures of all ranks."""
    import torch.distributed

    ranks: list[Any] = [None] * torch.distributed.get_world_size()
    sizes = {name: file.model_dump() for name, file in own.files.items()}
    torch.distributed.all_gather_object(ranks, (sizes, own.failures))
    files = {name: FileNote(**file) for found, _ in ranks for name, file in found.items()}
    failures = [f"rank {n}: {line}" for n, (_, lines) in enumerate(ranks) for line in lines]
    return dict(sorted(files.items())), failures


def _named(folder: Path, note: CheckpointNote, keep: int) -> None:
    """As `_complete`. Raises DsforgeError where the file system does not let it."""
    try:
        _complete(folder, note, keep)
    except OSError as error:
        message = f"step {note.step}: the checkpoint cannot be completed: {reason(error, folder)}"
        raise DsforgeError(message, f"check the content of {folder}, then start again") from error


def _complete(folder: Path, note: CheckpointNote, keep: int) -> None:
    """Give the checkpoint its name: from here on it counts."""
    path = folder / tag_of(note.step)
    unfinished = folder / UNFINISHED / path.name
    write_whole(unfinished / NOTE, note.model_dump_json(indent=2) + "\n")
    flush(unfinished)
    remove(path)
    unfinished.rename(path)
    flush(folder)
    write_whole(folder / "latest", path.name, over_links=True)
    remove(folder / UNFINISHED)
    for old in checkpoints(folder)[:-keep]:
        (old / NOTE).unlink()  # first, so that half of it never counts
        remove(old)
