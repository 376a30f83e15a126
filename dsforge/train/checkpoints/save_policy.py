"""When to save, and what to do if it fails: reported at the first step, never losing a good one.

A run that cannot save loses all it does from then on. So the first save is rehearsed after the
first step, the room on the disk is compared with what the run will keep, and a save that fails is
tried once more with all but the newest checkpoint gone; if that fails too the run ends, and names
the checkpoint to go on from: no more than one interval between saves is ever lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dsforge.train.checkpoints.note import NOTE, CheckpointNote, checkpoints, remove
from dsforge.train.checkpoints.writer import Cost, SaveError, predicted_bytes, rehearse, save
from dsforge.train.engines.engine import Engine
from dsforge.train.parallel.agreement import largest, on_first_rank
from dsforge.units import seconds, size

FILE_SYSTEM_OVERHEAD = 1.05  # of the bytes of a checkpoint, for what a file system adds
SAVE_LIMIT_FACTOR = 4  # times the longest save so far: how long ranks wait for each other
DEFAULT_WAIT_S = 600.0  # what ranks wait for each other in a collective (see `ranks.join`)


@dataclass(slots=True)
class Saver:
    """Saves the checkpoints of a run; all ranks call its methods."""

    folder: Path
    keep: int
    say: Callable[[str], None]
    cost: Cost | None = None

    @property
    def knows_cost(self) -> bool:
        """Whether a checkpoint was written or rehearsed."""
        return self.cost is not None

    def rehearse(self, engine: Engine) -> None:
        """Write a checkpoint and drop it, and say what it takes. Raises SaveError."""
        predicted = predicted_bytes(engine)
        self._check_room(predicted, 1)
        cost = rehearse(engine, self.folder)
        self._record_cost(cost)
        self._check_room(cost.bytes, self.keep + 1 - len(checkpoints(self.folder)))
        self.say(
            f"a checkpoint takes {size(cost.bytes)} (predicted {size(predicted)}) and "
            f"{seconds(cost.seconds)} here, written, read back and compared"
        )

    def save(self, engine: Engine, note: CheckpointNote) -> None:
        """Save, once more with less on the disk if need be. Raises SaveError, with a way out."""
        try:
            self._record_cost(save(engine, self.folder, note, self.keep))
        except SaveError as failure:
            older = checkpoints(self.folder)[:-1]
            if not older:
                raise self._given_up(failure, note) from failure
            self.say(f"{failure.message}; retrying without {', '.join(p.name for p in older)}")
            on_first_rank(lambda: _drop(older))
            try:
                self._record_cost(save(engine, self.folder, note, self.keep))
            except SaveError as again:
                raise self._given_up(again, note) from again

    def _given_up(self, failure: SaveError, note: CheckpointNote) -> SaveError:
        left = checkpoints(self.folder)
        good = (
            f"the last intact checkpoint is {left[-1].name}"
            if left
            else "there is no checkpoint yet"
        )
        hint = f"free disk space in {self.folder} and start again; {good}"
        return SaveError(f"step {note.step}: {failure.message}", hint)

    def _check_room(self, each: int, count: int) -> None:
        """Raise SaveError where the disk does not hold so many checkpoints more."""
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        needed = each * FILE_SYSTEM_OVERHEAD * max(1, count)
        short = largest(needed - free)[0]
        if short > 0:
            message = f"{size(free)} are free in {self.folder}, {max(1, count)} checkpoints"
            hint = (
                "free disk space, lower `keep_checkpoints`, or write to another disk with "
                "`--output`"
            )
            raise SaveError(f"{message} of {size(each)} must be written", hint)

    def _record_cost(self, cost: Cost) -> None:
        """Keep what a checkpoint costs; have the ranks wait for each other that long."""
        import torch.distributed
        from torch.distributed.distributed_c10d import _set_pg_timeout

        slowest = largest(cost.seconds)[0]
        self.cost = Cost(cost.bytes, slowest)
        if SAVE_LIMIT_FACTOR * slowest > DEFAULT_WAIT_S:
            _set_pg_timeout(
                timedelta(seconds=SAVE_LIMIT_FACTOR * slowest), torch.distributed.group.WORLD
            )


def _drop(paths: list[Path]) -> None:
    """Remove checkpoints; half of one never counts."""
    for path in paths:
        (path / NOTE).unlink()
        remove(path)
