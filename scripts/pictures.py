"""Draw docs/images/*.svg with dsforge itself: the plots of the example of the README."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs/images"
EXAMPLE = (
    "plan --model llama-2-7b --nodes 2 --gpus-per-node 8 --gpu a100-80gb --inter-node 100gbe "
    "--gpu-hour-price 2 --tokens 1b --plots"
)
SHOWN = ("memory.svg", "time.svg", "front.svg", "scaling.svg")


def draw(folder: Path) -> None:
    """Write the plots into a folder."""
    command = [sys.executable, "-m", "dsforge", *EXAMPLE.split(), str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        draw(Path(temporary))
        for name in SHOWN:
            shutil.copy(Path(temporary, name), FOLDER / name)
