"""What messages of compilers, of Arrow and of registries are read for."""

from __future__ import annotations

import pytest

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.compiler_errors import first_error
from dsforge.diagnose.data_schemas import columns_of, keys_of


@pytest.mark.parametrize(
    ("line", "home", "about"),
    [
        ('csrc/a.cu(35): error: identifier "at::zeros2" is undefined', "package", "torch"),
        ("/usr/include/c++/11/tuple:495:24: error: wrong number", "host", "other"),
        ("/v/site-packages/torch/include/c10/a.h(12): error: expected", "torch", "other"),
        ("/v/torch/include/pybind11/cast.h:2108:44: error: no matching", "pybind", "other"),
        ("C:\\src\\nms.cpp(40): error C2065: 'uint': undeclared", "package", "windows"),
        ("_g.c:22:1: error: 'PyThreadState' has no member named 'frame'", "package", "python"),
    ],
)
def test_the_first_error_of_a_compiler_is_read(line: str, home: str, about: str) -> None:
    """Whose file it stands in, and which names it has."""
    found = first_error(f"[1/2] nvcc -c a.cu\n{line}\nninja: build stopped")

    assert (found["home"], found["about"]) == (home, about)


def test_no_error_of_a_compiler_is_invented() -> None:
    """A line of a log that only mentions an error is none."""
    assert first_error("loss: error rate 0.3\nstep 3: no error")["said"] == ""


def test_keys_and_columns_are_read_in_both_ways_of_writing_types() -> None:
    """Only those of the outermost structure; none of a type that was cut."""
    assert keys_of("struct<role: string, ids: list<item: struct<a: int64>>>") == {"role", "ids"}
    assert keys_of("{'role': Value('string'), 'ids': List({'a': Value('int64')})}") == {
        "role",
        "ids",
    }
    assert keys_of("struct<role: string, ...") == set()
    assert columns_of("id: string\nrows: list<item: string>\n  child 0, item: string\n") == {
        "id",
        "rows",
    }


def test_the_nearest_name_is_offered() -> None:
    """A misspelt name is answered with the one that was meant."""
    cause = diagnose_text("ValueError: Unknown loss 'sigmiod', choose from ['hinge', 'sigmoid']")[0]

    assert cause.rule == "name-unknown"
    assert "`sigmoid`" in cause.message
