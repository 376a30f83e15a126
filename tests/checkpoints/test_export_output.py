"""Outputs of `export` and `convert`: whole or not at all, and nothing else is touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from samples_copied import SAMPLES, content, ended

from dsforge.checkpoints.export import export
from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.output.disk import exchange, rename_new
from dsforge.checkpoints.output.new_folder import MARK, PREFIX, WRITER, new_folder, replaced_folder
from dsforge.errors import DsforgeError

SAMPLE = SAMPLES / "zero2-bf16"
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
COMMANDS = ["export", pytest.param("convert", marks=pytest.mark.engine)]


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> str:
    """Either command."""
    if request.param == "convert":
        pytest.importorskip("deepspeed")
    return str(request.param)


def refused(command: str, out: object, capsys: pytest.CaptureFixture[str], *more: object) -> str:
    """What a command says that ends with exit code 1: a message and a way out."""
    capsys.readouterr()
    assert ended(command, SAMPLE, out, *more) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert len(said.strip().splitlines()) >= 2, said
    return said


STANDING: dict[str, Callable[[Path], object]] = {
    "file": lambda out: out.write_text("mine"),
    "empty-folder": Path.mkdir,
    "folder": lambda out: (out.mkdir(), (out / "mine").write_text("mine")),
    "dangling-link": lambda out: out.symlink_to(out.with_name("nothing")),
    "link": lambda out: (out.with_name("elsewhere").mkdir(), out.symlink_to("elsewhere")),
    "pipe": os.mkfifo,
    "loop": lambda out: out.symlink_to(out),
    "nothing": lambda _: None,
}
BELOW = {
    "below-file": ("file", "inner"),
    "below-dangling-link": ("dangling-link", "inner"),
    "below-loop": ("loop", "inner"),
    "name-too-long": ("nothing", "n" * 300),
    "path-too-long": ("nothing", "/".join(["n" * 200] * 30)),
}


def taken(kind: str, out: Path) -> Path:
    """An output that cannot be had, with what stands in its way."""
    standing, below = BELOW.get(kind, (kind, ""))
    STANDING[standing](out)
    return out / below


@pytest.mark.parametrize("kind", [*list(STANDING)[:-1], *BELOW])
def test_a_name_that_cannot_be_had_is_refused(
    kind: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message, and everything stays as it was."""
    out = taken(kind, tmp_path / "out")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    refused(command, out, capsys)

    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    for path in tmp_path.rglob("mine"):
        assert path.read_text() == "mine"


@pytest.mark.parametrize("name", [".", "..", "/", ""])
def test_a_folder_without_a_name_is_refused(
    name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them exists."""
    refused(command, name, capsys)


ODD = ["-rf", "--help", "ein Ort", "größe", "\N{SNOWMAN}", "$(id)", "*"]
ODDER = ["two\nlines", "a" * 250, ".hidden", "\udc80", "\x1b[31m"]


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_odd_names_are_names(name: str, command: str, tmp_path: Path) -> None:
    """Whatever a file system takes, and it is there under that name."""
    out = tmp_path / "new" / name

    assert ended(command, SAMPLE, out) == 0
    pointer = {"latest_universal"} if command == "convert" else set()
    assert {path.name for path in out.parent.iterdir()} == {name} | pointer
    if pointer:
        assert (out.parent / "latest_universal").read_text() == name
        assert find_checkpoint(out.parent).path == out


@pytest.mark.parametrize("name", ODDER, ids=range(len(ODDER)))
def test_names_that_no_pointer_can_hold(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export` takes them, `convert` refuses: `latest_universal` could not name them."""
    if command == "export":
        assert ended(command, SAMPLE, tmp_path / name) == 0
        assert [path.name for path in tmp_path.iterdir()] == [name]
    else:
        refused(command, tmp_path / name, capsys)
        assert [*tmp_path.iterdir()] == []


def test_the_checkpoint_and_the_base_model_are_only_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output inside one of them is refused: `zero` there would make it another checkpoint."""
    checkpoint = Path(shutil.copytree(SAMPLE, tmp_path / "checkpoint"))
    before = content(tmp_path)
    assert ended(command, checkpoint, checkpoint / "global_step3" / "zero") == 1
    if command == "export":
        model = tmp_path / "checkpoint"
        assert "must not be changed" in refused(command, model / "out", capsys, "--model", model)

    assert content(tmp_path) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a disk in memory of so many bytes."""
    mounted: list[Path] = []
    mounting, unmounting = shutil.which("mount") or "mount", shutil.which("umount") or "umount"

    def mount(options: str) -> Path:
        disk = tmp_path / "disk"
        disk.mkdir()
        words = [mounting, "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        subprocess.run(words, check=True, timeout=20)
        mounted.append(disk)
        return disk

    yield mount
    for disk in mounted:
        subprocess.run([unmounting, str(disk)], check=True, timeout=20)


@ROOT
def test_a_disk_without_room_is_said_before(
    command: str, small_disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both figures are named, and the disk is as it was."""
    disk = small_disk("size=60k")
    said = refused(command, disk / "new" / "out", capsys)

    assert re.search(r"out requires [\d.]+ KiB, but [\d.]+ KiB are free on its disk", said)
    assert [*disk.iterdir()] == []


@ROOT
@pytest.mark.parametrize("pages", [1, 2])
def test_a_disk_that_fills_up_keeps_nothing(
    pages: int,
    command: str,
    small_disk: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Somebody else takes the room while it is written: one message, and nothing is left."""
    monkeypatch.setattr("dsforge.checkpoints.output.new_folder.check_room", lambda *_: None)
    disk = small_disk(f"size={4 * pages}k")
    said = refused(command, disk / "new" / "out", capsys)

    assert "No space left on device" in said
    assert "free space" in said
    assert [*disk.iterdir()] == []


@ROOT
def test_a_disk_without_inodes_keeps_nothing(
    command: str, small_disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Room for bytes, and none for one more file."""
    disk = small_disk("size=8m,nr_inodes=4")
    refused(command, disk / "out", capsys)

    assert [*disk.iterdir()] == []


@ROOT
def test_a_read_only_disk_is_said(
    command: str, small_disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the way out."""
    disk = small_disk("size=8m,ro")

    assert "read-only" in refused(command, disk / "new" / "out", capsys)


RUN = (sys.executable, "-m", "dsforge", "ckpt")


def limited(command: str, out: Path, limit: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, under a limit of the shell's `ulimit`."""
    shell = ["/bin/sh", "-c", f'ulimit {limit}; exec "$@"', "sh"]
    return subprocess.run(
        [*shell, *RUN, command, str(SAMPLE), str(out)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_limit_on_the_size_of_files_is_said(command: str, tmp_path: Path) -> None:
    """`ulimit -f` ends it with a message, not with a signal."""
    done = limited(command, tmp_path / "new" / "out", "-f 2")

    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "ulimit -f" in done.stderr
    assert [*tmp_path.iterdir()] == []


AS_NOBODY = """
import os, sys
from pathlib import Path
from dsforge.checkpoints.output.new_folder import new_folder
from dsforge.errors import DsforgeError
os.setgid(65534)
os.setuid(65534)
try:
    with new_folder(Path(sys.argv[1]), print):
        pass
except DsforgeError as error:
    sys.exit(f"{error.message}; {error.hint}")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_folder_without_permission_is_said() -> None:
    """As another user, who may look and not write."""
    with TemporaryDirectory() as folder:
        closed = Path(folder)
        closed.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(closed / "out")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert "Permission denied; write to a folder with write permission" in done.stderr
        assert [*closed.iterdir()] == []


def test_a_folder_of_the_user_beside_the_output_stays(command: str, tmp_path: Path) -> None:
    """Earlier versions wrote into `.NAME.part`, and removed whatever was there."""
    mine = [tmp_path / ".out.part", tmp_path / f"{PREFIX}mine", tmp_path / f"{PREFIX}other"]
    for folder in mine:
        folder.mkdir()
        (folder / "notes").write_text("mine")
    (mine[2] / WRITER).write_text("somebody else's file")
    (tmp_path / f"{PREFIX}link").symlink_to(mine[0])
    before = content(tmp_path)

    assert ended(command, SAMPLE, tmp_path / "out") == 0
    after = content(tmp_path)
    assert {name: after[name] for name in before} == before


def test_what_a_killed_run_left_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has our mark and nobody holds its lock; one that is still written stays."""
    left = tmp_path / f"{PREFIX}left"
    (left / "content").mkdir(parents=True)
    (left / WRITER).write_bytes(MARK)
    (tmp_path / f"{PREFIX}early").mkdir()
    with new_folder(tmp_path / "other", print) as writing:
        (writing / "half").write_text("half")
        left.mkdir(exist_ok=True)
        (left / WRITER).write_bytes(MARK)
        assert ended("export", SAMPLE, tmp_path / "out") == 0
        assert (writing / "half").read_text() == "half"

    assert str(left) in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"out", "other"}


def test_the_loser_of_two_harms_nothing(tmp_path: Path) -> None:
    """Two outputs of one name: the second ends with a message, the first is whole."""

    def lose() -> None:
        with new_folder(tmp_path / "out", print) as second:
            (second / "loser").write_text("loser")
            export(find_checkpoint(SAMPLE), tmp_path / "out")

    with pytest.raises(DsforgeError, match="by another process"):
        lose()

    assert sorted(content(tmp_path)) == ["out", "out/model.safetensors"]


@pytest.mark.parametrize("native", [True, False], ids=["renameat2", "without"])
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("target", ["", "file", "empty-folder", "folder", "dangling-link", "pipe"])
def test_renaming_replaces_nothing(
    target: str, kind: str, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands at the new name stays, on file systems that cannot be asked, too."""
    if not native:
        monkeypatch.setattr("dsforge.checkpoints.output.disk._UNKNOWN", range(200))
        monkeypatch.setattr("dsforge.checkpoints.output.disk.NO_REPLACE", 1 << 30)
    source = taken(kind, tmp_path / "source")
    if not target:
        rename_new(source, tmp_path / "new")
        assert not source.exists()
        assert (tmp_path / "new").exists()
        return
    taken(target, tmp_path / "new")
    before = sorted(content(tmp_path)) if target != "pipe" else []
    with pytest.raises(FileExistsError):
        rename_new(source, tmp_path / "new")
    assert not before or sorted(content(tmp_path)) == before


@pytest.mark.parametrize("swaps", [True, False])
def test_an_earlier_result_is_replaced_at_the_end(
    swaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it stands; after a failure it still does."""
    if not swaps:
        monkeypatch.setattr("dsforge.checkpoints.output.new_folder.exchange", lambda *_: False)
    earlier = taken("folder", tmp_path / "model")
    with pytest.raises(KeyError), replaced_folder(earlier, print):
        raise KeyError
    assert content(tmp_path) == {"model": "folder", "model/mine": b"mine"}
    with replaced_folder(earlier, print) as new:
        (new / "later").write_text("later")
        assert (earlier / "mine").exists()

    assert content(tmp_path) == {"model": "folder", "model/later": b"later"}
    assert exchange(tmp_path / "model", tmp_path / "model") in (True, False)


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    """Others may read the result as any folder that was made here, whatever ours had."""
    (tmp_path / "usual").mkdir()
    export(find_checkpoint(SAMPLE), tmp_path / "out")

    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
