"""Writes checkpoints atomically and verifies them.

Every file is written into a temporary folder, flushed, dropped from the cache, opened again and
compared with what the engine held: names, shapes, types, every value. Only when all ranks say so
does the folder get its name and `latest` point to it. A rank that fails says why to all others, so
that a full disk ends in a message and not in a hang.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from dsforge.artifacts.whole import write_whole
from dsforge.checkpoints.output.disk import drop_from_cache, flush
from dsforge.checkpoints.torch_files.archive import Archive, tensors_in
from dsforge.errors import DsforgeError, first_line
from dsforge.train.checkpoints.note import (
    NOTE,
    CheckpointNote,
    FileNote,
    checkpoints,
    noted_file,
    remove,
    tag_of,
)
from dsforge.train.model.qlora import is_quantised
from dsforge.train.parallel.agreement import on_first_rank, summed
from dsforge.units import size

UNFINISHED = ".saving"  # the folder in which a checkpoint is written before it has a name


class SaveError(DsforgeError):
    """A checkpoint could not be written completely; earlier ones are still there."""


class Cost(NamedTuple):
    """What a checkpoint costs: bytes of all ranks, seconds."""

    bytes: int
    seconds: float


@dataclass(slots=True)
class CheckedFiles:
    """DeepSpeed's writer of files, each compared after it was written; failures are kept.

    A failure is not raised where it happens: the other ranks would wait in a barrier for this one.
    """

    inner: Any
    files: dict[str, FileNote] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file and read it back."""
        file = Path(path)
        try:
            self.inner.save(state_dict, path)
            drop_from_cache(file)
            compare(state_dict, file)
            self.files[file.name] = noted_file(file)
        except (OSError, RuntimeError, DsforgeError) as error:
            self.failures.append(f"{file.name}: {reason(error, file.parent)}")


def save(engine: Any, folder: Path, note: CheckpointNote, keep: int) -> Cost:
    """Save on all ranks, mark as good, drop the oldest beyond `keep`; what it cost.

    Raises SaveError, on all ranks, where the files do not hold what the engine holds; then
    nothing of it is left on the disk, and no earlier checkpoint was touched.
    """
    begin = perf_counter()
    files = write_files(engine, folder, tag_of(note.step))
    note = note.model_copy(update={"files": files})
    on_first_rank(lambda: _named(folder, note, keep))
    return Cost(sum(file.bytes for file in files.values()), perf_counter() - begin)


def rehearse(engine: Any, folder: Path) -> Cost:
    """What a save costs, found by writing one and dropping it. Raises SaveError as `save`."""
    begin = perf_counter()
    files = write_files(engine, folder, "rehearsal")
    on_first_rank(lambda: shutil.rmtree(folder / UNFINISHED))
    return Cost(sum(file.bytes for file in files.values()), perf_counter() - begin)


def predicted_bytes(engine: Any) -> int:
    """Bytes that a checkpoint of an engine will take, all ranks together; all must call it.

    The states and master weights of every rank, and the weights in use once: stage 3 saves only
    the frozen ones of those, QLoRA the trained ones. What else is in the files is small.
    """
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    states = [t for own in inner.state.values() for t in own.values()]
    flats = getattr(optimizer, "fp32_partitioned_groups_flat", None)
    masters = flats or [p for group in inner.param_groups for p in group["params"]]
    sharded = engine.zero_optimization_partition_weights()
    weights = [p for p in engine.module.parameters() if not (sharded and p.requires_grad)]
    if is_quantised(engine.module):
        weights = [p for p in weights if p.requires_grad]
    own = sum(map(_bytes, weights)) if engine.global_rank == 0 or sharded else 0
    if engine.zero_optimization() or engine.global_rank == 0:
        apart = {t.data_ptr() for t in weights if t.numel()}
        own += sum(_bytes(t) for t in (*states, *masters) if _address(t) not in apart)
    return round(summed(float(own))[0])


def _bytes(value: Any) -> int:
    """Bytes of a tensor on this rank; of a parameter under stage 3, of its part."""
    part = getattr(value, "ds_tensor", value)
    return int(part.numel() * part.element_size()) if hasattr(part, "numel") else 0


def _address(value: Any) -> int:
    """Where a tensor begins in memory, so that none is counted twice."""
    return int(value.data_ptr()) if hasattr(value, "data_ptr") and value.numel() else -1


def write_files(engine: Any, folder: Path, tag: str) -> dict[str, FileNote]:
    """Write and compare the files of all ranks in the temporary folder. Raises SaveError."""
    checked = engine.checkpoint_engine
    if not isinstance(checked, CheckedFiles):
        checked = engine.checkpoint_engine = CheckedFiles(engine.checkpoint_engine)
        # DeepSpeed copies a script beside each checkpoint on one rank only, and where the disk is
        # full that rank leaves the others in a barrier. `dsforge ckpt export` does its work.
        engine._copy_recovery_script = lambda _: None  # noqa: SLF001
    checked.files, checked.failures = {}, []
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
    engine.save_checkpoint(
        str(unfinished),
        tag=tag,
        save_latest=False,
        exclude_frozen_parameters=is_quantised(engine.module),
    )
    files, failures = _gathered(checked)
    if failures:
        on_first_rank(lambda: shutil.rmtree(unfinished, ignore_errors=True))
        raise SaveError(f"the checkpoint could not be written: {failures[0]}")
    return files


def _gathered(checked: CheckedFiles) -> tuple[dict[str, FileNote], list[str]]:
    """Files and failures of all ranks."""
    import torch.distributed

    ranks: list[Any] = [None] * torch.distributed.get_world_size()
    own = {name: file.model_dump() for name, file in checked.files.items()}
    torch.distributed.all_gather_object(ranks, (own, checked.failures))
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


def compare(state_dict: Any, file: Path) -> None:
    """Compare a file with the tensors that were to be in it. Raises DsforgeError."""
    import numpy as np
    import torch

    archive = Archive(file)
    stored = dict(tensors_in(archive.value))
    held = dict(_named_tensors(state_dict, ""))
    if stored.keys() != held.keys():
        odd = sorted(stored.keys() ^ held.keys())
        raise DsforgeError(f"does not contain the tensors of the engine: {', '.join(odd[:3])}")
    for name, tensor in held.items():
        found = stored[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if found.shape != tuple(tensor.shape) or found.storage.dtype != dtype:
            raise DsforgeError(f"`{name}` is {found.storage.dtype} {found.shape} on the disk")
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if not np.array_equal(archive.flat(found).view(np.uint8), flat):
            raise DsforgeError(f"`{name}` has different values on disk")


def _named_tensors(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every tensor in a state dict, under the names that `tensors_in` gives those in a file."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _named_tensors(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _named_tensors(inner, f"{path}[{number}]")


def reason(error: BaseException, folder: Path) -> str:
    """Why a file could not be written; torch does not say that a disk is full."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = 0
    text = first_line(error)
    return f"{text} ({size(free)} free on its disk)"
