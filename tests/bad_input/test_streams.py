"""Terminals that are not there, or speak another encoding: an answer or silence, no traceback."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = ("--model", "llama-2-7b", "--gpu", "a100-80gb")
COMMANDS: dict[str, tuple[str, ...]] = {
    "plan": ("plan", *MODEL),
    "refusal": ("plan", "--model", "Gr\u00fc\u00dfe \u4f60\u597d"),
    "lint": ("lint", "ds_config.json"),
    "diagnose": ("diagnose", "run.log"),
    "help": ("--help",),
}
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "UTF-16": {"PYTHONIOENCODING": "utf-16"},
    "ASCII": {"PYTHONIOENCODING": "ascii"},
    "latin": {"PYTHONIOENCODING": "latin-1:strict", "PYTHONUTF8": "0"},
    "no such LANG": {"LANG": "xx_YY.nonsense", "LC_ALL": "xx_YY.nonsense", "PYTHONUTF8": "0"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no terminal": {"TERM": "\x1b[2J", "COLUMNS": "-7"},
}
STREAMS = {"out": ">&-", "err": "2>&-", "both": ">&- 2>&-", "all": "<&- >&- 2>&-", "in": "<&-"}


def ended(words: tuple[str, ...], tail: str, folder: Path, **changes: str) -> tuple[int, str]:
    """Exit code and output of a command in a shell, with its streams as told."""
    (folder / "ds_config.json").write_text('{"train_batch_size": 8, "\u00fc": 1}')
    (folder / "run.log").write_text("RuntimeError: CUDA out of memory \u4f60\n")
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {tail}', "sh", sys.executable, "-m", "dsforge", *words],
        cwd=folder,
        env={**os.environ, **changes},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).replace(b"\0", b"").decode(errors="replace")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_any_encoding_will_do(command: str, environment: str, tmp_path: Path) -> None:
    """What cannot be written in it is written as something else."""
    code, said = ended(COMMANDS[command], "", tmp_path, **ENVIRONMENTS[environment])

    assert code in (0, 1, 2, 3)
    assert said
    assert "Traceback" not in said
    assert "Error:" not in said.replace("RuntimeError:", "")


@pytest.mark.parametrize("command", ["plan", "refusal", "lint"])
@pytest.mark.parametrize("streams", STREAMS)
def test_streams_that_are_closed_are_not_missed(command: str, streams: str, tmp_path: Path) -> None:
    """As under cron and in daemons."""
    code, said = ended(COMMANDS[command], STREAMS[streams], tmp_path)

    assert code in (0, 1, 2, 3)
    assert "Traceback" not in said
    assert "Bad file descriptor" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("tail", [">/dev/full", "2>/dev/full", ">/dev/full 2>&1"])
def test_a_full_disk_behind_the_output_is_no_traceback(tail: str, tmp_path: Path) -> None:
    """And what did not get out is not called done."""
    code, said = ended(COMMANDS["plan"], tail, tmp_path)

    assert "Traceback" not in said
    assert (code != 0) == tail.startswith(">")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "words",
    [
        ("plan", *MODEL, "--verbose"),
        ("estimate", *MODEL, "--verbose"),
        ("gen", *MODEL, "--out", "run"),
        ("explain", "run"),
        ("explain", "run", "mfu"),
        ("explain", "run", "nosuch"),
        ("catalog", "models"),
        ("lint", "run"),
    ],
    ids=" ".join,
)
def test_a_reader_that_has_seen_enough_is_no_traceback(
    words: tuple[str, ...], unbuffered: str, tmp_path: Path
) -> None:
    """`| head -1`, and `| head -0`, which reads nothing."""
    if words[-1] != "--out" and "run" in words[1:2]:
        ended(("gen", *MODEL, "--out", "run"), "", tmp_path)
    for lines in (0, 1):
        _, said = ended(words, f"| head -{lines}", tmp_path, PYTHONUNBUFFERED=unbuffered)

        assert "Traceback" not in said
        assert "BrokenPipe" not in said


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_errors_have_colours_on_a_terminal_that_wants_them(no_color: str, coloured: bool) -> None:
    """NO_COLOR (no-color.org) is obeyed where it is not empty."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "dsforge", *COMMANDS["refusal"]],
        env={**os.environ, "NO_COLOR": no_color},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode(errors="replace")
    os.close(ours)

    assert done.returncode == 1
    assert ("\033[31m" in said) == coloured
