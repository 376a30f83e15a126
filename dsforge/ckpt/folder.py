"""What lies in a folder that somebody calls a checkpoint, told from the names of its files.

DeepSpeed names a file after the rank that wrote it, so the names alone say how many ranks there
were and which of their files are missing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from dsforge.errors import DsforgeError

Kind = Literal["deepspeed", "universal", "huggingface", "file"]
FileKind = Literal["model", "optimizer", "layer", "expert"]

LATEST = ("latest", "latest_universal")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_RANK = r"(?:bf16_|fp16_)?zero_pp_rank_(?P<data>\d+)_mp_rank_(?P<model>\d+)"
_NAMES: tuple[tuple[FileKind, re.Pattern[str]], ...] = (
    ("optimizer", re.compile(rf"{_RANK}_optim_states\.pt")),
    ("model", re.compile(rf"{_RANK}_model_states\.pt")),
    ("model", re.compile(r"mp_rank_(?P<model>\d+)_model_states\.pt")),
    ("expert", re.compile(r"(layer_\d+_)?expert_\d+_mp_rank_(?P<model>\d+)_model_states\.pt")),
    ("expert", re.compile(r"expp_rank_\d+_mp_rank_(?P<model>\d+)_optim_states\.pt")),
    ("layer", re.compile(r"layer_\d+(-model_(?P<model>\d+))?-model_states\.pt")),
)


class RankFile(NamedTuple):
    """A file that one rank wrote; `data_rank` is none where all data-parallel ranks share it."""

    path: Path
    kind: FileKind
    data_rank: int | None
    model_rank: int


class Folder(NamedTuple):
    """A checkpoint on the disk; `pointer` is the file that names it as the newest."""

    path: Path
    kind: Kind
    files: tuple[RankFile, ...] = ()
    pointer: Path | None = None

    def of(self, kind: FileKind) -> tuple[RankFile, ...]:
        """The files of one kind."""
        return tuple(file for file in self.files if file.kind == kind)


def find_checkpoint(path: Path) -> Folder:
    """The checkpoint that a path means: a folder of it, one above with `latest`, or a file.

    Raises DsforgeError where there is none, or where `latest` names a folder that is not there.
    """
    if path.is_file() and path.suffix in WEIGHTS:
        return Folder(path, "file")
    if not path.is_dir():
        raise DsforgeError(f"there is no checkpoint at {path}", "name its folder, or one file")
    return _pointed(path) or _known(path) or _only_one(path) or _none(path)


def _known(path: Path, pointer: Path | None = None) -> Folder | None:
    """The checkpoint whose files lie in this very folder."""
    files = rank_files(path)
    if (path / "zero").is_dir():
        return Folder(path, "universal", files, pointer)
    if files:
        return Folder(path, "deepspeed", files, pointer)
    if any(p.suffix in (".safetensors", ".bin") for p in path.iterdir()):
        return Folder(path, "huggingface", (), pointer)
    return None


def _pointed(path: Path) -> Folder | None:
    """The checkpoint below that `latest` names."""
    for name in LATEST:
        pointer = path / name
        if not pointer.is_file():
            continue
        tag = pointer.read_text(encoding="utf-8", errors="replace").strip()
        inside = path / tag
        if "/" in tag or not inside.is_dir():
            there = ", ".join(sorted(p.name for p in path.iterdir() if p.is_dir())) or "nothing"
            hint = f"write the name of one that is there into `{name}`: {there}"
            raise DsforgeError(f"{pointer} names `{tag}`, which is not there", hint)
        return _known(inside, pointer)
    return None


def _only_one(path: Path) -> Folder | None:
    """The only checkpoint below."""
    below = [_known(inside) for inside in sorted(path.iterdir()) if inside.is_dir()]
    known = [found for found in below if found is not None]
    return known[0] if len(known) == 1 else None


def _none(path: Path) -> Folder:
    hint = "name the folder that holds *_states.pt, zero/, *.safetensors or *.bin"
    raise DsforgeError(f"{path} holds no checkpoint", hint)


def rank_files(path: Path) -> tuple[RankFile, ...]:
    """The files of ranks in a folder, by name."""
    found = []
    for file in sorted(path.iterdir()):
        for kind, pattern in _NAMES:
            if match := pattern.fullmatch(file.name):
                groups = match.groupdict()
                data = groups.get("data")
                rank = None if data is None else int(data)
                found.append(RankFile(file, kind, rank, int(groups.get("model") or 0)))
                break
    return tuple(found)
