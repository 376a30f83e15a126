"""A run folder on several file systems: a folder or a file of it is a mount point."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_artifacts import NEW, OLD, generated, tree, without_manifest

from dsforge import process
from dsforge.artifacts import COMMIT, write_all
from dsforge.artifacts.mounts import mount_points
from dsforge.errors import DsforgeError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")


@contextmanager
def mounted(what: str, where: Path, *options: str) -> Iterator[None]:
    """Inside, something is mounted over a path."""
    done = process.run(("mount", *options, what, str(where)), timeout_s=20)
    if done.code:
        pytest.skip(f"nothing can be mounted here: {done.output.strip()}")
    try:
        yield
    finally:
        process.run(("umount", "-l", str(where)), timeout_s=20).check("umount")


@pytest.mark.parametrize("kind", ["memory", "same disk"])
def test_a_mounted_folder_gets_its_files(kind: str, tmp_path: Path) -> None:
    """A rename does not reach into it, a copy does; modes stay, and nothing else is left."""
    out, other = tmp_path / "a run", tmp_path / "other"
    write_all(OLD, out)
    other.mkdir()
    options = ("-t", "tmpfs") if kind == "memory" else ("--bind",)
    with mounted("none" if kind == "memory" else str(other), out / "launch", *options):
        write_all(NEW, out)

        assert without_manifest(tree(out)) == generated(NEW)
        assert os.access(out / "launch/deepspeed.sh", os.X_OK)
        assert [path.name for path in (out / "launch").iterdir()] == ["deepspeed.sh"]
        assert not (out / COMMIT).exists()


def test_a_mounted_file_is_refused_before_anything_changes(tmp_path: Path) -> None:
    """It cannot be replaced by a whole new one; the message says so, and no commit is left."""
    out, other = tmp_path / "a run", tmp_path / "other"
    write_all(OLD, out)
    other.write_text((out / "plan.json").read_text())
    before = tree(out)
    with mounted(str(other), out / "plan.json", "--bind"):
        assert str(out / "plan.json") in mount_points()
        with pytest.raises(DsforgeError, match="is a mount point"):
            write_all(NEW, out)

        assert tree(out) == before
        assert not (out / COMMIT).exists()
    write_all(NEW, out)

    assert without_manifest(tree(out)) == generated(NEW)


def test_a_folder_that_is_a_mount_itself(tmp_path: Path) -> None:
    """An empty disk is as good as a folder."""
    out = tmp_path / "run"
    out.mkdir()
    with mounted("none", out, "-t", "tmpfs"):
        write_all(OLD, out)
        write_all(NEW, out)

        assert without_manifest(tree(out)) == generated(NEW)
