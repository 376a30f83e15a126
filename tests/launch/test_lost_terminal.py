"""Nobody reads any more: a terminal that is closed, a pipe that ends. The run saves as ever."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import termios
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import runs
from test_signals import LIMIT_S, LONG, is_saved, living_ranks, torchrun, wait_until
from test_train_generated import generated, rows
from tiny_job import ds_config, write_job

from dsforge.checkpoints.verify.checkpoint import verify

pytestmark = [pytest.mark.launch, pytest.mark.engine]
STEPS = 40
ALONE = {"gradient_accumulation_steps": 4}


class Reader:
    """Somebody who reads what a run says, until they leave."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.said = descriptor, b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            if select.select([self.descriptor], [], [], 0.05)[0]:
                with suppress(OSError):
                    self.said += os.read(self.descriptor, 4096)

    def leave(self) -> None:
        """Close the window or the pipe; whatever is written from now on fails."""
        self._over.set()
        self._thread.join()
        os.close(self.descriptor)


def on_a_terminal(
    command: list[str], folder: Path, *, nohup: bool = False
) -> tuple[subprocess.Popen[bytes], Reader]:
    """A run in a session of its own on a pseudo-terminal, after its second step."""
    master, slave = os.openpty()

    def begin() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    return started(command, folder, slave, begin), read_after_steps(folder, master)


def started(
    command: list[str], folder: Path, stream: int, begin: object = None
) -> subprocess.Popen[bytes]:
    """A run that talks to a stream."""
    run = subprocess.Popen(  # type: ignore[call-overload]
        command,
        cwd=folder,
        env=runs.environment(TERM="xterm", MASTER_PORT=str(runs.free_port())),
        stdin=stream,
        stdout=stream,
        stderr=stream,
        start_new_session=True,
        preexec_fn=begin,  # noqa: PLW1509 - no thread of ours runs yet
    )
    os.close(stream)
    return run


def read_after_steps(folder: Path, descriptor: int) -> Reader:
    """Somebody who has read what the first two steps said."""
    reader = Reader(descriptor)
    runs.wait_for_lines(folder, 2, lambda: None)
    return reader


def wait_for_the_end(run: subprocess.Popen[bytes], folder: Path) -> int:
    """The exit code of a run that ends by itself, with all its ranks."""
    try:
        code = run.wait(LIMIT_S)
        wait_until(lambda: not living_ranks(folder), "ranks are left")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    return code


def job(folder: Path, model: Path, *, ranks: int, steps: int) -> Path:
    """A run that says each of its steps."""
    config = ds_config(2) if ranks > 1 else ds_config(2, **ALONE)
    return write_job(folder, model, config, steps=steps, log_every=1).parent


@pytest.mark.parametrize("launcher", ["alone", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_closed_terminal_saves_and_ends(launcher: str, tiny_llama: Path, tmp_path: Path) -> None:
    """The kernel hangs up: the step is finished, the checkpoint saved, whatever cannot be said."""
    folder = job(tmp_path, tiny_llama, ranks=1 if launcher == "alone" else 2, steps=LONG)
    command = runs.alone("train.yaml") if launcher == "alone" else torchrun()
    run, reader = on_a_terminal(command, folder)
    reader.leave()
    code = wait_for_the_end(run, folder)

    assert code == 0 or launcher == "torchrun"  # which takes its own signal for a failure
    assert is_saved(folder), reader.said[-3000:]
    assert verify(folder / "output/checkpoints") == []


@pytest.mark.slow
@pytest.mark.parametrize("script", ["deepspeed", "torchrun"])
def test_a_launch_script_on_a_closed_terminal(
    script: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """The same by the scripts that `gen` writes."""
    data = rows(tmp_path / "data.jsonl", "prompt")
    folder = generated(tmp_path, tiny_llama, {"train": str(data)}, "fp32")
    path = folder / "train.yaml"
    path.write_text(f"{path.read_text()}\n".replace("\nsteps: 6", f"\nsteps: {LONG}"))
    run, reader = on_a_terminal(["bash", f"launch/{script}.sh"], folder)
    reader.leave()
    code = wait_for_the_end(run, folder)

    assert code == 0
    assert is_saved(folder), reader.said[-3000:]


def test_under_nohup_the_run_goes_on_to_its_end(tiny_llama: Path, tmp_path: Path) -> None:
    """SIGHUP is ignored, and every line from then on fails: all steps and the last checkpoint."""
    folder = job(tmp_path, tiny_llama, ranks=1, steps=STEPS)
    run, reader = on_a_terminal(runs.alone("train.yaml"), folder, nohup=True)
    reader.leave()

    assert wait_for_the_end(run, folder) == 0
    assert len(runs.figures(folder / "output", "loss")) == STEPS
    assert is_saved(folder), reader.said[-3000:]
    assert (folder / "output/model/model.safetensors").is_file()


@pytest.mark.parametrize("launcher", ["alone", pytest.param("deepspeed", marks=pytest.mark.slow)])
def test_a_pipe_that_ends_does_not_end_the_run(
    launcher: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """As in `dsforge train | head`: nobody is told, and nothing is lost."""
    folder = job(tmp_path, tiny_llama, ranks=1 if launcher == "alone" else 2, steps=STEPS)
    words = runs.alone("train.yaml") if launcher == "alone" else runs.deepspeed("train.yaml")
    ours, theirs = os.pipe()
    run = started(words, folder, theirs)
    reader = read_after_steps(folder, ours)
    reader.leave()
    code = wait_for_the_end(run, folder)

    assert code == 0 or launcher == "deepspeed"  # which may fail to say that all went well
    assert len(runs.figures(folder / "output", "loss")) == STEPS
    assert is_saved(folder)
