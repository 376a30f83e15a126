"""Copies of the sample checkpoints, the command line in this process, and what a folder holds."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from dsforge.cli.main import main

SAMPLES = Path(__file__).parent / "samples"
NAMES = sorted(path.name for path in SAMPLES.iterdir())


def copied(name: str, folder: Path) -> Path:
    """A copy of a sample, to spoil."""
    return Path(shutil.copytree(SAMPLES / name, folder / name))


def ended(*arguments: object) -> int:
    """The exit code of a `dsforge ckpt` command; anything but an exit is a traceback."""
    with pytest.raises(SystemExit) as raised:
        main(["ckpt", *map(str, arguments)])
    return int(raised.value.code or 0)


def content(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: the bytes of files, the targets of links, `folder`."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        kind = path.is_symlink(), path.is_file()
        name = str(path.relative_to(folder))
        found[name] = (
            str(path.readlink()) if kind[0] else path.read_bytes() if kind[1] else "folder"
        )
    return found


def flipped(checkpoint: Path, chance: random.Random) -> str:
    """Change one bit of a rank's file; which."""
    files = sorted(checkpoint.glob("global_step*/*.pt"))
    file = chance.choices(files, [file.stat().st_size for file in files])[0]
    data = bytearray(file.read_bytes())
    bit = chance.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    return f"{file.name} bit {bit}"
