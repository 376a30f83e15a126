"""Whole-process wall time of `dsforge gen`: what a user waits for, imports and writing included."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

RUNS = 20
LIMIT_S = 0.5
COMMAND = (
    *("--model", "llama-2-7b", "--nodes", "2", "--gpus-per-node", "8"),
    *("--gpu", "a100-80gb", "--inter-node", "100gbe"),
)


def once(folder: Path) -> float:
    """Seconds of one run into a new folder."""
    dsforge = Path(sys.executable).with_name("dsforge")
    begin = time.perf_counter()
    subprocess.run([dsforge, "gen", *COMMAND, "--out", folder], check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> int:
    """Print median and fastest as JSON; exit code 1 where the median is above the limit."""
    with tempfile.TemporaryDirectory() as folder:
        once(Path(folder, "warm-up"))  # compiles templates and byte code, as a first run does
        times = [once(Path(folder, str(n))) for n in range(RUNS)]
    figures = {"runs": RUNS, "median_s": round(median(times), 3), "fastest_s": round(min(times), 3)}
    print(json.dumps({"command": "dsforge gen " + " ".join(COMMAND), **figures}, indent=2))
    return 0 if median(times) <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
