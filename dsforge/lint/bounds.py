"""Bounds: how much of a folder lint looks at, and what it says of the rest.

Files and bytes are counted, and never seconds: a busy machine finds what an idle one finds. The
bytes of a file count by how long lint needs for them at most, so that a tree that somebody made
for it ends after about two minutes. The bounds hold for each folder that is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from dsforge.importing.marks import Flaw
from dsforge.lint.reading.document import Document
from dsforge.lint.reading.kind import OTHER_TEXTS, SCRIPTS
from dsforge.lint.reading.telling import CERTAIN_NAME
from dsforge.units import MIB
from dsforge.walk import Walk

MAX_BYTES = 512 * 1024  # of one file; a config has a few KB
MOST_FILES = 20_000
MOST_BYTES = 64 * MIB  # of files of JSON, which are read the fastest
TIMES_OTHERS = 3  # as much as the same bytes of JSON: YAML and scripts
TIMES_CHECKED = 1  # as much once more: a file of a known kind, which all rules look at
SUFFIXES = (".json", ".yaml", ".yml", *SCRIPTS)
NAMES = ("hostfile", ".deepspeed_env", "args.txt")
SKIPPED = {".git", "node_modules", "__pycache__", ".venv", "venv", ".mypy_cache", ".ruff_cache"}
LEFT_OUT = "files-left-out"
WAY_OUT = "name a smaller folder"
MOST_NAMED = 3  # folders that one message names


class Found(NamedTuple):
    """One file to check, and whether it was named itself or found in a named folder."""

    path: Path
    named: bool


class Bounds:
    """What is still looked at; `left_out` has a document with a flaw for each folder cut short."""

    def __init__(self) -> None:
        self.left_out: list[Document] = []
        self._files, self._bytes, self._looked = MOST_FILES, MOST_BYTES, 0

    def found(self, paths: Iterable[Path]) -> Iterator[Found]:
        """The named files, and files with known names below the named folders.

        Links in a folder are not followed.
        """
        for path in paths:
            if path.is_dir():
                yield from self._below(path)
            else:
                yield Found(path, named=True)

    def checked(self, document: Document) -> None:
        """Count the bytes of a file that rules look at."""
        self._bytes -= TIMES_CHECKED * len(document.text)

    def _below(self, folder: Path) -> Iterator[Found]:
        """The files of a known kind below a folder."""
        self._files, self._bytes, self._looked = MOST_FILES, MOST_BYTES, 0
        walk = Walk(folder, SKIPPED.__contains__)
        for entry in walk:
            if not is_looked_at(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            reached = self._reached(entry)
            if reached:
                self._leave_out(folder, f"{entry.path} and the files behind it, after {reached}")
                break
            yield Found(Path(entry.path), named=False)
        if walk.left_out:
            self._leave_out(folder, walk.left_out)
        if walk.closed:
            more = len(walk.closed) - MOST_NAMED
            named = ", ".join(walk.closed[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            self._leave_out(folder, f"folders that cannot be listed: {named}", "ask for the right")

    def _reached(self, entry: os.DirEntry[str]) -> str:
        """The bound that a file goes beyond; empty where it is still looked at."""
        if self._files <= 0:
            return f"{MOST_FILES:,} files"
        if self._bytes <= 0:
            return f"{self._looked / MIB:.3g} MiB of files"
        times = 1 if entry.name.endswith(".json") else TIMES_OTHERS
        size = min(_size(entry), MAX_BYTES)
        self._files -= 1
        self._bytes -= times * size
        self._looked += size
        return ""

    def _leave_out(self, folder: Path, what: str, fix: str = WAY_OUT) -> None:
        flaw = Flaw(LEFT_OUT, 0, f"not looked at: {what}", fix)
        self.left_out.append(Document(str(folder), "unknown", "", {}, {}, (flaw,)))


def is_looked_at(name: str) -> bool:
    """Whether a file of a folder is read, by its name."""
    return name.endswith(SUFFIXES) or _is_named(name)


def _is_named(name: str) -> bool:
    """Whether a name alone says that a file is one of lint's lines."""
    return name.startswith(NAMES) and PurePath(name).suffix not in OTHER_TEXTS


def is_passed_over(file: Found, document: Document) -> bool:
    """Whether a file that a folder holds is none of lint's: of no known kind, or no text.

    One that could be read by nobody is not passed over, nor one whose name says what it is.
    """
    if file.named or document.kind != "unknown":
        return False
    if not any(flaw.rule == "file-unreadable" for flaw in document.flaws):
        return True
    telling = CERTAIN_NAME.search(file.path.name) or _is_named(file.path.name)
    return not telling and os.access(file.path, os.R_OK)


def _size(entry: os.DirEntry[str]) -> int:
    """The bytes of a file; of one that went away, none."""
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0
