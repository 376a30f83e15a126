"""What may lie in an output folder, the environment and the build cache, and ends in a word."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_train_beginning import note, saved

from dsforge.artifacts.whole import write_whole
from dsforge.errors import DsforgeError
from dsforge.preflight.remote import software
from dsforge.train.checkpoints.note import NOTE, checkpoints, read_note, remove
from dsforge.train.checkpoints.resume import Beginning, chosen_beginning
from dsforge.train.parallel.ranks import place_of_process
from dsforge.train.run import build_locks as builds
from dsforge.train.run.metrics_file import MetricsFile
from dsforge.units import size


def fifo(path: Path) -> None:
    """A pipe that nobody writes to."""
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    """A link to what never ends."""
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    """A folder in its place."""
    path.unlink()
    path.mkdir()


def text(content: str | bytes) -> Callable[[Path], None]:
    """Other bytes."""
    raw = content.encode() if isinstance(content, str) else content

    def spoil(path: Path) -> None:
        path.write_bytes(raw)

    return spoil


def files(*names: str) -> Callable[[Path], None]:
    """A note that names such files."""
    listed = {name: {"bytes": 1, "crc32": 1} for name in names}
    return text(json.dumps({**note(6).model_dump(mode="json"), "files": listed}))


def huge(path: Path) -> None:
    """A gigabyte of nothing, which takes no room."""
    os.truncate(path, 2**30)


HOSTILE = [
    *(fifo, endless, folder, huge, text(b"\xff\xfe"), text(""), text("[" * 10**6), text("null")),
    *(files("../../secret"), files("/etc/passwd"), files(".."), files("a\\b"), files("a\nb")),
    *(text('{"step": 1e999}'), text('{"step": -1}'), files("")),
]


@pytest.mark.parametrize("spoil", HOSTILE, ids=range(len(HOSTILE)))
def test_a_spoilt_note_is_passed_over(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    """The checkpoint before it is taken; none at all is one line."""
    saved(tmp_path, 4, 6)
    spoil(tmp_path / "checkpoints/global_step6" / NOTE)
    begin = time.monotonic()
    chosen = chosen_beginning("auto", tmp_path, overwrite=False).checkpoint
    with pytest.raises(DsforgeError, match="is not a complete checkpoint"):
        read_note(tmp_path / "checkpoints/global_step6")

    assert chosen == tmp_path / "checkpoints/global_step4"
    assert time.monotonic() - begin < 30  # an endless file would never end


@pytest.mark.parametrize("name", ["global_step" + "9" * 5000, "global_step٣", "global_step-1"])
def test_other_names_are_no_checkpoints(name: str, tmp_path: Path) -> None:
    """Numbers that no run reaches, in digits of other scripts, below zero."""
    listed = [tmp_path / name]
    try:
        listed[0].mkdir()
    except OSError:
        pytest.skip("this file system takes no such name")

    assert checkpoints(tmp_path) == []


@pytest.mark.parametrize("content", [b"\xff\n", b"[]\n", b"{}\n", b"9" * 10**5, b'{"step": "1"}\n'])
def test_lines_of_metrics_that_are_none_are_dropped(content: bytes, tmp_path: Path) -> None:
    """The lines before and behind them stay."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + content + b'\n{"step": 2}\n{"step": 3}\n')
    MetricsFile(path, 2)

    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_metrics_that_are_a_folder_are_one_line(tmp_path: Path) -> None:
    """They are named, and left alone."""
    (tmp_path / "metrics.jsonl").mkdir()

    with pytest.raises(DsforgeError, match=r"metrics.jsonl is not a regular file"):
        MetricsFile(tmp_path / "metrics.jsonl", 0)


def test_nothing_is_written_or_removed_through_a_link(tmp_path: Path) -> None:
    """Neither through what looks like a temporary name nor where an earlier run is removed."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (tmp_path / ".latest.part").symlink_to(precious / "file")
    (tmp_path / "model").symlink_to(precious)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    write_whole(tmp_path / "latest", "global_step2")
    Beginning(None, (tmp_path / "model",)).clear()
    remove(tmp_path / "gone")

    assert (precious / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "latest", ".latest.part"}


@pytest.mark.parametrize(
    "changed",
    [
        {"MASTER_PORT": "２９５００"},  # noqa: RUF001
        {"MASTER_PORT": "0"},
        {"MASTER_PORT": "65536"},
        {"MASTER_PORT": " 1"},
        {"RANK": "１"},  # noqa: RUF001
        {"RANK": "2"},
        {"RANK": "-1"},
        {"LOCAL_RANK": "٣"},
        {"WORLD_SIZE": "9" * 5000},
    ],
)
def test_a_place_in_other_digits_or_beyond_is_refused(
    changed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's `int` takes the digits of all scripts, launchers and libraries do not."""
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", **changed}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(DsforgeError) as caught:
        place_of_process()
    assert len(caught.value.message) < 200
    assert caught.value.message.isascii()


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock of a build that was killed ten minutes ago."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(builds, "kernel_locks", lambda: False)
    (tmp_path / "cpu_adam").mkdir()
    path = tmp_path / "cpu_adam/lock"
    path.touch()
    os.utime(path, (0, time.time() - 600))
    return path


def test_the_lock_of_a_killed_build_is_removed(lock: Path) -> None:
    """The next start would wait for it silently; preflight judges it alike."""
    said: list[str] = []
    assert software.stale(lock, "2.13.0")
    builds.free_builds(said.append)

    assert not lock.exists()
    assert said == [f"{lock}, left by a build that was killed 10 min ago, was removed"]


def test_a_lock_that_another_host_may_hold_is_only_named(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system nobody here can know."""
    monkeypatch.setattr(builds, "LOCAL", frozenset())
    said: list[str] = []
    builds.free_builds(said.append)

    assert lock.exists()
    assert "10 min old, is of no build on this host" in said[0]


@pytest.mark.parametrize("age_s", [0, 600])
def test_the_lock_of_a_living_build_stays(
    age_s: int, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler works in its folder, or it is too new to tell; preflight judges it alike."""
    os.utime(lock, (0, time.time() - age_s))
    if age_s:
        monkeypatch.chdir(lock.parent)
    builds.free_builds(lambda _: None)

    assert lock.exists()
    assert software.held(lock, "2.13.0")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 bytes"), (2000, "2.0 KiB"), (6 << 20, "6.0 MiB"), (1 << 30, "1.00 GiB")],
)
def test_small_sizes_have_small_units(value: int, shown: str) -> None:
    """No `0.00 GiB of 0.00 GiB`."""
    assert size(value) == shown
