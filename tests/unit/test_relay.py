"""What a launch prints: all of it in the log, the screen without announcements, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsforge.train.relay import KEPT, Relay, is_noise, new_log
from dsforge.train.run.heartbeat import Heartbeat

# Lines of real launches: DeepSpeed 0.19.8, transformers 5, torch 2.13.
NOISE = (
    "[2026-11-22 17:54:27,995] [INFO] [runner.py:618:main] cmd = /venv/bin/python3 -u -m",
    "10.0.0.2: [2026-11-22 17:54:29,234] [INFO] [launch.py:152:main] WORLD INFO DICT: {}",
    "/venv/transformers/modeling_utils.py:3303: FutureWarning: `is_gradient_checkpointing` is",
    "  warnings.warn(",
    "[transformers] Loading a GGUF checkpoint with its weights packed is fastest in float32",
    "Failed to load CPU gemm_4bit_forward from kernels-community: No module named 'kernels'.",
    "DeepSpeed deepspeed.ops.comm.deepspeed_shm_comm_op built successfully",
    "Converting and de-quantizing GGUF tensors...:  88%|███ | 240/272 [00:02<00:00, 134.47it/s]",
)
SHOWN = (
    "step 1/3  loss 5.5439  lr 2.00e-04  123 tokens/s  MFU 12.4%",
    "Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "[2026-11-22 17:54:29,234] [WARNING] [config.py:1] something",
    "[2026-11-22 17:54:29,234] [ERROR] [launch.py:259:sigkill_handler] exits with 1",
    "UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
    "error: 200 bad rows, the first 20 are",
    "  raise ValueError('FutureWarning: x')",
)


@pytest.mark.parametrize("line", NOISE, ids=lambda line: line[:30])
def test_announcements_are_noise(line: str) -> None:
    """What every launch prints, whatever it is about."""
    assert is_noise(line.encode())


@pytest.mark.parametrize("line", SHOWN, ids=lambda line: line[:30])
def test_what_matters_is_shown(line: str) -> None:
    """Steps, warnings, errors, tracebacks."""
    assert not is_noise(line.encode())


def relayed(written: list[bytes], folder: Path) -> tuple[bytes, bytes]:
    """Log and screen after these writes."""
    screen, log = folder / "screen", folder / "log"
    with screen.open("wb") as stream:
        relay = Relay(log)
        writer = relay.pipe(stream.fileno())
        for part in written:
            os.write(writer, part)
        os.close(writer)
        relay.end()
    return log.read_bytes(), screen.read_bytes()


@settings(deadline=None, max_examples=50)
@given(parts=st.lists(st.binary(min_size=1, max_size=40), max_size=8))
def test_the_log_has_every_byte(parts: list[bytes]) -> None:
    """Whatever is written, in whatever pieces, and nothing is invented on the screen."""
    with TemporaryDirectory() as folder:
        log, screen = relayed(parts, Path(folder))

    assert log == b"".join(parts)
    assert len(screen) <= len(log) + 1


@settings(deadline=None, max_examples=50)
@given(lines=st.lists(st.sampled_from(NOISE + SHOWN), max_size=12), cut=st.integers(1, 30))
def test_the_screen_has_every_line_that_matters(lines: list[str], cut: int) -> None:
    """In their order, whole, however the writes cut them."""
    data = "".join(f"{line}\n" for line in lines).encode()
    with TemporaryDirectory() as folder:
        _, screen = relayed([data[n : n + cut] for n in range(0, len(data), cut)], Path(folder))

    assert screen.decode().splitlines() == [line for line in lines if line in SHOWN]


def test_a_line_without_its_end_is_shown(tmp_path: Path) -> None:
    """A prompt or the last words of a process that died within a line."""
    assert relayed([b"Fatal Python error: Segmentation fault"], tmp_path)[1].startswith(b"Fatal")


def test_a_process_that_outlives_the_launch_is_not_waited_for(tmp_path: Path) -> None:
    """Something else has the end of the pipe open: the relay ends all the same."""
    relay = Relay(tmp_path / "log")
    writer = relay.pipe(1)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleep, pass_fds=(writer,)) as other:
        os.close(writer)
        begun = time.monotonic()
        relay.end()
        other.kill()

    assert time.monotonic() - begun < 10


def test_old_logs_are_removed(tmp_path: Path) -> None:
    """The newest are kept; files of another name are left alone."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "mine.txt").touch()
    for number in range(2 * KEPT):
        (folder / f"launch-20200101-0000{number:02}-h.log").touch()
    log = new_log(tmp_path)

    assert log is not None
    log.touch()
    assert len(list(folder.glob("launch-*"))) == KEPT
    assert (folder / "mine.txt").exists()


def test_a_heartbeat_speaks_only_into_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds without a line: what is under way and for how long; nothing where lines come."""
    monkeypatch.setattr("dsforge.train.run.heartbeat.SILENCE_S", 0.3)
    monkeypatch.setattr("dsforge.train.run.heartbeat.LOOK_S", 0.05)
    said: list[str] = []
    heart = Heartbeat(shown=True, say=said.append)
    heart.doing("loading the weights")
    for _ in range(10):
        time.sleep(0.1)
        heart.spoke()
    assert said == []
    time.sleep(0.9)
    heart.end()

    assert 1 <= len(said) <= 4
    assert said[0].startswith("loading the weights, ")


def test_verbose_shows_everything(tmp_path: Path) -> None:
    """DSFORGE_VERBOSE=1 is the way to see what libraries print."""
    line = f"{NOISE[0]}\n".encode()
    code = (
        "import os, sys; from pathlib import Path; from dsforge.train.relay import Relay\n"
        "relay = Relay(None); end = relay.pipe(1)\n"
        f"os.write(end, {line!r}); os.close(end); relay.end()"
    )
    for verbose in ("", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "DSFORGE_VERBOSE": verbose},
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert done.stdout == (NOISE[0] + "\n" if verbose else "")
