"""The one reading of a checkpoint that training goes on from, whatever engine wrote it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsforge.checkpoints.folder import Folder
from dsforge.checkpoints.sharded_tensors import read_sharded
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.zero.parameters import Saved
from dsforge.checkpoints.zero.split_ranks import read_ranks


def read_checkpoint(folder: Folder, archive: Callable[[Path], Archive] = Archive) -> Saved:
    """The checkpoint in a folder, parameter by parameter. Raises DsforgeError.

    `archive` is what opens a torch file.
    """
    return read_sharded(folder.path) if folder.kind == "torch" else read_ranks(folder, archive)
