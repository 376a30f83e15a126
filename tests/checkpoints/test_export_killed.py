"""`export` and `convert` ended with -9 at random moments, and started twice at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from samples_copied import SAMPLES, content, ended

from dsforge.checkpoints.output.new_folder import CONTENT, PREFIX

SEED = 20261122
SAMPLE = SAMPLES / "zero2-bf16"
RUN = (sys.executable, "-m", "dsforge", "ckpt")
COMMANDS = ["export", pytest.param("convert", marks=[pytest.mark.engine, pytest.mark.slow])]


def started(command: str, out: Path) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    words = [*RUN, command, str(SAMPLE), str(out)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def killed(command: str, out: Path, wait_s: float) -> None:
    """Start the command and end it a moment after it began to write."""
    run = started(command, out)
    limit = time.monotonic() + 120
    while run.poll() is None and not [*out.parent.glob(f"{PREFIX}*")]:
        assert time.monotonic() < limit
        time.sleep(0.0005)
    time.sleep(wait_s)
    run.kill()
    run.communicate(timeout=60)


def check_left(folder: Path, true: dict[str, bytes | str]) -> bool:
    """Whether the result is there; if so it is whole, and what else is there is ours."""
    left = {path.name for path in folder.iterdir()} - {"out", "latest_universal", "mine"}
    assert all(name.startswith(PREFIX) for name in left)
    if not (folder / "out").exists():
        return False
    whole = {name: value for name, value in true.items() if name.startswith("out")}
    assert {n: v for n, v in content(folder).items() if n.split("/")[0] == "out"} == whole
    return True


def survived(command: str, count: int, folder: Path) -> tuple[int, int]:
    """How many runs that were killed left the result, and how many nothing."""
    chance = random.Random(SEED)  # noqa: S311 - moments, not secrets
    ended(command, SAMPLE, folder / "true" / "out")
    true = content(folder / "true")
    longest_s = 0.03 if command == "export" else 1.0
    there = 0
    for number in range(count):
        own = folder / str(number)
        own.mkdir()
        (own / "mine").write_text("mine")
        killed(command, own / "out", chance.uniform(0, longest_s))
        if check_left(own, true):
            there += 1
            continue
        assert ended(command, SAMPLE, own / "out") == 0
        assert content(own) == {**true, "mine": b"mine"}
    return there, count - there


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_run_leaves_all_or_nothing(command: str, tmp_path: Path) -> None:
    """Whole, or not there; and the next run removes what the killed one left."""
    if command == "convert":
        pytest.importorskip("deepspeed")
    there, not_there = survived(command, 6, tmp_path)

    assert there + not_there == 6


@pytest.mark.slow
def test_thirty_killed_exports(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """More moments; some of them before the rename."""
    there, not_there = survived("export", 30, tmp_path)
    record_property("count", f"exports killed with -9: {there} whole, {not_there} not there")

    assert not_there


def test_a_termination_leaves_nothing_that_stays(tmp_path: Path) -> None:
    """SIGTERM and Ctrl-C: nothing is left, or the next run removes it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        run = started("export", tmp_path / "out")
        while run.poll() is None and not [*tmp_path.glob(f"{PREFIX}*")]:
            time.sleep(0.0005)
        if run.poll() is None:
            os.kill(run.pid, number)
        run.communicate(timeout=60)
        if not (tmp_path / "out").exists():
            assert ended("export", SAMPLE, tmp_path / "out") == 0
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        for path in (tmp_path / "out").iterdir():
            path.unlink()
        (tmp_path / "out").rmdir()


@pytest.mark.parametrize("command", COMMANDS)
def test_two_at_once(command: str, tmp_path: Path) -> None:
    """To one name: one result, whole, and the other run ends with one message."""
    if command == "convert":
        pytest.importorskip("deepspeed")
    ended(command, SAMPLE, tmp_path / "true" / "out")
    true = content(tmp_path / "true")
    for number in range(3):
        folder = tmp_path / str(number)
        runs = [started(command, folder / "out") for _ in range(3)]
        said = [run.communicate(timeout=120)[1] for run in runs]

        assert sorted(run.returncode for run in runs) == [0, 1, 1], said
        assert "Traceback" not in "".join(said)
        assert content(folder) == true


def test_a_run_that_is_still_going_is_left_alone(tmp_path: Path) -> None:
    """Its folder is locked, and another run in the same place does not touch it."""
    run = started("export", tmp_path / "first")
    while run.poll() is None and not [*tmp_path.glob(f"{PREFIX}*/{CONTENT}")]:
        time.sleep(0.0005)
    os.kill(run.pid, signal.SIGSTOP)
    try:
        before = content(tmp_path)
        assert ended("export", SAMPLE, tmp_path / "second") == 0
        after = content(tmp_path)
        assert {name: after[name] for name in before} == before
    finally:
        os.kill(run.pid, signal.SIGCONT)
        run.communicate(timeout=60)

    assert run.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second"}
