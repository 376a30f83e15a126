"""Walk: the files below a folder, whatever the tree is: endless, deep, or full of links.

Links are never followed, so a walk stays in its tree. It ends after a number of entries and of
seconds, which somebody who names `/` by mistake would otherwise learn late, and `left_out` then
says what was not looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

MOST_ENTRIES = 200_000
MOST_LEVELS = 40
SECONDS = 6.0  # what is done with the files is counted, too
UNREAL = frozenset(("/proc", "/sys", "/dev"))  # files there are made as they are read


class Walk:
    """The entries below a folder that are not folders, sorted in each; iterated once.

    Folders whose name `skips` takes are left out, and said nowhere.
    """

    def __init__(self, folder: Path, skips: Callable[[str], bool]) -> None:
        self.folder = folder
        self.left_out = ""
        self._skips = skips
        self._entries = 0
        self._end = time.monotonic() + SECONDS

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        waiting = [(str(self.folder), 0)]
        while waiting:
            where, level = waiting.pop()
            folders: list[str] = []
            for entry in self._listed(where):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                if time.monotonic() > self._end:
                    self._stop(f"the content of {entry.path}, after {SECONDS:g} s")
                    return
                yield entry
            if self._entries > MOST_ENTRIES:
                self._stop(f"the rest of {where}, after {MOST_ENTRIES:,} entries")
                return
            if folders and level == MOST_LEVELS:
                self._stop(f"folders more than {MOST_LEVELS} levels deep, such as {folders[0]}")
            elif time.monotonic() > self._end:
                self._stop(f"the rest of {where}, after {SECONDS:g} s")
                return
            else:
                waiting += [(path, level + 1) for path in reversed(folders)]

    def _listed(self, where: str) -> list[os.DirEntry[str]]:
        """The entries of a folder in order, as many as may still be looked at."""
        found: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(where) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > MOST_ENTRIES or time.monotonic() > self._end:
                    break
                if not self._is_skipped(entry):
                    found.append(entry)
        return sorted(found, key=lambda entry: entry.name)

    def _is_skipped(self, entry: os.DirEntry[str]) -> bool:
        if not entry.is_dir(follow_symlinks=False):
            return False
        return self._skips(entry.name) or str(Path(entry.path).absolute()) in UNREAL

    def _stop(self, what: str) -> None:
        self.left_out = self.left_out or what
