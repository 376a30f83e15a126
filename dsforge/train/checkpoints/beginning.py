"""Where a run begins: anew, or after a checkpoint; and what of an earlier run must go first.

Two runs must never mix in one folder: old checkpoints with higher step numbers would be taken for
the newest of the new run. So what does not belong to the run is named, and removed only on request.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.note import (
    checkpoints,
    chosen_checkpoint,
    read_note,
    remove,
    step_of,
)
from dsforge.train.run.outputs import RESULTS, check_removable


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
            raise DsforgeError(message, "name another folder with `--output`") from error


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
        return Beginning(start, _later(start, own, overwrite=overwrite))
    left = tuple(path for name in RESULTS if os.path.lexists(path := output / name))
    unfinished = resume == "auto" and not (output / "model").exists()  # no checkpoint was complete
    if left and not overwrite and not unfinished:
        hint = "name another with `--output`, or replace it with `--overwrite`"
        raise DsforgeError(f"{output} holds an earlier run", hint)
    check_removable(left, output)
    return Beginning(start, left)


def _later(start: Path, own: Path, *, overwrite: bool) -> tuple[Path, ...]:
    """Checkpoints after the one to go back to."""
    later = tuple(path for path in checkpoints(own) if step_of(path) > step_of(start))
    if later and not overwrite:
        message = f"{own} holds later checkpoints than {start.name}, up to {later[-1].name}"
        raise DsforgeError(message, "drop them with `--overwrite`, or use another `--output`")
    return later
