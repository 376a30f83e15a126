"""What a rank wrote of a checkpoint, and why it could not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from dsforge.errors import first_line
from dsforge.train.checkpoints.note import FileNote
from dsforge.units import size


class OwnFiles(NamedTuple):
    """Files of one rank, compared after they were written; failures are kept, not raised.

    The other ranks would wait in a barrier for one that raises.
    """

    files: dict[str, FileNote]
    failures: list[str]


def reason(error: BaseException, folder: Path) -> str:
    """Why a file could not be written; torch does not say that a disk is full."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = 0
    text = first_line(error)
    return f"{text} ({size(free)} free on its disk)"
