"""The files of one import: those that were named, and those beside them that they refer to.

A file may name others: `deepspeed: ds_z3.json`. Such a file is read where it was given too, or
where it lies within the folder of the file that names it. No path leads out of that folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from dsforge.importing.forms import Source
from dsforge.outside import UnreadableError, read_text
from dsforge.reading.refusals import refusal

MAX_BYTES = 512 * 1024  # a config has a few KB
MOST_FILES = 50
MOST_PARTS = 12  # of a path that a file names


class Files:
    """Named files by name, and the folders in which others may be looked up."""

    def __init__(self, texts: Mapping[str, str], folders: Iterable[Path] = ()) -> None:
        self.named = [Source(name, text) for name, text in list(texts.items())[:MOST_FILES]]
        self._folders = tuple(dict.fromkeys(folders))  # as they were named: so are files below
        self._written: dict[str, Source] = {}
        self.read: list[Source] = []  # those beside, that a file referred to
        self.referred: list[Source] = []  # named ones likewise

    def write(self, name: str, text: str, line: int, by: Source) -> None:
        """A file that a script writes before it starts the program."""
        made = Source(_base(name), "\n" * max(0, line - 1) + text)
        made.name = by.name
        self._written[_base(name)] = made

    def beside(self, name: str) -> Source | None:
        """The file that a file calls by a name or path; none where it was not given."""
        base = _base(name)
        if not base or "\x00" in name or "\x01" in name:
            return None
        known = self._written.get(base) or self._given(name)
        if known is None and len(self.read) < MOST_FILES:
            known = self._looked_up(name)
        if known is not None:
            held = self.referred if known in self.named else self.read
            if known not in held:
                held.append(known)
        return known

    def _given(self, name: str) -> Source | None:
        """One of the named files: that with the longest common end of its path."""
        wanted = PurePosixPath(name).parts
        alike = [each for each in (*self.named, *self.read) if each.base == _base(name)]
        return max(
            alike, key=lambda each: _common(PurePosixPath(each.name).parts, wanted), default=None
        )

    def _looked_up(self, name: str) -> Source | None:
        """A file within one of the folders, at the path or at an end of it."""
        parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".", "..")]
        for folder in self._folders:
            for begin in range(len(parts[-MOST_PARTS:])):
                path = Path(folder, *parts[-MOST_PARTS:][begin:])
                try:
                    if not _is_within(path, folder) or not path.is_file():
                        continue
                    return Source(str(path), read_text(path, MAX_BYTES, pipes=False))
                except (OSError, ValueError):
                    continue
        return None


def files_of(paths: Iterable[Path]) -> Files:
    """The files at some paths. Raises SpecError where one cannot be read."""
    texts: dict[str, str] = {}
    folders: list[Path] = []
    for path in paths:
        if path.is_dir():
            raise refusal("file-is-a-folder", str(path), "is a folder", "name the files in it")
        try:
            texts[str(path)] = read_text(path, MAX_BYTES)
        except UnreadableError as error:
            place = f"{path}:{error.line}" if error.line else str(path)
            raise refusal(error.rule, place, error.reason) from error
        folders.append(path.parent)
    if len(texts) > MOST_FILES:
        raise refusal("files-many", "", f"more than {MOST_FILES} files cannot be read together")
    return Files(texts, folders)


def _is_within(path: Path, folder: Path) -> bool:
    """Whether a path lies below a folder, wherever its links lead."""
    real = os.path.realpath(folder)
    return os.path.commonpath((os.path.realpath(path), real)) == real


def _base(name: str) -> str:
    return PurePosixPath(name.strip()).name


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Parts at the end of two paths that are the same."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    count = 0
    for left, right in pairs:
        if left != right:
            break
        count += 1
    return count
