"""Time of `dsforge lint` on a thousand files: the whole process, and what it costs to start."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

FILES = 1000
RUNS = 5
LIMIT_S = 2.0  # after the start
GOLDEN = Path(__file__).resolve().parents[1] / "tests/golden"


def seconds(folder: Path) -> float:
    """Wall time of one process over a folder."""
    dsforge = Path(sys.executable).with_name("dsforge")
    begin = time.perf_counter()
    done = subprocess.run([dsforge, "lint", folder], capture_output=True, text=True, check=False)
    taken = time.perf_counter() - begin
    assert done.returncode in (0, 3), done.stderr
    return taken


def main() -> int:
    """Print the figures as JSON; exit code 1 where a thousand files take more than the limit."""
    sources = sorted(GOLDEN.glob("*/expected/deepspeed/*.json"))
    with tempfile.TemporaryDirectory() as folder:
        full, empty = Path(folder, "full"), Path(folder, "empty")
        full.mkdir()
        empty.mkdir()
        for n in range(FILES):
            source = sources[n % len(sources)]
            text = source.read_text().replace('"stage"', '"stages"') if n % 10 == 0 else None
            (full / f"{n}_{source.name}").write_text(text or source.read_text())
        seconds(full)  # compiles byte code, as a first run does
        start = median(seconds(empty) for _ in range(RUNS))
        whole = median(seconds(full) for _ in range(RUNS))
    figures = {"files": FILES, "runs": RUNS, "start_s": round(start, 3), "whole_s": round(whole, 3)}
    figures["after_start_s"] = round(whole - start, 3)
    print(json.dumps(figures, indent=2))
    return 0 if whole - start <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
