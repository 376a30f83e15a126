"""The entry for launchers: what it takes, and what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsforge.train.__main__ import main


@pytest.mark.parametrize(
    "steps", ["0", "-1", "\uff11\uff12", "1_000", "9" * 5000, "1e3", "", " 3", "\u0663", "1\x1b[2J"]
)
def test_steps_are_written_in_digits(
    steps: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no number of steps is refused in a line."""
    monkeypatch.setattr(sys, "argv", ["dsforge.train", "train.yaml", f"--steps={steps}"])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr().err

    assert caught.value.code == 2
    assert "must be a whole number of at least 1" in said
    assert "\x1b" not in said
    assert len(said) < 1500


def test_what_a_file_says_does_not_drive_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An escape sequence as a key of train.yaml is shown harmlessly."""
    job = tmp_path / "train.yaml"
    job.write_text('"\\e]0;owned\\a": 1\n')
    monkeypatch.setattr(sys, "argv", ["dsforge.train", str(job)])

    assert main() == 1
    assert "\x1b" not in capsys.readouterr().err
