"""Row files: the value of each row of JSONL, Parquet and dataset folders, with its place.

Data may come from anywhere: a file of one endless line, a table that speaks of more rows than it
has bytes, a folder that names files outside. So everything is read in parts of bounded size, and
only regular files inside the folder that was named are opened.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from dsforge.errors import Problem, SpecError
from dsforge.outside import UnreadableError, json_value, opened, read_text
from dsforge.train.data.table_reader import Kind, TableError, lines

MAX_ROW_BYTES = 16 << 20
STATE_BYTES = 4 << 20  # of a state.json; one shard takes 40
HEAD_BYTES = 512
SHOWN_SPLITS = 20
TEXT_SUFFIXES, PARQUET = (".jsonl", ".json"), ".parquet"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def data_files(path: Path) -> tuple[Path, ...]:
    """The files that hold the rows of a data file or dataset folder, each one that can be read.

    Raises SpecError.
    """
    if path.is_dir():
        files = _listed(path)
    elif not path.exists():
        hint = "set `data` in train.yaml, relative to its folder"
        raise refused("data-missing", "the data file does not exist", path, hint)
    elif path.suffix not in (*TEXT_SUFFIXES, PARQUET):
        message = (
            f"`{path.suffix[:40]}` is not supported; write JSONL (`.jsonl`) or Parquet (`.parquet`)"
        )
        raise refused("data-format", message, path)
    else:
        files = (path,)
    for file in files:
        head = _head(file)
        if path.suffix in TEXT_SUFFIXES and not path.is_dir():
            _check_text(file, head)
    return files


def row_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of each row; a Problem where a line is not JSON. Raises SpecError."""
    files = data_files(path)
    if path.is_dir():
        yield from _table_values(path, "arrow", files)
    elif path.suffix == PARQUET:
        yield from _table_values(path, "parquet", files)
    else:
        yield from _json_values(path)


def refused(rule: str, message: str, path: Path, hint: str = "") -> SpecError:
    """The error for a file that is not usable as data."""
    return SpecError((Problem(rule, message, hint, str(path)),))


def _listed(folder: Path) -> tuple[Path, ...]:
    """The files that a folder's `state.json` names; all of them lie in the folder itself."""
    if (folder / "dataset_dict.json").is_file():
        found = islice(folder.glob("*/state.json"), SHOWN_SPLITS)
        splits = ", ".join(sorted(str(state.parent) for state in found))
        raise refused("data-splits", "contains several splits", folder, f"choose one: {splits}")
    try:
        state = json_value(read_text(folder / "state.json", STATE_BYTES, pipes=False))
        names = [file["filename"] for file in state["_data_files"]]
    except (UnreadableError, KeyError, TypeError) as error:
        hint = "give a JSONL or Parquet file, or a folder that `datasets` saved to disk"
        raise refused("data-folder", "is not a dataset", folder, hint) from error
    for name in names:
        if not isinstance(name, str) or not _is_plain(name):
            message = f"its `state.json` refers to {name!a:.80}, which is not a file in this folder"
            raise refused("data-outside", message, folder, "save it again with `datasets`")
    return tuple(folder / name for name in names)


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file directly in a folder."""
    return name not in ("", ".", "..") and name.isprintable() and "/" not in name


def _head(file: Path) -> bytes:
    """The first bytes of a regular file. Raises SpecError."""
    try:
        with opened(file, pipes=False) as stream:
            return stream.read(HEAD_BYTES) or b""
    except UnreadableError as error:
        raise refused("data-unreadable", error.reason, file, "give a regular file") from error


def _check_text(file: Path, head: bytes) -> None:
    """Raise SpecError where a file that should hold lines of text begins as something else."""
    if head.startswith(UTF_16):
        raise refused("data-binary", "is UTF-16 text", file, "save it as UTF-8")
    if b"\0" in head:
        hint = "give a file with one JSON object per line; Parquet files must end in `.parquet`"
        raise refused("data-binary", "is not text", file, hint)


def _json_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of each line; a Problem where it is too long or not JSON."""
    try:
        with opened(path, pipes=False) as raw:
            lines = io.BufferedReader(raw, 1 << 20)
            number = 0
            while line := lines.readline(MAX_ROW_BYTES + 1):
                number += 1
                place = f"{path}:{number}"
                if len(line) > MAX_ROW_BYTES:
                    _pass_over(lines, line)
                    yield place, _too_large(place)
                elif line.strip():
                    yield place, _json(place, line)
    except UnreadableError as error:
        raise refused("data-unreadable", error.reason, path) from error


def _pass_over(lines: BinaryIO, line: bytes) -> None:
    """Read up to the end of a line, and keep nothing of it."""
    while line and not line.endswith(b"\n"):
        line = lines.readline(1 << 20)


def _too_large(place: str) -> Problem:
    return Problem("row-size", f"has more than {MAX_ROW_BYTES >> 20} MiB", place=place)


def _json(place: str, line: bytes) -> Any:
    """The value of a line, or what is wrong with it."""
    try:
        return json.loads(line)
    except RecursionError:
        why = "nested too deeply"
    except UnicodeDecodeError:
        why = "not UTF-8 text"
    except ValueError as error:
        why = getattr(error, "msg", "a number in it has too many digits")
    return Problem("row-json", f"is not JSON: {why}", place=place)


def _table_values(path: Path, kind: Kind, files: tuple[Path, ...]) -> Iterator[tuple[str, Any]]:
    """Place and value of each row of a Parquet file, or of a folder that `datasets` saved."""
    try:
        for number, line in enumerate(lines(kind, files, MAX_ROW_BYTES), 1):
            place = f"{path}: row {number}"
            yield place, _json(place, line) if line else _too_large(place)
    except TableError as error:
        hint = "" if error.rule == kind else "write the rows as JSONL"
        raise refused(f"data-{error.rule}", str(error), path, hint) from error
