"""Files of the base model that accompany exported weights: configuration and tokenizer.

The folder may come from a stranger: a link in it must not carry a file of this machine into an
export that is then published, and a pipe or a device must not stop it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dsforge.checkpoints.files import opened, read_at, size_of
from dsforge.checkpoints.output.new_folder import Say, write_file
from dsforge.errors import DsforgeError
from dsforge.units import size

PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt")  # configuration and tokenizer
MAX_BYTES = 512 * 1024 * 1024  # the largest tokenizers have about 40 MB


def read_config(model: Path | None, dtype: str) -> dict[str, Any]:
    """The configuration of a model folder with the type of the weights; empty without a folder.

    Raises DsforgeError.
    """
    if model is None:
        return {}
    file = model / "config.json"
    if not file.is_file() or _leads_out(file, model):
        raise DsforgeError(f"{model} has no config.json", "give the folder that contains it")
    try:
        values = json.loads(_content(file).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DsforgeError(f"{file} is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(values, dict):
        raise DsforgeError(f"{file} is not the configuration of a model: not a JSON object")
    values.pop("torch_dtype", None)
    return {**values, "dtype": dtype}


def model_files(model: Path | None, say: Say) -> list[Path]:
    """Files of a model folder that describe the model; `say` is told of those left out."""
    if model is None:
        return []
    found = {file for pattern in PATTERNS for file in model.glob(pattern)}
    chosen = []
    for file in sorted(found):
        if file.name == "config.json" or file.name.endswith(".index.json"):
            continue
        why = _why_not(file, model)
        if why:
            say(f"{file} is left out: {why}")
        else:
            chosen.append(file)
    return chosen


def copy_files(files: list[Path], folder: Path) -> None:
    """Copy files into a folder, each read back from the disk. Raises DsforgeError, OSError."""
    for file in files:
        write_file(folder / file.name, _content(file))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file and read it back from the disk."""
    write_file(path, (json.dumps(value, indent=2) + "\n").encode())


def _content(file: Path) -> bytes:
    with opened(file) as descriptor:
        return read_at(descriptor, 0, MAX_BYTES)


def _why_not(file: Path, model: Path) -> str:
    """Why a file is not copied; empty where it is."""
    if _leads_out(file, model):
        return "a link to a path outside the folder"
    try:
        with opened(file) as descriptor:
            many = size_of(descriptor)
    except DsforgeError as error:
        return error.message.removeprefix(f"{file.name} ")
    return f"{size(many)} are too many for it" if many > MAX_BYTES else ""


def _leads_out(file: Path, model: Path) -> bool:
    """Whether a link leads elsewhere than into the folder or the blobs of Hugging Face's cache."""
    target = os.path.realpath(file)
    homes = (model, model.resolve().parent.parent / "blobs")
    return not any(Path(target).is_relative_to(os.path.realpath(home)) for home in homes)
