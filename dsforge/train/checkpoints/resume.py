"""Start of a run, from scratch or from a checkpoint, and the resume itself.

Two runs must never mix in one folder: old checkpoints with higher step numbers would be taken for
the newest of the new run. So what does not belong to the run is named, and removed only on request.

Disks lose bytes, and machines die while they write. So every byte of a checkpoint is compared with
its note before it is loaded, the ranks sharing the files; a damaged one is set aside with a
message, and the one before it is taken.

A checkpoint holds the learning rate, the weight decay and the like of the optimizer, and an engine
may load them over those of the config. What a person has changed since must win.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.loading import check_file
from dsforge.train.checkpoints.note import (
    changed,
    checkpoints,
    chosen_checkpoint,
    lacking,
    read_note,
    remove,
    step_of,
)
from dsforge.train.checkpoints.run_identity import OPTIMIZER, RATE, Change
from dsforge.train.engines.engine import Engine
from dsforge.train.parallel.agreement import on_first_rank
from dsforge.train.run.outputs import RESULTS, check_removable

SPOILT = "spoilt_"
SCHEDULE = (RATE, "steps", "schedule", "warmup_steps", "minimum_learning_rate_ratio")


@dataclass(frozen=True, slots=True)
class Beginning:
    """The checkpoint to go on from, none for a new run, and what the run replaces.

    With `falls_back` an older one will do where its bytes turn out to have changed.
    """

    checkpoint: Path | None
    replaced: tuple[Path, ...]
    falls_back: bool = False

    @property
    def global_batch_size(self) -> int | None:
        """Samples per step of the run that goes on; none for a new one."""
        return read_note(self.checkpoint).global_batch_size if self.checkpoint else None

    def clear(self) -> None:
        """Remove what the run replaces."""
        try:
            for path in self.replaced:
                remove(path)
        except OSError as error:
            message = f"the earlier run cannot be removed: {path}: {error.strerror}"
            raise DsforgeError(message, "choose another folder with `--output`") from error


def chosen_beginning(resume: str, output: Path, *, overwrite: bool) -> Beginning:
    """The beginning of a run that writes to `output`.

    `resume` is `auto` (the newest checkpoint; with `overwrite`, anew), `never`, or a checkpoint.
    Raises DsforgeError where results would be replaced without `overwrite`.
    """
    own = output / "checkpoints"
    start = chosen_checkpoint("never" if overwrite and resume == "auto" else resume, own)
    if start is not None and resume == "auto":  # whatever is later is not whole
        return Beginning(start, (), falls_back=True)
    if start is not None and start.parent.resolve() == own.resolve():
        return Beginning(start, _checkpoints_after(start, own, overwrite=overwrite))
    left = tuple(path for name in RESULTS if os.path.lexists(path := output / name))
    unfinished = resume == "auto" and not (output / "model").exists()  # no checkpoint was complete
    if left and not overwrite and not unfinished:
        hint = "choose another with `--output`, or replace it with `--overwrite`"
        raise DsforgeError(f"{output} contains an earlier run", hint)
    check_removable(left, output)
    return Beginning(start, left)


def _checkpoints_after(start: Path, own: Path, *, overwrite: bool) -> tuple[Path, ...]:
    """Checkpoints after the one to go back to."""
    later = tuple(path for path in checkpoints(own) if step_of(path) > step_of(start))
    if later and not overwrite:
        message = f"{own} contains later checkpoints than {start.name}, up to {later[-1].name}"
        raise DsforgeError(message, "remove them with `--overwrite`, or use another `--output`")
    return later


def sound(path: Path | None, say: Callable[[str], None], *, fall_back: bool) -> Path | None:
    """The checkpoint to load: the one chosen, or where its bytes changed, the newest good one.

    All ranks call it. Raises DsforgeError where none is good, or without `fall_back`.
    """
    for later in _not_whole(path) if fall_back else ():
        say(f"{later.name} is damaged and was renamed: {lacking(later)}")
        on_first_rank(partial(set_aside, later))
    while path is not None:
        why = damage(path)
        if not why:
            return path
        if not fall_back:
            raise DsforgeError(f"{path} is damaged: {why}", "use an older checkpoint")
        older = [p for p in checkpoints(path.parent) if step_of(p) < step_of(path)]
        say(f"{path.name} is damaged and was renamed: {why}")
        on_first_rank(partial(set_aside, path))
        if not older:
            hint = "start from scratch with `--overwrite`"
            raise DsforgeError(f"no intact checkpoint is left in {path.parent}", hint)
        path = older[-1]
    return None


def _not_whole(path: Path | None) -> list[Path]:
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


def retune(engine: Engine, changes: Sequence[Change]) -> list[str]:
    """Lines that say what changed, after it took effect."""
    scheduler = engine.lr_scheduler
    groups = scheduler.optimizer.param_groups
    said = []
    for change in changes:
        kept = change.name.startswith(OPTIMIZER) and not _set(groups, change)
        said.append(f"{change} (unchanged: no new value is given)" if kept else str(change))
        if change.name == RATE and isinstance(change.new, int | float):
            new, old = float(change.new), change.old
            scheduler.base_lrs = [new if rate == old else rate for rate in scheduler.base_lrs]
    if any(change.name in SCHEDULE for change in changes):
        set_rates(scheduler)
    return said


def set_rates(scheduler: Any) -> None:
    """Give each group of the optimizer the learning rate that its schedule has now."""
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_lr(), strict=True):
        group["lr"] = rate


def _set(groups: Sequence[dict[str, Any]], change: Change) -> bool:
    """Whether a setting of the optimizer has its new value now, or is none that it keeps."""
    name, new = change.name.removeprefix(OPTIMIZER), change.new
    if not any(name in group for group in groups):
        return True  # the engine was built with it
    if new is None:
        return False
    value = tuple(json.loads(new)) if isinstance(new, str) and new.startswith("[") else new
    for group in groups:
        if name in group:
            group[name] = value
    return True
