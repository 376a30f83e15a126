"""Where logs come from: files, folders of them, a stream, a text at hand."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from traceback import format_exception

from dsforge.diagnose.ranking import Cause, causes
from dsforge.diagnose.registry import RULES
from dsforge.diagnose.scan import Scan, scan
from dsforge.errors import DsforgeError

CHUNK_BYTES = 1 << 20
MOST_FILES = 512
ENDINGS = (".log", ".txt", ".out", ".err", "stdout", "stderr")


def diagnose_text(text: str, name: str = "log") -> tuple[Cause, ...]:
    """The causes that a text shows, likeliest first; empty where nothing is wrong."""
    return diagnose_stream([text.encode("utf-8", "replace")], name)


def diagnose_error(error: BaseException) -> tuple[Cause, ...]:
    """The causes that a Python exception and its traceback show."""
    return diagnose_text("".join(format_exception(error)), "traceback")


def diagnose_stream(chunks: Iterable[bytes], name: str) -> tuple[Cause, ...]:
    """The causes that a stream of bytes shows; memory does not grow with its length."""
    return causes([scan(chunks, name, RULES)], RULES)


def diagnose_files(paths: Sequence[Path]) -> tuple[Cause, ...]:
    """The causes that the logs of one run show together; folders stand for the logs in them.

    Raises DsforgeError where a path is not there, holds no log, or cannot be read.
    """
    files = [file for path in paths for file in _logs(path)]
    return causes([_scanned(file) for file in dict.fromkeys(files)], RULES)


def _scanned(path: Path) -> Scan:
    try:
        return scan(_chunks(path), str(path), RULES)
    except OSError as error:
        raise DsforgeError(f"{path} cannot be read: {error.strerror}") from error


def _chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a regular file, a part at a time."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe would wait for ever
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DsforgeError(f"{path} is not a regular file", "pipe it in: dsforge diagnose -")
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _logs(path: Path) -> list[Path]:
    """The logs that a path stands for: itself, or those of the folder and its folders."""
    if not path.exists():
        raise DsforgeError(f"{path} does not exist", "give a log file, a folder of logs, or -")
    if not path.is_dir():
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder, name) for name in sorted(names) if name.endswith(ENDINGS)]
        if len(found) > MOST_FILES:
            raise DsforgeError(f"{path} has more than {MOST_FILES} logs", "name those of one run")
    logs = [file for file in found if file.is_file()]
    if not logs:
        raise DsforgeError(f"{path} has no log (*.log, *.txt, *.out, *.err, stdout, stderr)")
    return logs
