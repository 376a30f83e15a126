"""The one place that starts a subprocess: command in, Completed out, always with a timeout.

Commands are argument tuples; nothing here passes through a shell.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dsforge.errors import RunError

TAIL_LINES = 30
PART_BYTES = 1 << 16
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
        how = "exceeded its time limit" if self.code == TIMEOUT_CODE else f"exit code {self.code}"
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


def parts(
    command: tuple[str, ...], *, patience_s: float, environment: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """What a command writes to stdout, as it comes, until it ends; it is killed if nobody asks on.

    Raises RunError where its exit code is not 0 (the tail is the end of its stderr), and where it
    says nothing for `patience_s` seconds.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
        )
        assert process.stdout is not None  # PIPE was asked for
        code = TIMEOUT_CODE
        try:
            while select.select([process.stdout], [], [], patience_s)[0]:
                part = os.read(process.stdout.fileno(), PART_BYTES)
                if not part:
                    code = process.wait(patience_s)
                    break
                yield part
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if code:
            said.seek(-min(said.seek(0, os.SEEK_END), PART_BYTES), os.SEEK_END)
            tail = said.read().decode(errors="replace").strip()
            raise RunError(f"`{command[0]}` failed", command=command, code=code, tail=tail)


class Group:
    """A process in a group of its own, without input, that writes to two descriptors.

    Raises RunError where the program does not exist.
    """

    def __init__(
        self, command: tuple[str, ...], environment: Mapping[str, str], *, out: int, errors: int
    ) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                process_group=0,
            )
        except OSError as error:
            message = f"cannot start `{command[0]}`: {error.strerror}"
            raise RunError(message, command=command, code=127, tail="") from error

    @property
    def code(self) -> int | None:
        """The exit code of the process; none while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End the process; the others of its group stay."""
        self._process.kill()

    def signal(self, number: int) -> None:
        """Send a signal to all of the group that are left."""
        with suppress(OSError):
            os.killpg(self._process.pid, number)


def detached(command: tuple[str, ...], *, log: Path) -> int:
    """Start a program, by its path, that outlives this process and its terminal; the process id.

    It has no input, and appends what it says to `log`, which is never followed as a link. Raises
    RunError where it cannot be started.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(log, flags, 0o666)
        try:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, descriptor, 1),
                (os.POSIX_SPAWN_DUP2, descriptor, 2),
            ]
            return os.posix_spawn(
                command[0], command, os.environ, file_actions=actions, setsid=True
            )
        finally:
            os.close(descriptor)
    except OSError as error:
        message = f"cannot start `{command[0]}` with the log {log}: {error.strerror}"
        raise RunError(message, command=command, code=127, tail="") from error


class Dialogue:
    """A running process that is told lines and says lines; what it says may be hostile.

    A line longer than `longest_bytes`, or one too many, ends the dialogue as if the process had
    ended; of stderr only the beginning is kept. Raises RunError where the program does not exist.
    """

    def __init__(
        self, command: tuple[str, ...], *, longest_bytes: int, most_lines: int = 1000
    ) -> None:
        self._command, self._longest, self._most = command, longest_bytes, most_lines
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            message = f"cannot start `{command[0]}`: {error.strerror}"
            raise RunError(message, command=command, code=127, tail="") from error
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.flooded = False  # whether it was ended for saying too much
        self._complaint = bytearray()
        self._readers = tuple(
            threading.Thread(target=read, daemon=True) for read in (self._queue_output, self._note)
        )
        for reader in self._readers:
            reader.start()

    def say(self, line: str) -> None:
        """Send a line; one that has ended does not hear it."""
        assert self._process.stdin is not None  # PIPE was asked for
        with suppress(OSError, ValueError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def line(self, timeout_s: float) -> str | None:
        """The next line; none where it has ended, or says nothing for so long."""
        try:
            return self._lines.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def end(self, grace_s: float = 2.0) -> Completed:
        """Its exit code and the beginning of its stderr; it is killed if it does not end itself."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        code = self._process.poll()
        if code is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for reader in self._readers:
            reader.join(grace_s)
        text = self._complaint.decode(errors="replace")
        return Completed(self._command, TIMEOUT_CODE if code is None else code, text)

    def _queue_output(self) -> None:
        """Queue what it says, and none at the end."""
        stream = self._process.stdout
        assert stream is not None
        with suppress(OSError, ValueError), stream:
            for _ in range(self._most):
                line = stream.readline(self._longest)
                if not line.endswith(b"\n"):
                    self.flooded = len(line) == self._longest
                    break
                self._lines.put(line[:-1].decode(errors="replace"))
            else:
                self.flooded = True
        self._lines.put(None)

    def _note(self) -> None:
        """Keep the beginning of its stderr, and let the rest pass so that it is never blocked."""
        stream = self._process.stderr
        assert stream is not None
        with suppress(OSError, ValueError), stream:
            while text := stream.readline(self._longest):
                self._complaint += text[: self._longest - len(self._complaint)]


def end_group(process: subprocess.Popen[str], grace_s: float = 5.0) -> None:
    """End a process and its children: SIGTERM, then SIGKILL after `grace_s` seconds."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return
