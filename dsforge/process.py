"""The one place that starts a subprocess: command in, Completed out, always with a timeout.

Commands are argument tuples; nothing here passes through a shell.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dsforge.errors import RunError

TAIL_LINES = 30
TIMEOUT_CODE = 124  # what timeout(1) exits with


class Completed(NamedTuple):
    """A process that has ended; `output` is stdout and stderr together, in order."""

    command: tuple[str, ...]
    code: int
    output: str

    @property
    def tail(self) -> str:
        """The last lines of the output."""
        return "\n".join(self.output.splitlines()[-TAIL_LINES:])

    def check(self, what: str, hint: str = "") -> Completed:
        """Itself where the exit code is 0. Raises RunError otherwise; `what` names the work."""
        if self.code == 0:
            return self
        how = "ran into its time limit" if self.code == TIMEOUT_CODE else f"exit code {self.code}"
        raise RunError(
            f"{what} failed ({how})", hint, command=self.command, code=self.code, tail=self.tail
        )


def run(
    command: tuple[str, ...],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run a command to its end and return its exit code and output.

    `environment` is added to the present one. `on_line` sees each line as it comes. After
    `timeout_s` seconds the whole process group is ended and the code is 124. Raises RunError
    where the program does not exist.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        message = f"cannot start `{command[0]}`: {error.strerror}"
        raise RunError(message, command=command, code=127, tail="") from error
    return _follow(process, command, timeout_s, on_line)


def _follow(
    process: subprocess.Popen[str],
    command: tuple[str, ...],
    timeout_s: float,
    on_line: Callable[[str], None] | None,
) -> Completed:
    """Collect the output until the process ends or its time is up."""
    import threading

    lines: list[str] = []
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        end_group(process)

    timer = threading.Timer(timeout_s, expire)
    assert process.stdout is not None  # PIPE was asked for
    timer.start()
    try:
        for line in process.stdout:
            lines.append(line)
            if on_line is not None:
                on_line(line.rstrip("\n"))
        code = process.wait()
    except BaseException:  # Ctrl-C included: leave no orphan behind
        end_group(process)
        raise
    finally:
        timer.cancel()
        process.stdout.close()
    return Completed(command, TIMEOUT_CODE if expired.is_set() else code, "".join(lines))


def end_group(process: subprocess.Popen[str], grace_s: float = 5.0) -> None:
    """End a process and its children: SIGTERM, then SIGKILL after `grace_s` seconds."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return
