"""Description of a checkpoint: its writer, training progress and tensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from dsforge.checkpoints.folder import Folder, Kind, find_checkpoint
from dsforge.checkpoints.saved import read_checkpoint
from dsforge.checkpoints.verify.universal_folder import atom_folders
from dsforge.checkpoints.weights.weight_files import Weight, weight_files, weights_of
from dsforge.checkpoints.zero.atoms import WEIGHTS
from dsforge.checkpoints.zero.parameters import Saved


class Tensor(NamedTuple):
    """One whole parameter or buffer; `trained` where the optimizer has states of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool


class Description(NamedTuple):
    """A checkpoint in figures; None where the checkpoint does not say."""

    path: Path
    kind: Kind
    bytes: int
    tensors: tuple[Tensor, ...]
    zero_stage: int | None = None
    world_size: int | None = None
    step: int | None = None
    samples: int | None = None
    trained_in: str | None = None
    states: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    deepspeed: str | None = None

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)


def inspect(path: Path) -> Description:
    """The description of the checkpoint at a path. Raises DsforgeError where it cannot be read."""
    folder = find_checkpoint(path)
    size = sum(p.stat().st_size for p in _all_files(folder))
    if folder.kind in ("deepspeed", "torch"):
        return _sharded(folder, read_checkpoint(folder), size)
    if folder.kind == "universal":
        atoms = atom_folders(folder.path)
        held = {name: own[WEIGHTS] for name, own in atoms.items() if WEIGHTS in own}
        found = [w._replace(name=name) for name, file in held.items() for w in weights_of(file)]
        states = tuple(sorted({state for own in atoms.values() for state in own}))
        return Description(folder.path, folder.kind, size, _tensors(found), states=states)
    files = [folder.path] if folder.kind == "file" else weight_files(folder.path)
    weights = [weight for file in files for weight in weights_of(file)]
    return Description(folder.path, folder.kind, size, _tensors(weights))


def _all_files(folder: Folder) -> list[Path]:
    if folder.path.is_file():
        return [folder.path]
    return [path for path in folder.path.rglob("*") if path.is_file()]


def _tensors(weights: list[Weight]) -> tuple[Tensor, ...]:
    return tuple(Tensor(w.name, w.shape, w.dtype, trained=False) for w in weights)


def _sharded(folder: Folder, saved: Saved, size: int) -> Description:
    every = {**saved.trained, **saved.frozen, **saved.buffers}
    tensors = (Tensor(n, a.shape, a.dtype(), n in saved.trained) for n, a in every.items())
    return Description(
        folder.path,
        folder.kind,
        size,
        tuple(tensors),
        zero_stage=saved.zero_stage if folder.files else None,
        world_size=saved.world_size if folder.files else None,
        step=saved.progress.get("global_steps"),
        samples=saved.progress.get("global_samples"),
        trained_in=saved.trained_in,
        states=tuple(sorted({state for atom in saved.trained.values() for state in atom.states})),
        tied=tuple(saved.aliases),
        deepspeed=saved.progress.get("ds_version"),
    )
