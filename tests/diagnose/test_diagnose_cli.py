"""`dsforge diagnose` as a user types it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from plans import plan

from dsforge.cli.main import main

FULL = "OSError: [Errno 28] No space left on device: 'out/model.pt'\n"


def forge(*arguments: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as caught:
        main(["diagnose", *arguments])
    return int(caught.value.code or 0)


def piped(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    """Put a text into the standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_a_fault_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text for people on stdout: cause, place, fix."""
    log = tmp_path / "run.log"
    log.write_text("step 1\n" + FULL)

    code = forge(str(log))

    shown = capsys.readouterr().out
    assert code == 3
    assert "the disk is full (out/model.pt)" in shown
    assert f"{log}:2" in shown


def test_nothing_wrong_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document is there and empty."""
    log = tmp_path / "run.log"
    log.write_text("step 1\n")

    code = forge(str(log), "--json")

    assert code == 0
    assert json.loads(capsys.readouterr().out) == {"causes": []}


def test_the_document_has_the_fields_of_the_contract(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pasted text is read from the standard input; best cause first."""
    piped(monkeypatch, FULL.encode())

    code = forge("--json")

    cause = json.loads(capsys.readouterr().out)["causes"][0]
    assert code == 3
    assert {"rule", "confidence", "message", "evidence", "fix"} <= set(cause)
    assert cause["evidence"] == [{"file": "stdin", "line": 1, "text": FULL.strip()}]


def test_a_log_cannot_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences and control characters of a log are not shown as they are."""
    piped(monkeypatch, b"\x1b]0;title\x07No space left on device \x9b2J\x08\x07\xff\n")

    forge("-")

    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x07", "\x08", "\x9b"}


def test_memory_in_the_terms_of_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--plan` adds the term of the ledger."""
    log, path = tmp_path / "run.log", tmp_path / "plan.json"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    path.write_text(plan().model_dump_json())

    forge(str(log), "--plan", str(path))

    assert "the term is `" in capsys.readouterr().out


def test_rules_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each, a page for one, and a near match for a wrong name."""
    main_code = _quiet("--rules")
    listed = capsys.readouterr().out.splitlines()
    _quiet("--explain", "disk-full")
    page = capsys.readouterr().out
    code = forge("--explain", "disk-ful")

    assert main_code == 0
    assert len(listed) >= 40
    assert "No space left on device" in page
    assert code == 1
    assert "did you mean `disk-full`" in capsys.readouterr().err


def _quiet(*arguments: str) -> int:
    """The exit code of a command that may end without one."""
    try:
        main(["diagnose", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_what_is_no_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, and a pipe among files."""
    assert forge(str(tmp_path / "no.log")) == 1
    assert forge("-", str(tmp_path)) == 1
    assert "does not exist" in capsys.readouterr().err
