"""Export of a checkpoint to safetensors, for transformers and peft, in the training type.

The checkpoint is judged first, as `verify` does. Then each tensor is read from the parts of the
ranks and written in slices, so memory does not grow with the model: only bytes that fit their check
sums are used. The folder gets its name only after all its bytes were read back from the disk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from dsforge.checkpoints.folder import Folder
from dsforge.checkpoints.output.base_model_files import (
    copy_files,
    model_files,
    read_config,
    write_json,
)
from dsforge.checkpoints.output.new_folder import (
    SILENT,
    Watcher,
    check_outside,
    check_written,
    new_folder,
    write_file,
)
from dsforge.checkpoints.saved import read_checkpoint
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.torch_files.verified_reads import CheckedArchive, check_pieces, judge
from dsforge.checkpoints.weights.bit_types import FLOATS, ITEM_BYTES, as_type
from dsforge.checkpoints.weights.non_finite import counted
from dsforge.checkpoints.weights.weight_files import NAMES, write_safetensors
from dsforge.checkpoints.zero.atoms import WEIGHTS, Parameter
from dsforge.checkpoints.zero.parameters import Saved
from dsforge.errors import DsforgeError

SLICE_ELEMENTS = 4 * 1024 * 1024
SHARD_BYTES = 5_000_000_000  # as transformers cuts
SAVED = re.compile(r"\.modules_to_save\.[^.]+")  # copies of whole modules that trained
ADAPTER = re.compile(r"(?P<what>\.lora_\w+)\.(?P<adapter>[^.]+)(?P<end>\.weight|\.bias)?")


Kind = Literal["model", "adapter"]  # whole weights, or adapters for peft
Describe = Callable[[Kind], Mapping[str, bytes]]  # files that describe weights, by name


def undescribed(_: Kind) -> Mapping[str, bytes]:
    """No files beside the weights."""
    return {}


class Exported(NamedTuple):
    """What was written: folder, files, tensors, bytes and element type."""

    folder: Path
    files: tuple[str, ...]
    tensors: int
    bytes: int
    dtype: str


def export(
    folder: Folder,
    out: Path,
    *,
    model: Path | None = None,
    dtype: str = "auto",
    lora_alpha: float | None = None,
    base: str = "",
    describe: Describe = undescribed,
    unchecked: bool = False,
    watcher: Watcher = SILENT,
) -> Exported:
    """The weights of a checkpoint in a new folder, for transformers, or adapters for peft.

    `model` is the folder that training began from: its configuration and tokenizer go along. `base`
    is what adapters name as their model: a hub id or path; that folder unless given. `describe`
    gives a model card and licences. Raises UnusableError where the checkpoint is damaged,
    DsforgeError where the folder cannot be written. `unchecked` leaves out the checksums.
    """
    check_outside(out, folder.path, model)
    if folder.kind in ("deepspeed", "torch"):
        judge(folder)
    base = base or str(model or "")
    saved = read_checkpoint(folder, Archive if unchecked else CheckedArchive)
    chosen = saved.trained_in if dtype == "auto" else dtype
    adapter = any(".lora_" in name for name in saved.trained)
    every = _adapters(saved) if adapter else {**saved.trained, **saved.frozen, **saved.buffers}
    atoms = dict(sorted(_checked_names(every).items()))
    settings = adapter_settings(atoms, base, lora_alpha) if adapter else read_config(model, chosen)
    beside = model_files(model, watcher.say)
    total = sum(_bytes(atom, chosen) for atom in atoms.values())
    needed = total + sum(file.stat().st_size for file in beside)
    with new_folder(out, watcher.say, needed_bytes=needed) as temporary:
        check_pieces((p for atom in atoms.values() for p in atom.states[WEIGHTS]), watcher)
        watcher.begin("written", total)
        files = _write(temporary, atoms, chosen, adapter=adapter, watcher=watcher)
        copy_files(beside, temporary)
        _describe(temporary, "adapter" if adapter else "model", settings, describe)
        written = sum((temporary / name).stat().st_size for name in files)
    return Exported(out, files, len(atoms), written, chosen)


def _describe(folder: Path, kind: Kind, settings: dict[str, Any], describe: Describe) -> None:
    """Write the files that describe weights; some came from the folder of the model already."""
    if settings:
        write_json(
            folder / ("adapter_config.json" if kind == "adapter" else "config.json"), settings
        )
    for name, content in describe(kind).items():
        (folder / name).unlink(missing_ok=True)
        write_file(folder / name, content)


def _adapters(saved: Saved) -> dict[str, Parameter]:
    """Adapters under the names that peft gives them in its files. Raises DsforgeError."""
    found = [ADAPTER.search(name) for name in saved.trained]
    names = sorted({match["adapter"] for match in found if match})
    if len(names) > 1:
        raise DsforgeError(f"several adapters ({', '.join(names)}) are not exported together")
    renamed = {
        SAVED.sub("", ADAPTER.sub(r"\g<what>\g<end>", n)): atom for n, atom in saved.trained.items()
    }
    if len(renamed) < len(saved.trained):
        raise DsforgeError("two adapters would have one name without their adapter's")
    return renamed


def _checked_names(atoms: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
    """The same atoms. Raises DsforgeError where a name cannot stand in a safetensors file."""
    for name in atoms:
        sound = isinstance(name, str) and name not in ("", "__metadata__")
        if not sound or not name.isprintable():
            hint = "this is not a valid parameter name; do not use this checkpoint"
            raise DsforgeError(f"{name!r:.80} cannot be the name of a tensor", hint)
    return atoms


def adapter_settings(atoms: dict[str, Parameter], base: str, alpha: float | None) -> dict[str, Any]:
    """The adapter_config.json of adapters. Raises DsforgeError without their `alpha`."""
    if alpha is None:
        hint = "set --lora-alpha to the `lora_alpha` of training; this checkpoint has no note of it"
        raise DsforgeError("these are LoRA adapters, and their scale is unknown", hint)
    if not math.isfinite(alpha) or alpha <= 0:
        hint = "use the `lora_alpha` of training"
        raise DsforgeError(f"`--lora-alpha` (={alpha}) must be a number above 0", hint)
    downs = {name: atom for name, atom in atoms.items() if ".lora_A." in name}
    ranks = sorted({atom.shape[0] for atom in downs.values() if atom.shape})
    if len(ranks) != 1:
        raise DsforgeError(f"adapters of different ranks ({ranks}) are not exported")
    whole = sorted({name.split(".")[-2] for name in atoms if ".lora_" not in name})
    return {
        **({"modules_to_save": whole} if whole else {}),
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "r": ranks[0],
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "target_modules": sorted({name.split(".lora_A.")[0].rsplit(".", 1)[-1] for name in downs}),
    }


def _write(
    folder: Path, atoms: dict[str, Parameter], dtype: str, *, adapter: bool, watcher: Watcher
) -> tuple[str, ...]:
    """Names of the files of weights, with an index where there are several."""
    stem = "adapter_model" if adapter else "model"
    shards = _shards(atoms, dtype)
    where: dict[str, str] = {}
    names = []
    for number, names_in in enumerate(shards, start=1):
        name = f"{stem}.safetensors"
        if len(shards) > 1:
            name = f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors"
        types = {n: (_type(atoms[n], dtype), atoms[n].shape) for n in names_in}
        parts = (_with_progress(slices(n, atoms[n], types[n][0]), watcher) for n in names_in)
        check_written(folder / name, write_safetensors(folder / name, types, parts))
        where |= dict.fromkeys(names_in, name)
        names.append(name)
    if len(shards) > 1:
        total = sum(_bytes(atom, dtype) for atom in atoms.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        write_json(folder / f"{stem}.safetensors.index.json", index)
    return tuple(names)


def _with_progress(parts: Iterator[NDArray[Any]], watcher: Watcher) -> Iterator[NDArray[Any]]:
    """The same parts, with progress reported for their bytes."""
    for part in parts:
        yield part
        watcher.advance(part.nbytes)


def _shards(atoms: dict[str, Parameter], dtype: str) -> list[list[str]]:
    """Names of the tensors of each file, none of which grows beyond the limit by a second one."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, atom in atoms.items():
        if shards[-1] and filled + _bytes(atom, dtype) > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += _bytes(atom, dtype)
    return shards


def _type(atom: Parameter, dtype: str) -> str:
    """The type to write: integers keep theirs. Raises DsforgeError."""
    have = atom.dtype()
    if have not in NAMES or dtype not in NAMES:
        raise DsforgeError(f"weights of type {have} are not written as {dtype}")
    return dtype if have in FLOATS else have


def _bytes(atom: Parameter, dtype: str) -> int:
    return atom.elements * ITEM_BYTES[_type(atom, dtype)]


def slices(name: str, atom: Parameter, dtype: str) -> Iterator[NDArray[Any]]:
    """The bits of a parameter in a type, slice by slice.

    Raises DsforgeError where numbers are too large for the type: they would become infinite.
    """
    have = atom.dtype()
    for begin in range(0, atom.elements, SLICE_ELEMENTS):
        end = min(begin + SLICE_ELEMENTS, atom.elements)
        for bits in atom.read(WEIGHTS, begin, end):
            made = as_type(bits, have, dtype)
            lost = counted(made, dtype)[1] - counted(bits, have)[1] if have != dtype else 0
            if lost:
                many = f"{lost:,} values of `{name}` are" if lost > 1 else f"1 value of `{name}` is"
                message = f"{many} too large for {dtype}"
                raise DsforgeError(message, "write bfloat16 or float32 with --dtype")
            yield made
