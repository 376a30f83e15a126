"""How a run goes on: from the newest checkpoint that is still what was saved.

Disks lose bytes, and machines die while they write. So every byte of a checkpoint is compared with
its note before it is loaded, the ranks sharing the files; a bad one is set aside with a word, and
the one before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsforge.checkpoints.folder import Folder, rank_files
from dsforge.checkpoints.zero.parameters import read_saved
from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.loading import check_file, strict_loading
from dsforge.train.checkpoints.note import (
    CheckpointNote,
    changed,
    checkpoints,
    lacking,
    read_note,
    remove,
    step_of,
)
from dsforge.train.checkpoints.reshape import fill
from dsforge.train.parallel.agreement import on_first_rank

SPOILT = "spoilt_"


def sound(path: Path | None, say: Callable[[str], None], *, fall_back: bool) -> Path | None:
    """The checkpoint to load: the one chosen, or where its bytes changed, the newest good one.

    All ranks call it. Raises DsforgeError where none is good, or without `fall_back`.
    """
    for later in _later(path) if fall_back else ():
        say(f"{later.name} is damaged and set aside: {lacking(later)}")
        on_first_rank(lambda bad=later: set_aside(bad))
    while path is not None:
        why = damage(path)
        if not why:
            return path
        if not fall_back:
            raise DsforgeError(f"{path} is damaged: {why}", "name an older checkpoint")
        older = [p for p in checkpoints(path.parent) if step_of(p) < step_of(path)]
        say(f"{path.name} is damaged and set aside: {why}")
        on_first_rank(lambda bad=path: set_aside(bad))
        if not older:
            hint = "start anew with `--overwrite`"
            raise DsforgeError(f"no good checkpoint is left in {path.parent}", hint)
        path = older[-1]
    return None


def _later(path: Path | None) -> list[Path]:
    """Checkpoints after the one chosen: those that were not whole."""
    found = checkpoints(path.parent) if path else []
    return [other for other in found if path and step_of(other) > step_of(path)]


def set_aside(path: Path) -> None:
    """Rename a checkpoint so that it never counts again; only the last one set aside is kept."""
    for old in path.parent.glob(f"{SPOILT}*"):
        remove(old)
    path.rename(path.with_name(f"{SPOILT}{path.name}"))


def damage(path: Path) -> str:
    """What is wrong with the bytes of a checkpoint; the same on all ranks, empty where nothing."""
    import torch.distributed

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    names = sorted(read_note(path).files)
    loadable = sorted(file.name for file in path.glob("*.pt"))  # DeepSpeed takes them by name
    own = lacking(path) or changed(path, names[rank::ranks])
    own = own or _unknown(path, loadable[rank::ranks])
    found: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(found, own)
    return next((why for why in found if why), "")


def _unknown(path: Path, names: list[str]) -> str:
    """Why a file must not be loaded: more names than checkpoints need, or another form."""
    for name in names:
        try:
            check_file(path / name)
        except DsforgeError as error:
            return error.message
    return ""


def restore(engine: Any, path: Path, note: CheckpointNote, present: CheckpointNote) -> None:
    """Load weights, optimizer, schedule and scaler into the engine. Raises DsforgeError.

    Onto the same ranks through DeepSpeed's own loader, bit for bit; else through `reshape`.
    """
    if note.ranks != present.ranks:
        fill(engine, read_saved(Folder(path, "deepspeed", rank_files(path))))
        return
    with strict_loading():
        loaded, _ = engine.load_checkpoint(str(path.parent), tag=path.name)
    if loaded is None:
        raise DsforgeError(f"DeepSpeed could not load {path}", "use an older checkpoint")
