"""Single files that were asked for: whole or as they were, never through a link."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsforge.artifacts.whole import write_whole
from dsforge.cli.main import main
from dsforge.errors import DsforgeError

BAD = '{"train_batch_size": 8, "zero_optimisation": {"stage": 3}}'
STEP = ("estimate", "--model", "llama-2-7b", "--gpu", "a100-80gb", "--trace")
COMMANDS = {
    "trace": (*STEP, "OUT"),
    "detect": ("detect", "--force", "--out", "OUT"),
    "probe": ("probe", "--force", "--out", "OUT"),
    "lint": ("lint", "--fix", "OUT", "--kind", "ds_config"),
}


def ended(arguments: tuple[str, ...], out: Path) -> int:
    """The exit code of a command with that output."""
    with pytest.raises(SystemExit) as caught:
        main([part.replace("OUT", str(out)) for part in arguments])
    return int(caught.value.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("there", [True, False], ids=["file", "nothing"])
def test_nothing_is_written_through_a_link(
    command: str, there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a link leads to stays, and the link is named."""
    target, link = tmp_path / "precious", tmp_path / "out.json"
    if there:
        target.write_text(BAD)
    link.symlink_to(target)

    assert ended(COMMANDS[command], link) in (1, 3)
    assert link.is_symlink()
    assert (target.read_text() == BAD) if there else not target.exists()
    said = "".join(capsys.readouterr())
    assert "link" in said or (command == "lint" and not there)
    assert len([*tmp_path.iterdir()]) == 1 + there


@pytest.mark.parametrize("command", ["trace", "detect"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "null"])
def test_only_a_file_is_replaced(
    command: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe nobody reads does not hold us up; a device stays a device."""
    out = Path("/dev/null") if kind == "null" else tmp_path / "out"
    if kind == "pipe":
        os.mkfifo(out)
    elif kind == "folder":
        out.mkdir()

    assert ended(COMMANDS[command], out) == 1
    assert "is not a regular file" in capsys.readouterr().err
    assert not out.is_file()


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    """Not the one of a temporary file."""
    write_whole(tmp_path / "new", "a")
    (tmp_path / "plain").write_text("a")

    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_old_file_keeps_owner_and_mode(tmp_path: Path) -> None:
    """A repaired config still belongs to whom it belonged, and to nobody else."""
    path = tmp_path / "ds_config.json"
    path.write_text(BAD)
    path.chmod(0o640)
    os.chown(path, 1234, 2345)
    ended(COMMANDS["lint"], path)
    found = path.stat()

    assert path.read_text() == BAD.replace("zero_optimisation", "zero_optimization")
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1234, 2345, 0o640)


@pytest.mark.parametrize("command", ["trace", "detect", "lint"])
def test_a_full_disk_leaves_the_old_file(command: str, tmp_path: Path) -> None:
    """And nothing beside it. A limit on the size of files stands for the disk."""
    out = tmp_path / "out.json"
    before = BAD.replace("{", "{" + " " * 3000, 1)
    out.write_text(before)
    words = [part.replace("OUT", str(out)) for part in COMMANDS[command]]
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "from dsforge.cli.main import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, *words], capture_output=True, text=True, check=False
    )

    assert "Traceback" not in done.stderr
    assert "cannot" in done.stderr
    assert out.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_link_is_replaced_where_that_is_asked_for(tmp_path: Path) -> None:
    """As `latest` beside checkpoints: what the link led to stays."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "latest").symlink_to("precious")
    with pytest.raises(DsforgeError, match="symbolic link"):
        write_whole(tmp_path / "latest", "a")
    write_whole(tmp_path / "latest", "a", over_links=True)

    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "latest").read_text() == "a"
    assert not (tmp_path / "latest").is_symlink()
