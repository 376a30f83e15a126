"""The content of a checkpoint folder, from the names of its files.

DeepSpeed names a file after the rank that wrote it, so the names alone say how many ranks there
were and which of their files are missing.
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from dsforge.checkpoints.files import opened, read_at
from dsforge.checkpoints.findings import listed
from dsforge.checkpoints.path_names import is_plain
from dsforge.errors import DsforgeError

Kind = Literal["deepspeed", "universal", "torch", "huggingface", "file"]
FileKind = Literal["model", "optimizer", "layer", "expert"]

LATEST = ("latest", "latest_universal")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
PLAIN_PICKLES = (".pkl", ".pickle")  # of torch or of Python itself; accelerate's random states
PICKLED = (".bin", ".pt", ".pth", ".ckpt", *PLAIN_PICKLES)  # files that torch.load is used for
MAX_FILES = 250_000  # of 10,000 ranks two each, and many times more
MAX_DEPTH = 8
MAX_TAG_BYTES = 1024
_NUMBER = r"[0-9]{1,18}"
_MODEL = rf"mp_rank_(?P<model>{_NUMBER})"
_RANK = rf"(?:bf16_|fp16_)?zero_pp_rank_(?P<data>{_NUMBER})_{_MODEL}"
_NAMES: tuple[tuple[FileKind, re.Pattern[str]], ...] = (
    ("optimizer", re.compile(rf"{_RANK}_optim_states\.pt")),
    ("model", re.compile(rf"{_RANK}_model_states\.pt")),
    ("model", re.compile(rf"{_MODEL}_model_states\.pt")),
    (
        "expert",
        re.compile(rf"(layer_[0-9]+_)?expert_[0-9]+_mp_rank_(?P<model>{_NUMBER})_model_states\.pt"),
    ),
    ("expert", re.compile(rf"expp_rank_[0-9]+_{_MODEL}_optim_states\.pt")),
    ("layer", re.compile(rf"layer_[0-9]+(-model_(?P<model>{_NUMBER}))?-model_states\.pt")),
)
# As torch.distributed.checkpoint names the safetensors files of its ranks.
_SHARD = re.compile(r"shard-[0-9]{5,18}-model-[0-9]{5}-of-[0-9]{5}\.safetensors")


class RankFile(NamedTuple):
    """A file that one rank wrote; `data_rank` is none where all data-parallel ranks share it."""

    path: Path
    kind: FileKind
    data_rank: int | None
    model_rank: int


class Folder(NamedTuple):
    """A checkpoint on disk; `pointer` is the file that names it as the newest."""

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
    try:
        single, folder = path.is_file() and path.suffix in WEIGHTS, path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or holds NUL
        raise DsforgeError(f"no checkpoint at {str(path)[:200]}: {error}") from error
    if single:
        return Folder(path, "file")
    if not folder:
        raise DsforgeError(f"there is no checkpoint at {path}", "give its folder, or one file")
    return _pointed(path) or _known(path) or _only_one(path) or _none(path)


def _known(path: Path, pointer: Path | None = None) -> Folder | None:
    """The checkpoint whose files are directly in this folder."""
    files = rank_files(path)
    if (path / "zero").is_dir():
        return Folder(path, "universal", files, pointer)
    if files:
        return Folder(path, "deepspeed", files, pointer)
    if any(_SHARD.fullmatch(p.name) for p in _entries(path)):
        return Folder(path, "torch", (), pointer)
    if any(p.suffix in (".safetensors", ".bin") for p in _entries(path)):
        return Folder(path, "huggingface", (), pointer)
    return None


def _pointed(path: Path) -> Folder | None:
    """The checkpoint below that `latest` names."""
    for name in LATEST:
        pointer = path / name
        if not pointer.is_file():
            continue
        tag = _tag(pointer)
        inside = path / tag
        if not is_plain(tag) or not inside.is_dir():
            there = listed(sorted(p.name for p in _entries(path) if p.is_dir())) or "nothing"
            hint = f"write the name of an existing one into `{name}`: {there}"
            raise DsforgeError(f"{pointer} names `{tag[:80]}`, which does not exist", hint)
        return _known(inside, pointer)
    return None


def _tag(pointer: Path) -> str:
    """The name in a file such as `latest`. Raises DsforgeError where it is far too long."""
    with opened(pointer) as descriptor:
        text = read_at(descriptor, 0, MAX_TAG_BYTES + 1)
    if len(text) > MAX_TAG_BYTES:
        message = f"{pointer} is longer than a folder name can be"
        raise DsforgeError(message, "write only the name of a checkpoint folder into it")
    return text.decode("utf-8", "replace").strip()


def _entries(path: Path) -> list[Path]:
    """What lies in a folder, sorted. Raises DsforgeError where it cannot be read, or has no end."""
    try:
        found = [*islice(path.iterdir(), MAX_FILES + 1)]
    except OSError as error:
        raise DsforgeError(f"{path} cannot be read: {error.strerror}") from error
    if len(found) > MAX_FILES:
        hint = "give the folder of one checkpoint"
        raise DsforgeError(f"{path} contains more than {MAX_FILES:,} files", hint)
    return sorted(found)


def files_below(path: Path, suffixes: tuple[str, ...], *, depth: int = MAX_DEPTH) -> list[Path]:
    """The files with some endings in a folder and below, sorted; links to folders are not followed.

    Raises DsforgeError where there are too many.
    """
    found: list[Path] = []
    waiting, seen = [(path, depth)], 0
    while waiting:
        folder, left = waiting.pop()
        for entry in _entries(folder):
            seen += 1
            if entry.is_dir():
                if left and not entry.is_symlink():
                    waiting.append((entry, left - 1))
            elif entry.name.endswith(suffixes):
                found.append(entry)
        if seen > MAX_FILES:
            raise DsforgeError(
                f"{path} contains more than {MAX_FILES:,} files", "give one checkpoint"
            )
    return sorted(found)


def _only_one(path: Path) -> Folder | None:
    """The only checkpoint below."""
    below = [_known(inside) for inside in _entries(path) if inside.is_dir()]
    known = [found for found in below if found is not None]
    return known[0] if len(known) == 1 else None


def _none(path: Path) -> Folder:
    hint = "give the folder that contains *_states.pt, zero/, *.safetensors or *.bin"
    raise DsforgeError(f"{path} contains no checkpoint", hint)


def rank_files(path: Path) -> tuple[RankFile, ...]:
    """The files of ranks in a folder, by name."""
    found = []
    for file in _entries(path):
        for kind, pattern in _NAMES:
            if match := pattern.fullmatch(file.name):
                groups = match.groupdict()
                data = groups.get("data")
                rank = None if data is None else int(data)
                found.append(RankFile(file, kind, rank, int(groups.get("model") or 0)))
                break
    return tuple(found)
