"""Writing a run folder: whole or not at all, and never over what a person edited."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dsforge.artifacts.anchored as anchored_folders
from dsforge.artifacts import COMMIT, MANIFEST, STAGING, Artifact, write_all
from dsforge.errors import DsforgeError, EditedError, RenderError

OLD = (
    Artifact("plan.json", '{"old": 1}\n'),
    Artifact("deepspeed/zero1.json", "old zero1\n"),
    Artifact("deepspeed/zero3.json", "old zero3\n"),
    Artifact("launch/deepspeed.sh", "#!/bin/sh\n", executable=True),
)
NEW = (
    Artifact("plan.json", '{"new": 2}\n'),
    Artifact("deepspeed/zero1.json", "new zero1\n"),
    Artifact("launch/deepspeed.sh", "#!/bin/sh\n", executable=True),
    Artifact("megatron/args.txt", "--new\n"),
)


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its text."""
    files = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_text() for p in files}


def generated(given: tuple[Artifact, ...]) -> dict[str, str]:
    """The files of these artifacts."""
    return {a.path: a.text for a in given}


def without_manifest(files: dict[str, str]) -> dict[str, str]:
    """Files but for the manifest."""
    return {path: text for path, text in files.items() if path != MANIFEST}


def test_a_new_folder_holds_the_artifacts_and_a_manifest(tmp_path: Path) -> None:
    """Everything is created, scripts can be executed, nothing else is left."""
    out = tmp_path / "a" / "run"

    written = write_all(OLD, out)

    assert written.created == tuple(a.path for a in OLD)
    assert without_manifest(tree(out)) == generated(OLD)
    assert os.access(out / "launch/deepspeed.sh", os.X_OK)
    assert not os.access(out / "plan.json", os.X_OK)
    assert list(out.parent.iterdir()) == [out]


def test_an_existing_folder_keeps_what_is_not_ours(tmp_path: Path) -> None:
    """Data and output of the user stay as they are."""
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "model").write_text("weights")

    write_all(OLD, tmp_path)
    write_all(NEW, tmp_path)

    assert without_manifest(tree(tmp_path)) == {**generated(NEW), "output/model": "weights"}


def test_unedited_files_are_updated_and_stale_ones_removed(tmp_path: Path) -> None:
    """A second call says what it did to each file, with a diff of the updates."""
    write_all(OLD, tmp_path)

    written = write_all(NEW, tmp_path)

    assert written.created == ("megatron/args.txt",)
    assert written.updated == ("plan.json", "deepspeed/zero1.json")
    assert written.unchanged == ("launch/deepspeed.sh",)
    assert written.removed == ("deepspeed/zero3.json",)
    assert "-old zero1\n+new zero1\n" in written.diff


def test_the_same_artifacts_again_change_nothing(tmp_path: Path) -> None:
    """No file is touched, not even its time."""
    write_all(OLD, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}

    written = write_all(OLD, tmp_path)

    assert written.unchanged == tuple(a.path for a in OLD)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_the_manifest_is_deterministic(tmp_path: Path) -> None:
    """It depends on the artifacts alone, not on their order, the time or the place."""
    write_all(OLD, tmp_path / "one")
    write_all(OLD[::-1], tmp_path / "two")

    assert (tmp_path / "one" / MANIFEST).read_text() == (tmp_path / "two" / MANIFEST).read_text()


@pytest.mark.parametrize("path", ["deepspeed/zero1.json", "deepspeed/zero3.json"])
def test_an_edited_file_is_refused_with_a_diff(tmp_path: Path, path: str) -> None:
    """Whether it would be replaced or removed: nothing is written, the diff shows the edit."""
    write_all(OLD, tmp_path)
    (tmp_path / path).write_text("mine\n")
    before = tree(tmp_path)

    with pytest.raises(EditedError) as caught:
        write_all(NEW, tmp_path)

    assert caught.value.paths == (path,)
    assert "-mine\n" in caught.value.diff
    assert "--force" in caught.value.hint
    assert tree(tmp_path) == before


def test_a_file_that_was_there_before_counts_as_edited(tmp_path: Path) -> None:
    """Without a manifest entry it is a person's file."""
    (tmp_path / "plan.json").write_text("mine\n")

    with pytest.raises(EditedError):
        write_all(OLD, tmp_path)


def test_force_overwrites_edited_files(tmp_path: Path) -> None:
    """Asked for, the edit is lost."""
    write_all(OLD, tmp_path)
    (tmp_path / "plan.json").write_text("mine\n")

    write_all(NEW, tmp_path, force=True)

    assert without_manifest(tree(tmp_path)) == generated(NEW)


def test_an_edit_that_equals_the_new_text_is_no_conflict(tmp_path: Path) -> None:
    """A person may have made the same change."""
    write_all(OLD, tmp_path)
    (tmp_path / "plan.json").write_text(NEW[0].text)

    write_all(NEW, tmp_path)

    assert without_manifest(tree(tmp_path)) == generated(NEW)


def test_a_deleted_file_is_written_again(tmp_path: Path) -> None:
    """Deleting is not editing."""
    write_all(OLD, tmp_path)
    (tmp_path / "plan.json").unlink()

    assert write_all(OLD, tmp_path).created == ("plan.json",)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"../x": "0"}}'])
def test_a_damaged_manifest_protects_every_file(tmp_path: Path, text: str) -> None:
    """Without trustworthy checksums a differing file is taken for edited."""
    write_all(OLD, tmp_path)
    (tmp_path / MANIFEST).write_text(text)

    with pytest.raises(EditedError):
        write_all(NEW, tmp_path)


class Cut(BaseException):
    """Stands for a process that ends here."""


def cut_at(moment: int, monkeypatch: pytest.MonkeyPatch, *, killed: bool) -> Callable[[], int]:
    """Let the n-th operation on the disk be the last; a killed process cleans up nothing."""
    done = 0
    touching = {
        os: ("rename", "replace", "unlink", "mkdir", "rmdir", "open"),
        anchored_folders.shutil: ("rmtree",),
    }

    def counted(operation: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            nonlocal done
            done += 1
            if done == moment or (killed and done > moment):
                raise Cut
            return operation(*args, **named)

        return call

    for home, names in touching.items():
        for name in names:
            monkeypatch.setattr(home, name, counted(getattr(home, name)))
    return lambda: done


def count_of_operations(tmp_path: Path) -> int:
    """How often an update touches the disk."""
    with pytest.MonkeyPatch.context() as patch:
        write_all(OLD, tmp_path / "counted")
        done = cut_at(-1, patch, killed=False)
        write_all(NEW, tmp_path / "counted")
        return done()


def test_a_raise_at_any_moment_leaves_the_old_or_the_new_folder(tmp_path: Path) -> None:
    """An exception, Ctrl-C included, before each single operation on the disk."""
    seen = set()
    for moment in range(1, count_of_operations(tmp_path) + 1):
        out = tmp_path / str(moment)
        write_all(OLD, out)
        with pytest.MonkeyPatch.context() as patch:
            cut_at(moment, patch, killed=False)
            with pytest.raises(Cut):
                write_all(NEW, out)
        found = without_manifest(tree(out))
        seen.add("old" if found == generated(OLD) else "new" if found == generated(NEW) else found)

    assert seen == {"old", "new"}


def test_a_kill_at_any_moment_is_made_good_by_the_next_call(tmp_path: Path) -> None:
    """Dead before each operation: old, new, or marked as unfinished; the next call completes it."""
    for moment in range(1, count_of_operations(tmp_path) + 1):
        out = tmp_path / str(moment)
        write_all(OLD, out)
        with pytest.MonkeyPatch.context() as patch:
            cut_at(moment, patch, killed=True)
            with pytest.raises(Cut):
                write_all(NEW, out)
        found = {p: t for p, t in tree(out).items() if not p.startswith((STAGING, COMMIT))}
        whole = (generated(OLD), generated(NEW))

        assert without_manifest(found) in whole or (out / COMMIT).is_dir()
        write_all(NEW, out)
        assert without_manifest(tree(out)) == generated(NEW)


def test_a_kill_while_a_folder_is_created_leaves_none(tmp_path: Path) -> None:
    """A new folder appears by one rename; what was staged is dropped by the next call."""
    with pytest.MonkeyPatch.context() as patch:
        done = cut_at(-1, patch, killed=False)
        write_all(OLD, tmp_path / "counted" / "run")
        count = done()
    for moment in range(1, count):  # the last one closes what is written
        out = tmp_path / str(moment) / "run"
        with pytest.MonkeyPatch.context() as patch:
            cut_at(moment, patch, killed=True)
            with pytest.raises(Cut):
                write_all(OLD, out)

        assert not out.exists()
        write_all(OLD, out)
        assert without_manifest(tree(out)) == generated(OLD)
        assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_a_path_outside_the_folder_is_refused(path: str) -> None:
    """An artifact names a place in the run folder."""
    with pytest.raises(RenderError):
        Artifact(path, "")


def make_file(out: Path) -> None:
    """A file where the folder should be."""
    out.write_text("x")


def make_dangling(out: Path) -> None:
    """A symbolic link to nothing."""
    out.symlink_to("nowhere")


def make_symlinked_target(out: Path) -> None:
    """A target that points out of the folder."""
    out.mkdir()
    (out / "plan.json").symlink_to("/etc/hostname")


def make_symlinked_folder(out: Path) -> None:
    """A subfolder that points out of the folder."""
    out.mkdir()
    (out / "deepspeed").symlink_to("/tmp")


def make_folder_for_file(out: Path) -> None:
    """A folder where a file should be."""
    (out / "plan.json").mkdir(parents=True)


def make_file_for_folder(out: Path) -> None:
    """A file where a subfolder should be."""
    out.mkdir()
    (out / "deepspeed").write_text("x")


PLACES = (
    make_file,
    make_dangling,
    make_symlinked_target,
    make_symlinked_folder,
    make_folder_for_file,
    make_file_for_folder,
)


@pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
def test_a_place_that_cannot_be_written_is_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A clear error, and nothing else in the folder."""
    out = tmp_path / "run"
    make(out)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(DsforgeError) as caught:
        write_all(OLD, out)

    assert str(out) in caught.value.message
    assert sorted(tmp_path.rglob("*")) == before


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """`--out file/run` names the file."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(DsforgeError, match="file"):
        write_all(OLD, tmp_path / "file" / "run")


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    """The second one is told, and writes nothing."""
    write_all(OLD, tmp_path)
    with anchored_folders.anchored(tmp_path), pytest.raises(DsforgeError, match="another"):
        write_all(NEW, tmp_path)

    assert without_manifest(tree(tmp_path)) == generated(OLD)


def test_the_manifest_holds_checksums_only(tmp_path: Path) -> None:
    """No time, no host, no absolute path."""
    write_all(OLD, tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / MANIFEST).read_text())

    assert manifest["files"] == {a.path: a.sha256 for a in sorted(OLD, key=lambda a: a.path)}
    assert str(tmp_path) not in json.dumps(manifest)
