"""Rows of Parquet and Arrow files as lines of JSON, read in a separate process that may crash.

A page of 2 kB can ask for gigabytes, and so can a dictionary, a list or a prefix that is shared: no
size that such a file states bounds what it becomes. So a process of its own turns it into lines,
with limits on memory and time, and whatever ends that process becomes a message here.

The process runs `main`; only what is installed, or this checkout, is imported there.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsforge.errors import RunError
from dsforge.process import TIMEOUT_CODE, parts

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["parquet", "arrow"]
COLUMNS = ("text", "prompt", "completion", "messages")
MEMORY_BYTES = 768 << 20  # of the process, its libraries included
ROW_LIMIT_S = 60.0  # with a process that says nothing
MAX_ROWS_PER_BYTE = 16  # of a file; more are no data but an attack on time
MAX_PER_BYTE, FREE_BYTES = 1_000, 64 << 20  # text for a byte of a file, and for none
MAX_ROWS, BATCH_BYTES = 256, 32 << 20  # that become Python values at a time, as far as is known
MAX_ELEMENTS = 20_000_000  # values in a batch of rows, nested ones too
PAGE_BYTES = 1 << 20
ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
PROGRAM = """\
import sys
sys.path.append(sys.argv.pop(1))
from dsforge.train.data.table_reader import main
sys.exit(main())
"""
REFUSED, NO_TABLE = 3, 4  # exit codes


class TableError(Exception):
    """Not a table (`arrow`, `parquet`), or one that asks for too much (`rows`, `size`)."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def lines(kind: Kind, files: Iterable[Path], most_bytes: int) -> Iterator[bytes]:
    """The rows of tables as JSON, one after the other; empty where one has more than `most_bytes`.

    Raises TableError.
    """
    words = (str(most_bytes), kind, *(str(file.absolute()) for file in files))
    command = (sys.executable, "-P", "-c", PROGRAM, str(Path(__file__).parents[2]), *words)
    held = bytearray()
    try:
        for part in parts(command, patience_s=ROW_LIMIT_S, environment=ENVIRONMENT):
            held += part
            if b"\n" in part:
                *whole, rest = held.split(b"\n")
                yield from map(bytes, whole)
                held = bytearray(rest)
    except RunError as error:
        raise _failure(kind, error) from error


def _failure(kind: Kind, error: RunError) -> TableError:
    """What the end of the process means."""
    last = (error.tail.splitlines() or [""])[-1]
    if error.code == REFUSED:
        rule, _, message = last.partition(" ")
        return TableError(rule, message[:300])
    if error.code == NO_TABLE:
        form = "a Parquet file" if kind == "parquet" else "an Arrow stream"
        return TableError(kind, f"is not {form}: {last[:200]}")
    if error.code == TIMEOUT_CODE:
        return TableError("size", f"takes more than {ROW_LIMIT_S:g} s for a row")
    return TableError(kind, f"crashes the process that reads it ({last[:200] or error.code})")


def main() -> int:
    """Write each row of the files that the command line names."""
    most_bytes, kind, *files = sys.argv[1:]
    with suppress(ValueError, OSError):  # a lower limit is there already
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pyarrow as pa

    pa.set_cpu_count(1)
    try:
        for file in map(Path, files):
            _write(file, kind, int(most_bytes))
        sys.stdout.flush()
    except TableError as error:
        return _ended(REFUSED, f"{error.rule} {error}")
    except MemoryError:  # of Arrow, too
        return _ended(REFUSED, f"size needs more than {MEMORY_BYTES >> 20} MiB to be read")
    except (pa.ArrowException, OSError, ValueError) as error:
        return _ended(NO_TABLE, str(error).partition("\n")[0])
    return 0


def _ended(code: int, message: str) -> int:
    """The exit code, after the rows that came before and a word on the end."""
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.write(f"{message}\n")
    return code


def _write(file: Path, kind: str, most_bytes: int) -> None:
    """Write the rows of a file. Raises TableError where it holds far more than it has bytes."""
    size = file.stat().st_size
    rows, room = MAX_ROWS_PER_BYTE * size, MAX_PER_BYTE * size + FREE_BYTES
    for batch in (_parquet if kind == "parquet" else _arrow)(file, rows):
        rows -= batch.num_rows
        _check_rows(rows)
        for value in _values(batch):
            line = json.dumps(value, ensure_ascii=False, default=_unknown).encode()
            room -= len(line)
            if room < 0:
                raise TableError(
                    "size", f"has more than {MAX_PER_BYTE:,} bytes per byte of the file"
                )
            sys.stdout.buffer.write((line if len(line) <= most_bytes else b"") + b"\n")


def _unknown(value: Any) -> dict[str, str]:
    """What stands for a value that JSON has not: no text."""
    return {"type": type(value).__name__}


def _check_rows(left: int) -> None:
    if left < 0:
        raise TableError("rows", f"has more than {MAX_ROWS_PER_BYTE} rows per byte")


def _parquet(path: Path, rows: int) -> Iterator[pa.RecordBatch]:
    """The batches of a Parquet file, each of about as many bytes."""
    from pyarrow import parquet

    # Read in pieces, and no column ahead: row groups of healthy files have gigabytes.
    with parquet.ParquetFile(path, buffer_size=PAGE_BYTES, pre_buffer=False) as file:
        data = file.metadata
        _check_rows(rows - data.num_rows)
        total = sum(data.row_group(number).total_byte_size for number in range(data.num_row_groups))
        fitting = BATCH_BYTES * max(1, data.num_rows) // max(1, total)
        count = min(max(1, fitting), MAX_ROWS)
        names = [name for name in COLUMNS if name in file.schema_arrow.names] or None
        yield from file.iter_batches(count, columns=names, use_threads=False)


def _arrow(path: Path, _: int) -> Iterator[pa.RecordBatch]:
    """The batches of a stream that `datasets` wrote."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        yield from pa.ipc.open_stream(source)


def _values(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch as Python values; what does not fit together raises ArrowInvalid."""
    if sum(map(_elements, batch.columns)) > MAX_ELEMENTS:
        raise TableError("size", f"has more than {MAX_ELEMENTS:,} values in one batch of rows")
    batch.validate(full=True)  # offsets out of range would read somebody else's memory
    fitting = BATCH_BYTES * max(1, batch.num_rows) // max(1, batch.nbytes)
    count = min(max(1, fitting), MAX_ROWS)
    for begin in range(0, batch.num_rows, count):
        yield from batch.slice(begin, count).to_pylist()


def _elements(array: pa.Array) -> int:
    """The values of an array, nested ones too: a file may state many and store none."""
    import pyarrow as pa

    kind = array.type
    if isinstance(array, pa.StructArray):
        return len(array) + sum(_elements(array.field(i)) for i in range(kind.num_fields))
    nested = isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray)
    return len(array) + (_elements(array.values) if nested or pa.types.is_map(kind) else 0)
