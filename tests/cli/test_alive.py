"""Commands that wait say so: a line at least every few seconds, none where it is quick."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsforge.cli.alive import alive
from dsforge.cli.main import app
from dsforge.preflight import collect as collecting

GEN = "gen --model gpt2 --gpu a100-80gb --hostfile hosts --out run"
HOSTS = "10.9.9.1 slots=4\n10.9.9.2 slots=4\n"


@pytest.fixture
def quick_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds as tenths."""
    monkeypatch.setattr("dsforge.train.run.heartbeat.SILENCE_S", 0.3)
    monkeypatch.setattr("dsforge.train.run.heartbeat.LOOK_S", 0.05)


@pytest.mark.usefixtures("quick_beat")
def test_preflight_says_that_hosts_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a login hangs, there is a line on stderr, and the document on stdout is whole."""
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text(HOSTS)
    assert CliRunner().invoke(app, GEN.split()).exit_code == 0
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nsleep 30\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(collecting, "LOGIN_S", 1.5)
    done = CliRunner().invoke(app, ["preflight", "run", "--json"])

    assert re.search(r"^waiting for the hosts, \d+ s$", done.stderr, re.MULTILINE)
    assert done.stdout.startswith("{")
    assert done.stdout.rstrip().endswith("}")


@pytest.mark.usefixtures("quick_beat")
def test_what_is_shown_counts_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The heartbeat speaks into silence alone, and ends with the work."""
    with alive("busy") as beat:
        for _ in range(8):
            time.sleep(0.1)
            beat.spoke()
    time.sleep(0.5)

    assert capsys.readouterr().err == ""


def test_a_quick_command_says_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dsforge import` of a small file."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}')

    assert CliRunner().invoke(app, ["import", "ds.json"]).stderr == ""
