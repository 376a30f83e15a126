"""Tables that become more than they hold: Parquet and Arrow files of a few kB, and healthy ones."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from test_train_strange_rows import ANSWER, rules, saved

from dsforge.train.data import row_files
from dsforge.train.data.row_files import MOST_ROW_BYTES
from dsforge.train.data.rows import read_rows
from dsforge.train.data.table_reader import MEMORY_BYTES


def wide(rows: int, mib: int = 15) -> pa.Table:
    """Rows of one text of many equal letters."""
    return pa.table({"text": pa.chunked_array([pa.array(["a" * (mib << 20)])] * rows)})


def nested() -> pa.Table:
    """One row of a list of 100 million nothings."""
    values = pa.nulls(100_000_000)
    return pa.table({"messages": pa.ListArray.from_arrays(pa.array([0, len(values)]), values)})


def repeated() -> pa.Table:
    """256 rows that are the same entry of a dictionary of 15 MiB."""
    entry = pa.array(["a" * (15 << 20)])
    codes = pa.array([0] * 256, pa.int8())
    return pa.table({"text": pa.DictionaryArray.from_arrays(codes, entry)})


ZSTD = {"compression": "zstd", "row_group_size": 10**6}
WIDE = {**ZSTD, "use_dictionary": False}
BOMBS: dict[str, tuple[Callable[[], pa.Table], dict[str, Any]]] = {
    "pages": (lambda: wide(80), WIDE),
    "dictionary": (lambda: wide(80), {**ZSTD, "dictionary_pagesize_limit": 1 << 30}),
    "prefixes": (lambda: wide(80), {**WIDE, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}),
    "list": (nested, ZSTD),
    "many-small": (lambda: pa.table({"text": pa.array(["a" * 1000] * 1_000_000)}), ZSTD),
}
MEASURED = """
import resource, sys, time
from pathlib import Path
from dsforge.errors import SpecError
from dsforge.train.data.rows import read_rows
begin, rule = time.monotonic(), ""
try:
    read_rows(Path(sys.argv[1]), "auto")
except SpecError as error:
    rule = error.problems[0].rule
status = Path("/proc/self/status").read_text()
own = int(status.partition("VmHWM:")[2].split()[0])
most = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(rule, time.monotonic() - begin, most >> 10)
"""


def is_refused_cheaply(path: Path) -> None:
    """A process of its own refuses a file within seconds and a gigabyte."""
    said = subprocess.check_output([sys.executable, "-c", MEASURED, str(path)], text=True)
    rule, took_s, most_mib = said.split()

    assert rule == "data-size"
    assert float(took_s) < 10
    assert int(most_mib) < 1000


@pytest.mark.parametrize("name", [*BOMBS, pytest.param("one-page", marks=pytest.mark.slow)])
def test_a_parquet_file_that_becomes_gigabytes_is_refused(name: str, tmp_path: Path) -> None:
    """By compressed pages, a shared dictionary, shared prefixes, lists of nothing."""
    make, options = BOMBS.get(name, (lambda: wide(1, 800), WIDE))
    path = tmp_path / "data.parquet"
    parquet.write_table(make(), path, **options)
    assert path.stat().st_size < 1 << 20

    is_refused_cheaply(path)


@pytest.mark.parametrize("make", [lambda: wide(80).combine_chunks(), repeated, nested])
def test_an_arrow_file_that_becomes_gigabytes_is_refused(
    make: Callable[[], pa.Table], tmp_path: Path
) -> None:
    """By compressed buffers, a shared dictionary, lists of nothing."""
    folder = saved(tmp_path / "set", make(), "data-0.arrow", compression="zstd")
    assert (folder / "data-0.arrow").stat().st_size < 1 << 20

    is_refused_cheaply(folder)


@pytest.mark.slow
def test_a_healthy_row_group_is_not_held(tmp_path: Path) -> None:
    """A row group of more bytes than the process may have: it is read page by page."""
    path = tmp_path / "data.parquet"
    text = os.urandom(50_000).hex()  # nothing to compress
    parts = (pa.table({"text": [f"{number} {text}" for number in range(100)]}) for _ in range(90))
    parquet.write_table(pa.concat_tables(parts), path, row_group_size=10**6, use_dictionary=False)
    assert parquet.ParquetFile(path).metadata.num_row_groups == 1
    assert path.stat().st_size > MEMORY_BYTES

    assert len(read_rows(path, "auto")) == 9_000


def test_tables_are_read_as_lines_are(tmp_path: Path) -> None:
    """The same rows, whatever holds them: order, characters, nesting, values that are no text."""
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": f"\u2264 {n}\n"}, ANSWER]} for n in range(700)
    ]
    rows[3]["messages"] = None
    lines = tmp_path / "data.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    folder = saved(tmp_path / "set", pa.Table.from_pylist(rows), "data-0.arrow")
    found = []
    for path in (lines, tmp_path / "data.parquet", folder):
        bad: list[Any] = []
        read = read_rows(path, "auto", lambda problems, bad=bad: bad.extend(problems.first))
        found.append(([row.messages for row in read], [problem.message for problem in bad]))

    assert len(found[0][0]) == 699
    assert found[0] == found[1] == found[2]


def test_bytes_are_no_text(tmp_path: Path) -> None:
    """Nor is a date; the row is bad, and not the file."""
    for number, value in enumerate((b"bytes", dt.date(2026, 1, 2), float("nan"))):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pa.table({"text": [value]}), path)

        assert rules(path) == ["row-field"]


def test_a_row_of_a_table_has_the_limit_of_a_line(tmp_path: Path) -> None:
    """The others are read."""
    path = tmp_path / "data.parquet"
    texts = ["a", "\u00fc" * (MOST_ROW_BYTES // 2), "b"]
    parquet.write_table(pa.table({"text": texts}), path)
    bad: list[Any] = []
    rows = read_rows(path, "auto", lambda found: bad.extend(found.first))

    assert [problem.rule for problem in bad] == ["row-size"]
    assert [row.text for row in rows] == ["a", "b"]


def test_rows_that_nobody_reads_on_leave_no_process(tmp_path: Path) -> None:
    """A reader that stops early ends the process that reads the table."""
    path = tmp_path / "data.parquet"
    parquet.write_table(pa.table({"text": ["x" * 1000] * 5000}), path)
    values = row_files.row_values(path)
    next(values)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text().split()
    values.close()  # type: ignore[attr-defined]

    assert len(children.read_text().split()) == len(before) - 1
