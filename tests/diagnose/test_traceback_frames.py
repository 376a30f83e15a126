"""Frames are told in every form in which people paste them, and by nothing else."""

from __future__ import annotations

import sys
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.diagnose.traceback_frames import (
    begins_traceback,
    frames,
    heading_exception,
    holds_traceback,
    is_frame,
    last_traceback,
    names_frame,
)

NOTEBOOK = "RuntimeError                              Traceback (most recent call last)"


def raised() -> str:
    """What Python prints of an error."""
    try:
        int("x")
    except ValueError:
        return "".join(traceback.format_exception(*sys.exc_info()))
    raise AssertionError


def test_frames_that_python_prints_are_read() -> None:
    """The place of each, and which lines are frames."""
    text = raised()
    lines = text.splitlines()

    assert begins_traceback(lines[0])
    assert [is_frame(line) for line in lines[:2]] == [False, True]
    assert [(frame.file, frame.function) for frame in frames(text)] == [(__file__, "raised")]
    assert str(frames(text)[0]).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('  File "/w/train.py", line 9, in main', "/w/train.py:9 in main"),
        ('  File "C:\\w\\train.py", line 9', "C:\\w\\train.py:9"),
        ("/w/train.py in main(args)", "/w/train.py in main"),
        ("[/w/train.py](https://localhost:8080/#) in main(args)", "/w/train.py in main"),
        ("File /w/train.py:9, in main(args)", "/w/train.py:9 in main"),
    ],
)
def test_forms_of_frames(line: str, place: str) -> None:
    """Python's own, without a function, of notebooks old and new."""
    assert [str(frame) for frame in frames(line)] == [place]
    assert names_frame(line)
    assert holds_traceback(f"before\n{line}\nafter")


@pytest.mark.parametrize(
    "line", ["see the docs in train.md", "loss 2.3 in step 9", "Profile x", 'open("a.py")']
)
def test_other_lines_are_no_frames(line: str) -> None:
    """Prose and code."""
    told = [tells(line) for tells in (is_frame, names_frame, frames, holds_traceback)]

    assert not any(told)


def test_a_notebook_names_the_exception_above_the_frames() -> None:
    """Its message stands below them, and is often cut off."""
    assert begins_traceback(NOTEBOOK)
    assert heading_exception(NOTEBOOK) == "RuntimeError"
    assert heading_exception("RuntimeError: no") == ""


@given(st.text(max_size=200), st.text(max_size=200))
def test_only_the_last_traceback_counts(before: str, after: str) -> None:
    """Whatever stands before its heading."""
    heading = "Traceback (most recent call last):"

    assert last_traceback(f"{before}{heading}\n{after}") in (f":\n{after}", last_traceback(after))
