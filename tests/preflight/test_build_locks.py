"""Locks of op builds: the file alone where torch waits for it, else what the kernel says."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from dsforge.preflight.remote.software import builds, stale, unlock

OLD, NEW = "2.13.0+cpu", "2.14.0+cu130"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """The lock of an op whose build has ended ten minutes ago."""
    folder = tmp_path / "ops" / "cpu_adam"
    folder.mkdir(parents=True)
    (folder / "cpu_adam.so").touch()
    (folder / "lock").touch()
    ended = time.time() - 600
    os.utime(folder / "lock", (ended, ended))
    return folder / "lock"


@pytest.mark.parametrize(
    ("torch", "found"),
    [(OLD, [False]), (NEW, []), ("2.9.1", [False]), ("3.0.0", []), ("", [False]), ("x", [False])],
)
def test_a_file_that_nobody_waits_for_is_no_lock(lock: Path, torch: str, found: list[bool]) -> None:
    """Up to torch 2.13 the file makes others wait; later it only stays behind."""
    seen = builds(lock.parent.parent, torch)

    assert [entry["is_held"] for entry in seen["locks"]] == found
    assert seen["ops"] == ["cpu_adam"]
    assert stale(lock, torch) == bool(found)


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_what_a_dead_build_left_goes_where_it_matters(lock: Path, torch: str) -> None:
    """Nothing that others wait for is left."""
    assert unlock(lock.parent.parent, torch) == []
    assert lock.exists() == (torch == NEW)


def test_a_lock_that_the_kernel_keeps_for_a_process_is_held(lock: Path) -> None:
    """However old its file is; it is neither stale nor removed."""
    with lock.open("r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        seen = builds(lock.parent.parent, NEW)["locks"]
        left = unlock(lock.parent.parent, NEW)

    assert [entry["is_held"] for entry in seen] == [True]
    assert left == [str(lock)]
    assert lock.exists()


def test_a_fresh_file_may_belong_to_a_build_that_is_just_starting(lock: Path) -> None:
    """Old torch says nothing about its holder."""
    lock.touch()

    assert [entry["is_held"] for entry in builds(lock.parent.parent, OLD)["locks"]] == [True]
