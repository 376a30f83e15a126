"""`dsforge.train.attend` with small programs as launcher and ranks; tests/launch has real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dsforge.train.run.process_tree import living

TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
LIMIT_S = 30
RANK = """
import os, signal, sys, time
from pathlib import Path
def end(number, frame):
    Path(f"told-{os.getpid()}").touch()
    if "deaf" not in sys.argv:
        sys.exit(int(os.environ.get("CODE", "0")))
signal.signal(signal.SIGTERM, end)
Path(f"rank-{os.getpid()}").touch()
while True:
    time.sleep(0.1)
"""
LAUNCHER = """#!/bin/sh
echo $$ >launcher
LOCAL_RANK=0 "$PYTHON" rank.py dsforge.train "$@" &
LOCAL_RANK=1 "$PYTHON" rank.py dsforge.train "$@" &
code=0
for rank in 1 2; do wait %$rank || code=$?; done
exit $code
"""


class Started:
    """An attended launch in a folder."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        (folder / "rank.py").write_text(RANK)
        launcher = folder / "launcher.sh"
        launcher.write_text(LAUNCHER)
        launcher.chmod(0o755)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dsforge.train.attend", str(launcher), *words],
            cwd=folder,
            env={**os.environ, "PYTHON": sys.executable, "PYTHONSAFEPATH": "1", **variables},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def pids(self, kind: str) -> list[int]:
        """The processes that have left a mark."""
        return [int(path.name.split("-")[1]) for path in self.folder.glob(f"{kind}-*")]

    def living_ranks(self) -> list[int]:
        """The ranks that have not ended."""
        return [pid for pid in self.pids("rank") if living(pid)]

    def begun(self) -> Started:
        """Itself, once both ranks run."""
        wait_until(lambda: len(self.pids("rank")) == 2)
        return self

    def code(self) -> int:
        """The exit code."""
        return self.process.wait(LIMIT_S)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when something is so."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts launches in a folder; what is left of them is ended."""
    made: list[Started] = []

    def starting(*words: str, **variables: str) -> Started:
        made.append(Started(tmp_path, *words, **variables))
        return made[-1]

    yield starting
    for launch in made:
        launch.process.kill()
        for pid in launch.living_ranks():  # they hold its pipes
            with suppress(OSError):
                os.kill(pid, KILL)
        launch.process.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize(("number", "code"), [(TERM, 0), (INT, 130), (HUP, 0)])
def test_ranks_hear_a_signal_and_the_launcher_ends_after_them(
    number: int, code: int, start: Callable[..., Started]
) -> None:
    """The launcher itself is not signalled; the code says what was asked for."""
    launch = start().begun()
    launch.process.send_signal(number)

    assert launch.code() == code
    assert sorted(launch.pids("told")) == sorted(launch.pids("rank"))
    assert launch.living_ranks() == []


@pytest.mark.parametrize(("number", "code"), [(TERM, 143), (INT, 130), (HUP, 129)])
def test_ranks_that_save_nothing_show_in_the_code(
    number: int, code: int, start: Callable[..., Started]
) -> None:
    """Before the first step a rank ends with 143; a person sees the signal that was sent."""
    launch = start(CODE="143").begun()
    launch.process.send_signal(number)

    assert launch.code() == code


def test_a_save_that_fails_after_a_signal_shows_in_the_code(start: Callable[..., Started]) -> None:
    """The code of the ranks, not that of a good end."""
    launch = start(CODE="1").begun()
    launch.process.send_signal(TERM)

    assert launch.code() == 1


def test_a_second_signal_ends_at_once(start: Callable[..., Started]) -> None:
    """Ranks that do not end are killed."""
    launch = start("deaf").begun()
    launch.process.send_signal(INT)
    wait_until(lambda: len(launch.pids("told")) == 2)
    launch.process.send_signal(INT)

    assert launch.code() == 130
    assert launch.living_ranks() == []


def test_time_for_the_save_is_limited(start: Callable[..., Started]) -> None:
    """After DSFORGE_GRACE_S the ranks are killed."""
    launch = start("deaf", DSFORGE_GRACE_S="1").begun()
    begin = time.monotonic()
    launch.process.send_signal(TERM)

    assert launch.code() == 143
    assert time.monotonic() - begin >= 1
    assert launch.living_ranks() == []


def test_ranks_hear_that_the_script_was_killed(start: Callable[..., Started]) -> None:
    """Nobody waits for them any more; they save and end."""
    launch = start().begun()
    launch.process.kill()
    wait_until(lambda: not launch.living_ranks())

    assert len(launch.pids("told")) == 2


def test_ranks_hear_that_the_launcher_was_killed(start: Callable[..., Started]) -> None:
    """The code is that of the kill, and comes after the ranks have ended."""
    launch = start().begun()
    os.kill(int((launch.folder / "launcher").read_text()), KILL)

    assert launch.code() == 137
    assert launch.living_ranks() == []
    assert len(launch.pids("told")) == 2


def test_a_signal_before_there_are_ranks_ends_the_launcher(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    """Ranks that begin all the same are told."""
    launch = start()
    wait_until((tmp_path / "launcher").exists)
    launch.process.send_signal(TERM)

    assert launch.code() in (0, 143)
    wait_until(lambda: not launch.living_ranks())


@pytest.mark.parametrize("number", [TERM, KILL])
def test_a_launch_in_the_same_folder_is_let_alone(
    number: int, start: Callable[..., Started], tmp_path: Path
) -> None:
    """A script that was ended and started again at once: the first ends its own ranks only."""
    first = start().begun()
    old = set(first.pids("rank"))
    second = start()
    wait_until(lambda: len(second.pids("rank")) == 4)
    first.process.send_signal(number)
    wait_until(lambda: set(first.pids("told")) == old)
    wait_until(lambda: not old & set(first.living_ranks()))
    time.sleep(1.5)

    assert set(second.living_ranks()) == set(second.pids("rank")) - old
    assert second.process.poll() is None


def test_nothing_in_the_run_folder_is_imported(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    """A file that is named like a module of Python, or of ours."""
    for name in ("secrets", "select", "signal", "dsforge"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    launch = start().begun()
    launch.process.send_signal(TERM)

    assert launch.code() == 0


@pytest.mark.parametrize("grace", ["soon", "-1", "nan", "inf"])
def test_a_time_that_is_none_starts_nothing(grace: str, start: Callable[..., Started]) -> None:
    """One line that names the variable."""
    launch = start(DSFORGE_GRACE_S=grace)
    _, said = launch.process.communicate(timeout=LIMIT_S)

    assert launch.code() == 2
    assert "DSFORGE_GRACE_S" in said
    assert not (launch.folder / "launcher").exists()
