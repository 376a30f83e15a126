"""Megatron's argument files: blanks part words, wherever the lines are broken."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsforge.findings import Finding
from dsforge.lint.files import Against, checked, read_document, release_named
from dsforge.lint.reading.kind import document_of
from dsforge.lint.rules.megatron import SIZES, WITH_VALUES, known_flags

AGAINST = Against(*release_named(None))
SOUND = (
    ("--num-layers", "24"),
    ("--hidden-size", "1024"),
    ("--num-attention-heads", "16"),
    ("--seq-length", "2048"),
    ("--max-position-embeddings", "2048"),
    ("--micro-batch-size", "4"),
    ("--global-batch-size", "64"),
    ("--lr", "1e-4"),
    ("--data-path", "0.3", "/data/a", "0.7", "'/data/b c'"),
    ("--bf16",),
    ("--train-iters", "1000"),
)
PLAIN = "\n".join(" ".join(row) for row in SOUND)


def found(text: str) -> list[Finding]:
    """What is wrong with a text, read as an argument file."""
    return list(checked(document_of("args.txt", text), AGAINST))


@given(
    st.lists(st.sampled_from([" ", "\n", "  \t", " \\\n  ", "\n\n", "  # why\n"]), min_size=40),
    st.booleans(),
)
def test_line_breaks_mean_nothing(breaks: list[str], equals: bool) -> None:
    """However the words are put on lines, the values are the same, and nothing is wrong."""
    rows = [(f"{row[0]}={row[1]}",) if equals and len(row) == 2 else row for row in SOUND]
    words = [word for row in rows for word in row]
    text = "".join(word + breaks[at % len(breaks)] for at, word in enumerate(words))

    assert document_of("args.txt", text).root == document_of("args.txt", PLAIN).root
    assert [f for f in found(text) if f.severity != "info"] == []


@given(st.randoms(use_true_random=False), st.integers(1, 11))
def test_what_is_wrong_is_found_at_its_word(random: Random, width: int) -> None:
    """A misspelt flag, a size that is none and a flag that comes twice, each where it stands."""
    rows = [*SOUND, ("--num-atention-heads", "16"), ("--seq-length", "x"), ("--bf16",)]
    random.shuffle(rows)
    lines = [rows[at : at + width] for at in range(0, len(rows), width)]
    text = "\n".join(" ".join(" ".join(row) for row in line) for line in lines)
    wrong = {f.rule: f for f in found(text)}

    assert {"megatron-flag-misspelt", "megatron-flag-twice"} <= wrong.keys()
    for finding in wrong.values():
        at = text.split("\n")[finding.line - 1][finding.column - 1 :]
        assert at.startswith("--") or finding.column == 1


@pytest.mark.parametrize("before", ["", "--bf16", "--num-layers 24"])
def test_a_value_without_its_flag_is_refused(before: str) -> None:
    """At the beginning, behind a switch, and behind a flag that has its value."""
    assert "megatron-line" in {f.rule for f in found(f"{before}\n8\n--lr 1\n--seq-length 8")}


@given(st.lists(st.sampled_from(sorted(known_flags())), min_size=5, max_size=9, unique=True))
def test_one_line_is_told_as_many_are(flags: list[str]) -> None:
    """Which kind of file it is does not hang on the line breaks either."""
    long, short = " ".join(flags), "\n".join(flags)

    assert document_of("run.txt", long).kind == document_of("run.txt", short).kind


def test_a_file_in_a_folder_is_read_like_that(tmp_path: Path) -> None:
    """By its name alone."""
    path = tmp_path / "args.txt"
    path.write_text(PLAIN.replace("\n", " "))

    assert [f.rule for f in checked(read_document(path), AGAINST) if f.severity == "error"] == []


SWITCH_LINES = "--no-load-optim\n8\n--bf16\n--lr 1\n--seq-length 8"


@pytest.mark.parametrize("flag", WITH_VALUES)
def test_a_value_on_its_own_line_belongs_to_a_flag_that_is_no_switch(flag: str) -> None:
    """Although its name begins as those of switches do."""
    assert "megatron-line" in {f.rule for f in found(SWITCH_LINES)}
    assert "megatron-line" not in {
        f.rule for f in found(SWITCH_LINES.replace("--no-load-optim", flag))
    }


@given(st.text("0123456789\u00b2\u0663\u2460", min_size=1, max_size=5))
@example("\u00b2")
@example("9" * 5_000)
def test_no_text_of_digits_stops_lint(digits: str) -> None:
    """Signs that Python calls digits and `int` refuses."""
    flags = (*SIZES, "--num-experts", "--train-iters")
    text = "\n".join(f"{flag} {digits}" for flag in flags)

    assert all(f.line <= len(flags) for f in checked(document_of("a", text, "megatron"), AGAINST))


@given(st.lists(st.sampled_from(["a", '"a b"', "0.3", "''"])))
def test_the_values_of_a_flag_are_joined_by_single_blanks(words: list[str]) -> None:
    """Without the quotes, and without words that only are quotes."""
    root = document_of("args.txt", "--data-path " + "  ".join(words), "megatron").root
    bare = [word.strip("'\"") for word in words]

    assert root == {"--data-path": " ".join(filter(None, bare))}
