"""Mounts: places where another file system begins, a single file's included."""

from __future__ import annotations

import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks and backslashes in a path, as the kernel writes it


def mount_points() -> frozenset[str]:
    """Absolute paths on which something is mounted; none where the system does not say."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return frozenset()
    fields = (line.split(" ") for line in lines)
    return frozenset(
        _ESCAPED.sub(lambda found: chr(int(found[1], 8)), part[4]) for part in fields if part[4:]
    )
