"""Ranks end with their launcher, whatever ends it, and save where there is something to save."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import ranks
import runs
from sampled import each
from test_train_generated import generated, rows
from tiny_job import ds_config, write_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]
LONG = 100_000  # steps
LIMIT_S = 120
TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
ALONE = {"gradient_accumulation_steps": 4}


def living_ranks(folder: Path) -> list[int]:
    """The ranks of a run, by their folder and environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            here = (process / "cwd").resolve() == folder.resolve()
            if here and b"\0RANK=" in b"\0" + (process / "environ").read_bytes():
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                is_rank = b"dsforge.train\0" in (process / "cmdline").read_bytes()
                is_launcher = b"launcher" in (process / "cmdline").read_bytes()
                found += [int(process.name)] if is_rank and state != "Z" and not is_launcher else []
    return found


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Return when something is so."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def launched(command: list[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    """A launch in a session of its own that has done 2 steps."""
    variables["MASTER_PORT"] = str(runs.free_port())
    with (folder / "log").open("w") as log:
        run = subprocess.Popen(
            command,
            cwd=folder,
            env=runs.environment(**variables),
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    runs.wait_for_lines(folder, 2, run.poll)
    return run


def is_saved(folder: Path) -> bool:
    """Whether the one checkpoint is of the last step in metrics.jsonl."""
    done = len(runs.figures(folder / "output", "loss"))
    names = [path.name for path in (folder / "output/checkpoints").glob("global_step*")]
    return names == [f"global_step{done}"]


def torchrun() -> list[str]:
    """Torchrun without a script, with two ranks."""
    port = ["--master_port", str(runs.free_port())]
    two = ["--nproc_per_node", "2", *port, "-m", "dsforge.train", "train.yaml"]
    return [str(runs.BIN / "torchrun"), *two]


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A job that never ends by itself."""
    return write_job(tmp_path, tiny_llama, ds_config(2), steps=LONG).parent


@pytest.mark.parametrize(
    ("number", "command"),
    [
        (TERM, "deepspeed"),
        pytest.param(INT, "deepspeed", marks=pytest.mark.slow),
        pytest.param(HUP, "deepspeed", marks=pytest.mark.slow),
        (KILL, "deepspeed"),
        pytest.param(TERM, "torchrun", marks=pytest.mark.slow),
        pytest.param(INT, "torchrun", marks=pytest.mark.slow),
        pytest.param(HUP, "torchrun", marks=pytest.mark.slow),
    ],
)
def test_ranks_save_and_end_where_their_launcher_ends(
    number: signal.Signals, command: str, folder: Path
) -> None:
    """The launcher alone gets the signal: no rank trains on, and the last step is saved."""
    words = runs.deepspeed("train.yaml") if command == "deepspeed" else torchrun()
    run = launched(words, folder)
    assert len(living_ranks(folder)) == 2
    run.send_signal(number)
    run.wait(LIMIT_S)
    wait_until(lambda: not living_ranks(folder), "ranks are left")

    assert is_saved(folder), (folder / "log").read_text()[-3000:]
    assert not (folder / "output/.lock").exists()


@pytest.mark.slow
def test_no_rank_outlives_a_killed_torchrun(folder: Path) -> None:
    """Its key-value store went with it: the ranks cannot agree on a save any more, but end."""
    run = launched(torchrun(), folder)
    run.kill()
    run.wait(LIMIT_S)

    wait_until(lambda: not living_ranks(folder), "ranks are left")


@pytest.mark.slow
def test_no_rank_outlives_the_launcher_of_its_host(folder: Path) -> None:
    """`deepspeed` starts another process, which starts the ranks; that one is killed."""
    run = launched(runs.deepspeed("train.yaml"), folder)
    (child,) = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(child), KILL)
    wait_until(lambda: not living_ranks(folder), "ranks are left")
    run.wait(LIMIT_S)

    assert is_saved(folder)


@pytest.mark.parametrize(
    ("script", "number", "code"),
    [
        ("deepspeed", TERM, 0),
        pytest.param("deepspeed", INT, 130, marks=pytest.mark.slow),
        pytest.param("deepspeed", HUP, 0, marks=pytest.mark.slow),
        pytest.param("deepspeed", KILL, -9, marks=pytest.mark.slow),
        pytest.param("torchrun", TERM, 0, marks=pytest.mark.slow),
        pytest.param("torchrun", INT, 130, marks=pytest.mark.slow),
        pytest.param("torchrun", KILL, -9, marks=pytest.mark.slow),
    ],
)
def test_the_launch_script_ends_as_the_table_says(
    script: str, number: signal.Signals, code: int, tiny_llama: Path, tmp_path: Path
) -> None:
    """The script waits for the save, and its exit code is the one of README."""
    data = rows(tmp_path / "data.jsonl", "prompt")
    run = generated(tmp_path, tiny_llama, {"train": str(data)}, "fp32")
    job = run / "train.yaml"
    job.write_text(f"{job.read_text()}\n".replace("\nsteps: 6", f"\nsteps: {LONG}"))
    process = launched(["bash", f"launch/{script}.sh"], run)
    process.send_signal(number)
    found = process.wait(LIMIT_S)
    if number == KILL:
        wait_until(lambda: not living_ranks(run), "ranks are left")

    assert found == code
    assert living_ranks(run) == []
    assert is_saved(run), (run / "log").read_text()[-3000:]


@pytest.mark.parametrize("number", [INT, TERM, HUP], ids=lambda number: number.name)
@pytest.mark.parametrize("after_s", [0.5, pytest.param(3.0, marks=pytest.mark.slow)])
def test_a_signal_before_the_first_step_ends_the_rank_at_once(
    number: signal.Signals, after_s: float, tiny_llama: Path, tmp_path: Path
) -> None:
    """In the imports there is nothing to save: one line, no traceback, the code of a shell."""
    write_job(tmp_path, tiny_llama, ds_config(2, **ALONE), steps=LONG)
    run = subprocess.Popen(
        runs.alone("train.yaml"), cwd=tmp_path, env=runs.environment(), stderr=-1, text=True
    )
    wait_until(lambda: listens(run.pid), "no rank")
    time.sleep(after_s)
    run.send_signal(number)
    _, said = run.communicate(timeout=30)

    assert run.returncode == 128 + number
    assert f"stopped by {number.name} before the first step" in said
    assert "Traceback" not in said
    assert not (tmp_path / "output/.lock").exists()


def listens(pid: int) -> bool:
    """Whether a process catches SIGTERM."""
    with suppress(OSError):
        caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:\t")[2].split("\n")[0]
        return bool(int(caught, 16) & 1 << (TERM - 1))
    return False


@pytest.mark.parametrize("number", [TERM, pytest.param(HUP, marks=pytest.mark.slow)])
def test_one_signalled_rank_stops_all(number: signal.Signals, folder: Path) -> None:
    """Ranks agree on a stop: each finishes the step, saves and exports nothing."""
    both = ranks.begun(folder, 2)
    runs.wait_for_lines(folder, 1, lambda: both[0].exitcode)
    os.kill(both[1].pid or 0, number)
    codes, said = ranks.outcome(folder, both)

    assert codes == [0, 0]
    assert is_saved(folder)
    assert "stopped by a signal; checkpoint of step" in said
    assert not (folder / "output/model").exists()


def test_a_second_ctrl_c_ends_at_once(tiny_llama: Path, tmp_path: Path) -> None:
    """The first would wait for the step and the save."""
    write_job(tmp_path, tiny_llama, ds_config(2, **ALONE), steps=LONG, sequence_length=96)
    (one,) = ranks.begun(tmp_path, 1)
    runs.wait_for_lines(tmp_path, 1, lambda: one.exitcode)
    for _ in range(2):
        os.kill(one.pid or 0, INT)
        time.sleep(0.02)
    codes, said = ranks.outcome(tmp_path, [one])

    assert codes == [130]
    assert "Traceback" not in said


@pytest.mark.parametrize("later_s", each(3, (3.0, 0.5, 0.0)))
def test_of_two_runs_in_one_folder_one_trains(
    later_s: float, tiny_llama: Path, tmp_path: Path
) -> None:
    """The other says in one line which run writes there, ends all its ranks, changes nothing."""
    write_job(tmp_path, tiny_llama, ds_config(2), steps=6)
    both = []
    for number in range(2):
        with (tmp_path / f"log{number}").open("w") as log:
            command = runs.deepspeed("train.yaml", "--no-export", "--overwrite")
            both.append(
                subprocess.Popen(
                    command, cwd=tmp_path, env=runs.environment(), stdout=log, stderr=log
                )
            )
        time.sleep(later_s)
    codes = [run.wait(LIMIT_S) for run in both]
    trained, refused = ((tmp_path / f"log{codes.index(code)}").read_text() for code in (0, 1))

    assert sorted(codes) == [0, 1]
    assert refused.count(f"writes to {tmp_path / 'output'}") == 1
    assert "Traceback" not in refused
    assert "step 6/6" in trained
    assert len(runs.figures(tmp_path / "output", "loss")) == 6
    assert living_ranks(tmp_path) == []
