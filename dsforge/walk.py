"""Walk: the files below a folder, whatever the tree is: endless, deep, or full of links.

Links are never followed, so a walk stays in its tree. It ends after a number of entries, which
somebody who names `/` by mistake would otherwise learn late, and `left_out` then says what was not
looked at. Entries are counted and not seconds: what is found must not depend on what else the
machine does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

MOST_ENTRIES = 200_000
MOST_LEVELS = 40
UNREAL = frozenset(("/proc", "/sys", "/dev"))  # files there are made as they are read


class Walk:
    """The entries below a folder that are not folders, sorted in each; iterated once.

    Folders whose name `skips` takes are left out, and said nowhere. `closed` has the folders that
    could not be listed, each with the reason.
    """

    def __init__(self, folder: Path, skips: Callable[[str], bool]) -> None:
        self.folder = folder
        self.left_out = ""
        self.closed: list[str] = []
        self._skips = skips
        self._entries = 0

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        waiting = [(str(self.folder), 0)]
        while waiting:
            where, level = waiting.pop()
            folders: list[str] = []
            for entry in self._listed(where):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry
            if self._entries > MOST_ENTRIES:
                self._stop(f"the rest of {where}, after {MOST_ENTRIES:,} entries")
                return
            if folders and level == MOST_LEVELS:
                self._stop(f"folders more than {MOST_LEVELS} levels deep, such as {folders[0]}")
            else:
                waiting += [(path, level + 1) for path in reversed(folders)]

    def _listed(self, where: str) -> list[os.DirEntry[str]]:
        """The entries of a folder in order, as many as may still be looked at."""
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(where) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > MOST_ENTRIES:
                        break
                    if not self._is_skipped(entry):
                        found.append(entry)
        except FileNotFoundError:  # removed since its name was read
            pass
        except OSError as error:
            self.closed.append(f"{where} ({error.strerror})")
        return sorted(found, key=lambda entry: entry.name)

    def _is_skipped(self, entry: os.DirEntry[str]) -> bool:
        if not entry.is_dir(follow_symlinks=False):
            return False
        return self._skips(entry.name) or str(Path(entry.path).absolute()) in UNREAL

    def _stop(self, what: str) -> None:
        self.left_out = self.left_out or what
