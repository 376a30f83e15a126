"""Files of checkpoints: regular ones alone, read here and there. Opened as all files from outside.

Symbolic links are followed, as the cache of Hugging Face consists of them; what they lead to must
be a regular file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsforge.errors import DsforgeError
from dsforge.outside import UnreadableError, json_value, opened_file

CHUNK_BYTES = 16 * 1024 * 1024


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a regular file, open for reading. Raises DsforgeError."""
    try:
        with opened_file(path) as descriptor:
            yield descriptor
    except UnreadableError as error:
        raise DsforgeError(f"{path.name} {error.reason}") from error


def size_of(descriptor: int) -> int:
    """Bytes of an open file."""
    return os.fstat(descriptor).st_size


def read_at(descriptor: int, begin: int, count: int) -> bytes:
    """`count` bytes of an open file from `begin`, fewer at its end."""
    parts = []
    while count > 0 and (part := os.pread(descriptor, min(count, CHUNK_BYTES), begin)):
        parts.append(part)
        begin, count = begin + len(part), count - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_json(path: Path, most_bytes: int) -> Any:
    """The value in a JSON file whose keys are unique. Raises DsforgeError."""
    with opened(path) as descriptor:
        if size_of(descriptor) > most_bytes:
            raise DsforgeError(f"{path.name} has more than {most_bytes:,} bytes")
        return parse_json(path.name, read_at(descriptor, 0, most_bytes))


def parse_json(name: str, content: bytes) -> Any:
    """The value of JSON text: UTF-8, unique keys, no NaN or Infinity. Raises DsforgeError."""
    try:
        return json_value(content.decode("utf-8"), unique=True)
    except UnreadableError as error:
        raise DsforgeError(f"{name} {error.reason[:220]}") from error
    except UnicodeDecodeError as error:
        raise DsforgeError(f"{name} is not JSON: it is not UTF-8 text") from error
