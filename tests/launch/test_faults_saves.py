"""Disks that fill up and files that change: what was saved before is never lost for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

from dsforge.checkpoints.verify.checkpoint import verify

pytestmark = [pytest.mark.launch, pytest.mark.engine]
MIB = 1024 * 1024


def cut(path: Path) -> None:
    """Lose the end of a file."""
    os.truncate(path, path.stat().st_size - 1000)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


@pytest.fixture(scope="module")
def finished(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps on two ranks under ZeRO-2 that holds checkpoints of steps 4 and 6."""
    folder = tmp_path_factory.mktemp("finished")
    write_job(folder, tiny_llama, ds_config(2), steps=6, checkpoint_every=2)
    ranks.train(folder, 2, "--no-export")
    return folder


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(cut, "bytes of", id="cut", marks=pytest.mark.slow),
        pytest.param(flip, "content differs from what was saved", id="bit-flipped"),
        pytest.param(Path.unlink, "is missing", id="removed", marks=pytest.mark.slow),
    ],
)
def test_a_spoilt_checkpoint_is_passed_over(
    spoil: Callable[[Path], None], said: str, finished: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    """The one before it is taken, with a word; the run ends with the losses that it had."""
    before = runs.figures(finished / "output", "loss")
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / "output/checkpoints/global_step6"
    spoil(next(newest.glob("*rank_1*")))
    text = ranks.train(tmp_path, 2, "--no-export")

    assert "global_step6 is damaged and was renamed: " in text
    assert said in text
    assert "global_step4 after step 4" in text
    assert runs.figures(tmp_path / "output", "loss") == before
    assert verify(newest) == []


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own that holds so many bytes; needs root."""
    if os.geteuid() != 0:
        pytest.skip("a small disk needs root (tmpfs)")
    folder.mkdir(parents=True)
    command = ["/bin/mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk needs tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["/bin/umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_too_small_is_said_at_the_first_step(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """The save is rehearsed after step 1: the run ends there and not hours later."""
    write_job(tmp_path, tiny_llama, ds_config(2), steps=500)
    with small_disk(tmp_path / "output", 3 * MIB) as disk:
        codes, text = ranks.ended(tmp_path, 2)

        assert codes == [1, 1]
        assert "3 checkpoints of" in text
        assert "lower `keep_checkpoints`" in text
        assert len(runs.figures(disk, "loss")) == 1


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_one_interval(tiny_llama: Path, tmp_path: Path) -> None:
    """The save that fails ends the run on all ranks; with room again it goes on from the last."""
    write_job(tmp_path, tiny_llama, ds_config(2), steps=60, checkpoint_every=20, keep_checkpoints=1)
    with small_disk(tmp_path / "output", 6 * MIB) as disk:
        filler = disk / "other-people"

        def fill() -> None:
            while not (disk / "checkpoints/global_step20/dsforge.json").is_file():
                time.sleep(0.005)
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            filler.write_bytes(b"\0" * (free - MIB // 2))

        other = threading.Thread(target=fill)
        other.start()
        codes, text = ranks.ended(tmp_path, 2, "--no-export")
        other.join()
        left = [path.name for path in (disk / "checkpoints").glob("*global_step*")]
        good = verify(disk / "checkpoints")
        filler.unlink()
        after = ranks.train(tmp_path, 2, "--no-export", "--steps", "40")

        assert codes == [1, 1]
        assert "step 40: the checkpoint could not be written" in text
        assert "the last intact checkpoint is global_step20" in text
        assert (left, good) == (["global_step20"], [])
        assert "global_step20 after step 20" in after
        assert len(runs.figures(disk, "loss")) == 40
