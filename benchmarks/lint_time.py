"""Time of `dsforge lint` on a thousand files: the whole process, and what it costs to start."""

from __future__ import annotations

import json
import os
import resource
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


def seconds(folder: Path) -> tuple[float, float]:
    """Wall and CPU time of one process over a folder."""
    dsforge = Path(sys.executable).with_name("dsforge")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run([dsforge, "lint", folder], capture_output=True, text=True, check=False)
    taken = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, 3), done.stderr
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def medians(folder: Path) -> tuple[float, float]:
    """Medians of wall and CPU time."""
    taken = [seconds(folder) for _ in range(RUNS)]
    return median(wall for wall, _ in taken), median(cpu for _, cpu in taken)


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
        start, start_cpu = medians(empty)
        whole, whole_cpu = medians(full)
    figures = {
        "start_s": start,
        "whole_s": whole,
        "after_start_s": whole - start,
        "after_start_cpu_s": whole_cpu - start_cpu,
        "load": os.getloadavg()[0],
    }
    rounded = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({"files": FILES, "runs": RUNS, **rounded}, indent=2))
    return 0 if whole - start <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
