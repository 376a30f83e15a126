"""Rows from anywhere: endless lines, devices, folders that name other files, tables that lie."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dsforge.errors import SpecError
from dsforge.job import TrainJob
from dsforge.specs import DataSpec
from dsforge.train.data import row_files
from dsforge.train.data.conversations import MAX_MESSAGES
from dsforge.train.data.preparation import read_data
from dsforge.train.data.row_files import MAX_ROW_BYTES, data_files
from dsforge.train.data.rows import SHOWN_PROBLEMS, read_rows
from dsforge.train.run.progress import Screen

GOOD = b'{"text": "fine"}\n'
SECONDS = 5.0
ANSWER = {"role": "assistant", "content": "because"}


def rules(path: Path) -> list[str]:
    """The rules of all problems of a file."""
    with pytest.raises(SpecError) as raised:
        read_rows(path, "auto")
    return [problem.rule for problem in raised.value.problems]


def saved(folder: Path, table: pa.Table, *names: str, compression: str | None = None) -> Path:
    """A folder as `datasets` saves it, whose state names some files."""
    folder.mkdir()
    target = str(folder / "data-0.arrow")
    options = pa.ipc.IpcWriteOptions(compression=compression)
    stream = pa.OSFile(target, "wb")
    with stream, pa.ipc.new_stream(stream, table.schema, options=options) as writer:
        writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def sparse(path: Path) -> None:
    """A file of 3 GiB that takes no place."""
    with path.open("wb") as stream:
        stream.truncate(3 << 30)


PLACES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pipe": (os.mkfifo, "data-unreadable"),
    "zero": (lambda path: path.symlink_to("/dev/zero"), "data-unreadable"),
    "loop": (lambda path: path.symlink_to(path.name), "data-missing"),
    "huge": (sparse, "data-binary"),
    "NULs": (lambda path: path.write_bytes(bytes(9)), "data-binary"),
    "UTF-16": (lambda path: path.write_bytes("{}".encode("utf-16")), "data-binary"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_is_no_file_of_rows_is_refused_at_once(
    place: str, suffix: str, tmp_path: Path
) -> None:
    """Nobody waits for a pipe, or reads a device, not even for a checksum."""
    path = tmp_path / f"data{suffix}"
    make, rule = PLACES[place]
    make(path)
    begin = time.monotonic()
    found = rules(path)

    assert found == [rule if suffix == ".jsonl" or rule != "data-binary" else "data-parquet"]
    assert time.monotonic() - begin < SECONDS


def test_the_files_are_looked_at_before_their_check_sum(tmp_path: Path) -> None:
    """A pipe as `data` of a job ends in a message."""
    os.mkfifo(tmp_path / "data.jsonl")
    data = DataSpec(train="data.jsonl")
    job = TrainJob(model="m", deepspeed_config="d.json", data=data, sequence_length=8)
    with pytest.raises(SpecError) as raised:
        read_data(job, tmp_path, Screen(shown=False))

    assert raised.value.problems[0].rule == "data-unreadable"


@pytest.mark.parametrize("end", [b"\n", b""])
def test_an_endless_line_is_one_bad_row_and_is_not_held(end: bytes, tmp_path: Path) -> None:
    """The lines behind it are read as ever."""
    path = tmp_path / "data.jsonl"
    path.write_bytes(GOOD + b'{"text": "' + b"x" * (3 * MAX_ROW_BYTES) + b'"}' + end)
    if end:
        with path.open("ab") as stream:
            stream.write(GOOD)
    bad: list[Any] = []
    rows = read_rows(path, "auto", lambda found: bad.extend(found.first))

    assert [problem.rule for problem in bad] == ["row-size"]
    assert bad[0].place == f"{path}:2"
    assert len(rows) == len([*rows]) == (2 if end else 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"messages": [{"role": [], "content": "a"}]}', "`messages[0].role`"),
        (b'{"messages": [{"role": {}, "content": "a"}]}', "`messages[0].role`"),
        (b'{"text": "\\ud800"}', "unpaired surrogate"),
        (b'{"prompt": "a", "completion": "\\udfff"}', "unpaired surrogate"),
        (json.dumps({"messages": [ANSWER] * (MAX_MESSAGES + 1)}).encode(), "at most 2,000"),
        (b'{"' + b"k" * 100_000 + b'": 1}', "kkk"),
    ],
)
def test_a_strange_row_is_named_in_few_words(line: bytes, words: str, tmp_path: Path) -> None:
    """No kind of value gets past the readers as anything but a bad row."""
    path = tmp_path / "data.jsonl"
    path.write_bytes(GOOD + line + b"\n")
    with pytest.raises(SpecError) as raised:
        read_rows(path, "auto")

    (problem,) = raised.value.problems
    assert words in problem.message
    assert len(str(problem)) < 500 + len(str(path))


def test_only_the_first_bad_rows_are_kept(tmp_path: Path) -> None:
    """A file of bad rows takes no memory for them."""
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"{\n" * 50_000)
    with pytest.raises(SpecError) as raised:
        read_rows(path, "auto")

    assert raised.value.message.startswith("50000 bad rows")
    assert len(raised.value.problems) == SHOWN_PROBLEMS


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "..", "", "a/b", "\x1b"])
def test_a_dataset_names_only_files_in_its_folder(name: str, tmp_path: Path) -> None:
    """`state.json` of a stranger opens nothing outside."""
    folder = saved(tmp_path / "set", pa.table({"text": ["a"]}), "data-0.arrow", name)

    assert rules(folder) == ["data-outside"]


@pytest.mark.parametrize(
    "state", ["", "[]", "{", "3", '{"_data_files": 3}', '{"_data_files": [[]]}', "[" * 99_999]
)
def test_a_broken_state_is_no_dataset(state: str, tmp_path: Path) -> None:
    """Whatever `state.json` holds, a message follows."""
    folder = saved(tmp_path / "set", pa.table({"text": ["a"]}))
    (folder / "state.json").write_text(state)

    assert rules(folder) == ["data-folder"]


def test_a_pipe_as_state_is_no_dataset(tmp_path: Path) -> None:
    """Nor does anybody wait for it."""
    os.mkfifo(tmp_path / "state.json")

    assert rules(tmp_path) == ["data-folder"]


def test_splits_are_named_up_to_a_number(tmp_path: Path) -> None:
    """A folder of a thousand splits does not flood the screen."""
    (tmp_path / "dataset_dict.json").touch()
    for number in range(100):
        (tmp_path / f"s{number}").mkdir()
        (tmp_path / f"s{number}" / "state.json").touch()
    with pytest.raises(SpecError) as raised:
        data_files(tmp_path)

    assert raised.value.problems[0].hint.count(",") < row_files.SHOWN_SPLITS


def test_a_saved_dataset_is_read(tmp_path: Path) -> None:
    """The good one still is."""
    folder = saved(tmp_path / "set", pa.table({"text": ["a", "b"]}), "data-0.arrow")

    assert [row.text for row in read_rows(folder, "auto")] == ["a", "b"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_table_of_endless_rows_is_refused(kind: str, tmp_path: Path) -> None:
    """A hundred million rows of nothing fit in a few hundred bytes."""
    table = pa.table({"id": pa.nulls(100_000_000)})
    path = tmp_path / "data.parquet"
    if kind == "arrow":
        path = saved(tmp_path / "set", table, "data-0.arrow")
    else:
        parquet.write_table(table, path, row_group_size=100_000_000)
    begin = time.monotonic()

    assert rules(path) == ["data-rows"]
    assert time.monotonic() - begin < SECONDS


def test_an_arrow_file_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    """Offsets out of range would read the memory behind the file, or end the process."""
    folder = saved(tmp_path / "set", pa.table({"text": ["a" * 7, "b" * 9]}), "data-0.arrow")
    file = folder / "data-0.arrow"
    offsets = b"".join(number.to_bytes(4, "little") for number in (0, 7, 16))
    wrong = b"".join(number.to_bytes(4, "little") for number in (0, 7, 1 << 30))
    content = file.read_bytes()
    assert content.count(offsets) == 1
    file.write_bytes(content.replace(offsets, wrong))

    assert rules(folder) == ["data-arrow"]
