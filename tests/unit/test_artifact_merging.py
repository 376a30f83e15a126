"""Edits of a person and a new generation of a file: both are kept, or nothing is written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsforge.artifacts import Artifact, write_all
from dsforge.errors import EditedError

NAME = "PLAN.md"
LINES = st.lists(st.sampled_from("abcdef"), max_size=12)


def artifact(lines: list[str], name: str = NAME) -> Artifact:
    """A file with these lines."""
    return Artifact(name, "".join(f"{line}\n" for line in lines))


@settings(deadline=None)  # it writes files
@given(base=LINES, edit=LINES, new=LINES)
def test_edits_are_kept_or_nothing_is_written(
    base: list[str], edit: list[str], new: list[str]
) -> None:
    """Whatever was edited and generated; what was merged once stays as it is next time."""
    old, mine, now = artifact(base), artifact(edit), artifact(new)
    with TemporaryDirectory() as folder:
        path = Path(folder, NAME)
        write_all((old,), Path(folder))
        path.write_text(mine.text)
        try:
            written = write_all((now,), Path(folder), bases={NAME: old.text})
        except EditedError:
            assert path.read_text() == mine.text
            assert mine.text not in (old.text, now.text)
            return
        kept = path.read_text()
        if mine.text == old.text:
            assert kept == now.text
        if now.text == old.text:
            assert kept == mine.text
        again = write_all((now,), Path(folder), bases={NAME: now.text})
        assert path.read_text() == kept
        assert again.merged == written.merged


def test_without_a_base_edits_are_refused() -> None:
    """The text of the last generation is needed, and believed by its checksum alone."""
    for bases in ({}, {NAME: "forged\n"}):
        with TemporaryDirectory() as folder:
            write_all((artifact(["a"]),), Path(folder))
            Path(folder, NAME).write_text("mine\na\n")
            with pytest.raises(EditedError):
                write_all((artifact(["a", "b"]),), Path(folder), bases=bases)


def test_a_merge_that_is_no_json_any_more_is_refused() -> None:
    """Lines that fit can still break the file: the same key twice."""
    name = "plan.json"
    old = Artifact(name, '{\n"a": 1,\n"b": 2,\n"c": 3\n}\n')
    now = Artifact(name, '{\n"a": 1,\n"b": 2,\n"d": 4,\n"c": 3\n}\n')
    with TemporaryDirectory() as folder:
        write_all((old,), Path(folder))
        Path(folder, name).write_text('{\n"d": 5,\n"a": 1,\n"b": 2,\n"c": 3\n}\n')
        with pytest.raises(EditedError):
            write_all((now,), Path(folder), bases={name: old.text})
