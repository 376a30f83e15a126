"""How bad input is tried: through the real command line, in a folder that holds an older run.

One readable message, exit code 1 or 2, nothing written. An exception that is none of ours escapes
`main` and fails the test as a traceback would fail a user.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsforge.cli.main import main
from dsforge.errors import EXIT_USAGE, EXIT_USER

OLD = "an older plan\n"
LONGEST_MESSAGE = 12_000  # characters: some fifty problems

Refused = Callable[..., str]


@pytest.fixture
def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Refused:
    """Runs a command line that must fail, checks how it fails; its message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_text(OLD)

    def fail(*arguments: str) -> str:
        capsys.readouterr()
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        with pytest.raises(SystemExit) as caught:
            main(["gen", *arguments, "--out", str(run)])
        out, err = capsys.readouterr()
        assert caught.value.code in (EXIT_USER, EXIT_USAGE)
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        assert not out
        assert 0 < len(err) < LONGEST_MESSAGE
        assert "Traceback" not in err
        assert all(character.isprintable() or character == "\n" for character in err)
        return err

    return fail
