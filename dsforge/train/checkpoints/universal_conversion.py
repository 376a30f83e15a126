"""Universal checkpoints: the form in which DeepSpeed itself loads a run on any number of ranks.

DeepSpeed's converter knows ZeRO 1 to 3 but writes stage 3 in a form that stages 1 and 2 cannot
load, and nothing for stage 0. Data-parallel checkpoints are therefore written here, parameter by
parameter and in the one form that all stages load, from bytes that fit their checksums and without
unpickling. Those of tensor and pipeline ranks go through DeepSpeed's converter, whose loading is
made as strict as our own; what it reads and writes is judged before and after.
"""

from __future__ import annotations

import os
import zlib
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dsforge.checkpoints.folder import Folder
from dsforge.checkpoints.output.new_folder import (
    HINTS,
    SILENT,
    Watcher,
    check_outside,
    check_written,
    new_folder,
)
from dsforge.checkpoints.output.universal_pointer import check_pointer, point
from dsforge.checkpoints.path_names import check_distinct
from dsforge.checkpoints.pickles.machine import MAX_COUNT
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.torch_files.verified_reads import (
    CheckedArchive,
    UnusableError,
    check_pieces,
)
from dsforge.checkpoints.verify.checkpoint import verify, verify_folder
from dsforge.checkpoints.weights.bit_types import ITEM_BYTES
from dsforge.checkpoints.zero.atoms import WEIGHTS, Parameter
from dsforge.checkpoints.zero.model_parallel_files import check_split
from dsforge.checkpoints.zero.parameters import Saved, read_saved
from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.loading import strict_loading
from dsforge.train.checkpoints.rebuilt_objects import UnknownTypeError, revived

FILE_BYTES = 2048  # what torch puts around a tensor in a file of its own
FIRST = "mp_rank_00_model_states.pt"  # stages 0 to 2 look for this name
STAGE_3 = "zero_pp_rank_0_mp_rank_00_model_states.pt"
SHAPES = ("param_shapes", "frozen_param_shapes")
# States of single parameters, in files of their own here.
PER_PARAMETER = (
    "base_optimizer_state",
    "optimizer_state_dict",
    "param_slice_mappings",
    "single_partition_of_fp32_groups",
    "fp32_flat_groups",
)


def convert(
    folder: Folder, out: Path, *, unchecked: bool = False, watcher: Watcher = SILENT
) -> Path:
    """A universal checkpoint in a new folder; `latest_universal` beside it names it.

    `unchecked` leaves out the checksums of the checkpoint, and nothing else.
    Raises UnusableError where the checkpoint is damaged or not to be trusted, DsforgeError where
    the folder exists or cannot be written; then nothing of it is left.
    """
    if folder.kind != "deepspeed":
        message = f"{folder.path} is not a checkpoint of DeepSpeed's ranks ({folder.kind})"
        raise DsforgeError(message, "give a folder that contains *_states.pt files")
    check_outside(out, folder.path)
    check_pointer(out)
    if any(f.model_rank or f.kind in ("layer", "expert") for f in folder.files):
        _by_deepspeed(folder, out, watcher, checksums=not unchecked)
    else:
        _require_valid(folder, checksums=False)
        _by_parameter(folder, out, watcher, CheckedArchive if not unchecked else Archive)
    point(out, watcher.say)
    return out


def _require_valid(folder: Folder, *, checksums: bool) -> None:
    """Raise UnusableError where `verify` finds an error, or types that are not known."""
    found = verify_folder(folder._replace(pointer=None), checksums=checksums)
    wrong = [f for f in found if f.severity == "error" or f.rule == "foreign-names"]
    if wrong:
        raise UnusableError(folder.path, wrong)


def _by_deepspeed(folder: Folder, out: Path, watcher: Watcher, *, checksums: bool) -> None:
    """Have DeepSpeed merge tensor and pipeline ranks."""
    from deepspeed.checkpoint.ds_to_universal import main

    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    size = sum(file.path.stat().st_size for file in folder.files)
    watcher.begin("checked", size)
    _require_valid(folder, checksums=checksums)
    check_split(folder)
    with new_folder(out, watcher.say, needed_bytes=2 * size) as temporary:
        names = {"input_folder": str(folder.path), "output_folder": str(temporary)}
        try:
            with strict_loading():
                main(Namespace(**names, **options, strict=False, inject_missing_state=True))
        except DsforgeError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in HINTS:
                raise  # whatever its many assertions raise
            message = f"DeepSpeed cannot convert {folder.path.name}: {error}"
            raise DsforgeError(
                message, "resume it with the number of ranks that wrote it"
            ) from error
        _require_valid(folder, checksums=checksums)  # the bytes are still those that were checked
        wrong = [finding for finding in verify(temporary) if finding.severity == "error"]
        if wrong:
            raise DsforgeError(f"{out}: {wrong[0].file}: {wrong[0].message}")


def _by_parameter(folder: Folder, out: Path, watcher: Watcher, archive: type[Archive]) -> None:
    """Put the parts of data-parallel ranks together."""
    saved = read_saved(folder, archive)
    if not saved.trained:
        hint = "`dsforge ckpt export` writes its weights without them"
        raise DsforgeError(f"{folder.path} contains no optimizer states to convert", hint)
    saved.check_states()
    check_distinct(saved.trained)
    kinds = {"frozen parameters": len(saved.frozen), "buffers": len(saved.buffers)}
    left_out = " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    if left_out:
        watcher.say(f"not included (DeepSpeed takes them from the model): {left_out}")
    model = archive(folder.of("model")[0].path)
    parts = [archive(file.path) for file in folder.of("optimizer")[:1]]
    values = _client_state(model.value, model, watcher) | {"module": {}, "optimizer": None}
    values |= {key: _sizes(values[key]) for key in SHAPES if key in values}
    common = _common(parts[0] if parts else model, saved, watcher)
    states = [(name, state) for name, atom in saved.trained.items() for state in atom.states]
    total = sum(_bytes(saved.trained[name], state) for name, state in states)
    needed = total + 2 * FILE_BYTES * (len(states) + 1) + 2 * model.path.stat().st_size
    with new_folder(out, watcher.say, needed_bytes=needed) as temporary:
        pieces = (p for atom in saved.trained.values() for s in atom.states.values() for p in s)
        check_pieces(pieces, watcher)
        watcher.begin("written", total)
        _write_states(saved, temporary / "zero", watcher)
        save(common, temporary / "zero" / "optimizer_state.pt")
        save(values, temporary / FIRST)
        try:
            os.link(temporary / FIRST, temporary / STAGE_3)
        except OSError:  # a file system without hard links
            save(values, temporary / STAGE_3)


def _write_states(saved: Saved, folder: Path, watcher: Watcher) -> None:
    """One folder for each parameter, with a file for each of its states."""
    import torch

    for name, atom in saved.trained.items():
        own = folder / name
        own.mkdir(parents=True)
        for state in atom.states:
            save({"param": whole(atom, state), "cat_dim": 0}, own / f"{state}.pt")
            watcher.advance(_bytes(atom, state))
        if "step" in saved.scalars:
            save(torch.tensor(_as_step(saved.scalars["step"])), own / "step.pt")


def _as_step(step: Any) -> int | float:
    """A count of steps as optimizers keep it. Raises DsforgeError where it is none."""
    if not isinstance(step, int | float) or not 0 <= step <= MAX_COUNT:
        raise DsforgeError(f"an optimizer that took {step!r:.40} steps", "use another checkpoint")
    return step


def whole(atom: Parameter, state: str = WEIGHTS) -> Any:
    """A state of a whole parameter as a tensor."""
    import torch

    dtype = getattr(torch, atom.dtype(state))
    bits = np.concatenate([np.asarray(part) for part in atom.read(state, 0, atom.elements)])
    return torch.from_numpy(bits.view(np.uint8)).view(dtype).reshape(atom.shape)


def _bytes(atom: Parameter, state: str) -> int:
    return atom.elements * ITEM_BYTES[atom.dtype(state)]


def _client_state(values: Mapping[str, Any], archive: Archive, watcher: Watcher) -> dict[str, Any]:
    """Settings that go along as they are, and whatever of a script's own can be carried."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key in ("module", "optimizer"):
            continue
        try:
            found[key] = revived(value, archive)
        except UnknownTypeError as error:
            watcher.say(f"`{key}` of {archive.path.name} is left out: {error.message}")
    return found


def _sizes(shapes: Any) -> Any:
    """The shapes of parameters as DeepSpeed writes them: of torch's own type."""
    import torch

    if isinstance(shapes, list | tuple) and all(isinstance(s, int) for s in shapes):
        return torch.Size(shapes)
    if isinstance(shapes, dict):
        return OrderedDict((name, _sizes(inner)) for name, inner in shapes.items())
    return [_sizes(inner) for inner in shapes] if isinstance(shapes, list) else shapes


def _common(source: Archive, saved: Saved, watcher: Watcher) -> dict[str, Any]:
    """What all parameters share, as stages 1 and 2 and as stage 3 look for it."""
    import torch
    from deepspeed.runtime.fp16.loss_scaler import LossScaler

    common: dict[str, Any] = {"loss_scaler": LossScaler(1.0), "dynamic_loss_scale": False}
    states = source.value.get("optimizer_state_dict") or {}
    common |= _client_state(
        {k: v for k, v in states.items() if k not in PER_PARAMETER}, source, watcher
    )
    groups = [
        {**_client_state(group, source, watcher), "params": [index]}
        for index, group in enumerate(saved.groups)
    ]
    step = saved.scalars.get("step", groups[0].get("step", 0.0))
    inner = {"state": {0: {"step": torch.tensor(_as_step(step))}}, "param_groups": groups}
    version = saved.progress["ds_version"]
    return {"ds_version": version, "overflow": False, **common} | {
        "param_groups": groups,
        "optimizer_state_dict": inner,
    }


@dataclass(slots=True)
class _Sink:
    """A file that torch writes to: the checksum of what it gave, and the first failure.

    torch calls it from C, where an exception would end the process: so it is kept for later.
    """

    stream: BinaryIO
    crc32: int = 0
    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Take some bytes."""
        count = len(data)
        try:
            if self.failure is None:
                self.stream.write(data)
                self.crc32 = zlib.crc32(data, self.crc32)
        except OSError as error:
            self.failure = error
        return count

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is closed."""


def save(value: Any, path: Path) -> None:
    """Write a torch file and read it back from the disk. Raises OSError, DsforgeError."""
    import torch

    with path.open("xb") as stream:
        sink = _Sink(stream)
        torch.save(value, sink)
        if sink.failure is not None:
            raise sink.failure
    check_written(path, sink.crc32)
