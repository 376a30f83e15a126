"""safetensors out of a checkpoint: what transformers and peft load, in the type trained in.

Each tensor is read from the parts of the ranks and written in slices, so memory does not grow with
the model. The folder gets its name only after all its bytes were read back from the disk.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from dsforge.ckpt.archive import CHUNK_BYTES
from dsforge.ckpt.folder import Folder
from dsforge.ckpt.numbers import as_type
from dsforge.ckpt.weights import ITEM_BYTES, write_safetensors
from dsforge.ckpt.zero import WEIGHTS, Atom, Saved, read_saved
from dsforge.errors import DsforgeError

SLICE_ELEMENTS = 4 * 1024 * 1024
SHARD_BYTES = 5_000_000_000  # as transformers cuts
BESIDE = ("*.json", "*.jinja", "*.model", "*.txt")  # configuration and tokenizer
ADAPTER = ".default."  # peft's name of the only adapter, left out in its files


class Exported(NamedTuple):
    """What was written: the folder, its files, tensors, bytes, and the type of the numbers."""

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
) -> Exported:
    """The weights of a checkpoint in a new folder, as transformers or, with adapters, peft loads.

    `model` is the folder that training began from: its configuration and tokenizer go along.
    Raises DsforgeError where the folder exists, parts are missing or bytes differ when read back.
    """
    saved = read_saved(folder)
    if out.exists():
        raise DsforgeError(f"{out} exists", "name a folder that does not")
    chosen = saved.trained_in if dtype == "auto" else dtype
    adapter = any(".lora_" in name for name in saved.trained)
    atoms = _adapters(saved) if adapter else {**saved.trained, **saved.frozen, **saved.buffers}
    beside = adapter_settings(atoms, model, lora_alpha) if adapter else _config(model, chosen)
    temporary = out.with_name(f".{out.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    stem = "adapter_model" if adapter else "model"
    files = _write(temporary, dict(sorted(atoms.items())), chosen, stem)
    if model is not None and not adapter:
        _copy_beside(model, temporary)
    if beside:
        _write_json(temporary / ("adapter_config.json" if adapter else "config.json"), beside)
    temporary.rename(out)
    total = sum((out / name).stat().st_size for name in files)
    return Exported(out, files, len(atoms), total, chosen)


def _adapters(saved: Saved) -> dict[str, Atom]:
    """Adapters under the names that peft gives them in its files."""
    return {name.replace(ADAPTER, "."): atom for name, atom in saved.trained.items()}


def adapter_settings(
    atoms: dict[str, Atom], model: Path | None, alpha: float | None
) -> dict[str, Any]:
    """The adapter_config.json of adapters. Raises DsforgeError without their `alpha`."""
    if alpha is None:
        hint = "give the `lora_alpha` of training with --lora-alpha; no checkpoint holds it"
        raise DsforgeError("these are adapters, and their scale is not known", hint)
    downs = {name: atom for name, atom in atoms.items() if ".lora_A." in name}
    ranks = sorted({atom.shape[0] for atom in downs.values()})
    if len(ranks) != 1:
        raise DsforgeError(f"adapters of different ranks ({ranks}) are not exported")
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None if model is None else str(model),
        "r": ranks[0],
        "lora_alpha": alpha,
        "target_modules": sorted({name.split(".lora_A.")[0].rsplit(".", 1)[-1] for name in downs}),
    }


def _write(folder: Path, atoms: dict[str, Atom], dtype: str, stem: str) -> tuple[str, ...]:
    """Names of the files of weights, with an index where there are several."""
    shards = _shards(atoms, dtype)
    where: dict[str, str] = {}
    names = []
    for number, names_in in enumerate(shards, start=1):
        name = f"{stem}.safetensors"
        if len(shards) > 1:
            name = f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors"
        types = {n: (_type(atoms[n], dtype), atoms[n].shape) for n in names_in}
        sums = write_safetensors(
            folder / name, types, (slices(atoms[n], types[n][0]) for n in names_in)
        )
        check_sum(folder / name, sums)
        where |= dict.fromkeys(names_in, name)
        names.append(name)
    if len(shards) > 1:
        total = sum(_bytes(atom, dtype) for atom in atoms.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        _write_json(folder / f"{stem}.safetensors.index.json", index)
    return tuple(names)


def _shards(atoms: dict[str, Atom], dtype: str) -> list[list[str]]:
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


def _type(atom: Atom, dtype: str) -> str:
    """The type to write: whole numbers stay what they are."""
    return dtype if atom.dtype().startswith(("float", "bfloat")) else atom.dtype()


def _bytes(atom: Atom, dtype: str) -> int:
    return atom.elements * ITEM_BYTES[_type(atom, dtype)]


def slices(atom: Atom, dtype: str) -> Iterator[NDArray[Any]]:
    """The bits of a parameter in a type, slice by slice."""
    for begin in range(0, atom.elements, SLICE_ELEMENTS):
        end = min(begin + SLICE_ELEMENTS, atom.elements)
        for bits in atom.read(WEIGHTS, begin, end):
            yield as_type(bits, atom.dtype(), dtype)


def check_sum(file: Path, expected: int) -> None:
    """Compare the bytes on the disk with the check sum of those written. Raises DsforgeError."""
    found = 0
    with file.open("rb") as stream:
        while part := stream.read(CHUNK_BYTES):
            found = zlib.crc32(part, found)
    if found != expected:
        raise DsforgeError(f"{file} does not hold what was written to it", "look at the disk")


def _config(model: Path | None, dtype: str) -> dict[str, Any]:
    """The configuration of a model folder with the type of the weights. Raises DsforgeError."""
    if model is None:
        return {}
    config = model / "config.json"
    if not config.is_file():
        raise DsforgeError(f"{model} has no config.json", "name the folder that has one")
    values = json.loads(config.read_text(encoding="utf-8"))
    values.pop("torch_dtype", None)
    return {**values, "dtype": dtype}


def _copy_beside(model: Path, folder: Path) -> None:
    """Copy the tokenizer and whatever else describes the model."""
    for pattern in BESIDE:
        for file in model.glob(pattern):
            if not file.name.endswith(".index.json"):
                shutil.copy2(file, folder)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
