"""Runs of `dsforge train` on real ranks: how tests start them and read what they wrote."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

BIN = Path(sys.executable).parent
FIRST_STEP_S = 400  # where the first launch of a machine builds ops


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def deepspeed(*options: str) -> list[str]:
    """The deepspeed launcher with two CPU ranks."""
    ranks = ["--num_accelerators", "2", "--master_port", str(free_port())]
    return [str(BIN / "deepspeed"), *ranks, "--module", "dsforge.train", *options]


def alone(*options: str) -> list[str]:
    """One rank without a launcher."""
    return [sys.executable, "-m", "dsforge.train", *options]


def environment(**more: str) -> dict[str, str]:
    """The environment of a launch: one thread a rank, our interpreter first on the path."""
    path = f"{BIN}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **more}


def finished(
    command: list[str], folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A whole run, ended, whatever its exit code."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def succeeded(
    command: list[str], folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A whole run that must end well."""
    done = finished(command, folder, **variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def started(
    command: list[str], folder: Path, *, lines: int, log: IO[str] | None = None
) -> subprocess.Popen[str]:
    """A run that has just written so many lines of output/metrics.jsonl; it talks to `log`."""
    run = subprocess.Popen(
        command, cwd=folder, env=environment(), text=True, stdout=log, stderr=log
    )
    try:
        wait_for_lines(folder, lines, run.poll)
    except AssertionError:
        run.terminate()
        raise
    return run


def wait_for_lines(folder: Path, lines: int, code: Callable[[], int | None]) -> None:
    """Return when output/metrics.jsonl has so many lines; `code` is the run's, once it ended."""
    metrics, end = folder / "output" / "metrics.jsonl", time.monotonic() + FIRST_STEP_S
    while not metrics.is_file() or metrics.read_text().count("\n") < lines:
        assert time.monotonic() < end, "no step in time"
        assert code() is None, f"the run ended with {code()}"
        time.sleep(0.05)


def figures(output: Path, key: str) -> list[float]:
    """The values of one key in metrics.jsonl, in order."""
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row[key] for row in map(json.loads, lines) if key in row]
