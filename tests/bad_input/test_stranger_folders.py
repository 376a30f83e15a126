"""Run folders that somebody else has prepared: nothing outside changes, nothing of the user's."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from dsforge.artifacts import COMMIT, MANIFEST, REMOVALS, STAGING, Artifact, write_all
from dsforge.artifacts.artifact import is_generated, manifest, sha256
from dsforge.artifacts.owner import SAFE, is_ours
from dsforge.bench.run import Bench, prepare_cell
from dsforge.errors import DsforgeError

NEW = (
    Artifact("plan.json", '{"new": 2}\n'),
    Artifact("deepspeed/zero1.json", "new zero1\n"),
    Artifact("launch/deepspeed.sh", "#!/bin/sh\n", executable=True),
    Artifact(".deepspeed_env", "OMP_NUM_THREADS=1\n", private=True),
)
OURS = "launch/deepspeed.sh"  # a name of ours under which the user keeps something of his own
Plant = Callable[[Path, Path], None]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Everything below a folder: kind and mode, and the content or what a link names."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content: bytes | str = str(path.readlink()) if stat.S_ISLNK(mode) else b""
        if stat.S_ISREG(mode):
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (mode, content)
    return found


def commit(run: Path, files: dict[str, str], removals: object = None) -> Path:
    """A commit folder as a stranger writes it, with a manifest that agrees."""
    folder = run / COMMIT
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    folder.mkdir(exist_ok=True)
    sums = {name: sha256(text.encode()) for name, text in files.items()}
    (folder / MANIFEST).write_text(json.dumps({"files": sums}))
    if removals is not None:
        (folder / REMOVALS).write_text(json.dumps(removals))
    return folder


def removing(path: str) -> Plant:
    """A commit that removes a path."""

    def plant(run: Path, outside: Path) -> None:
        commit(run, {}, [path.format(outside=outside)])

    plant.__name__ = f"removes {path}"
    return plant


def linking(where: str, *, kind: str) -> Plant:
    """A link out of the folder, or a pipe, in a place that is written, read or removed."""

    def plant(run: Path, outside: Path) -> None:
        (run / where).parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(run / where)
        else:
            (run / where).symlink_to(outside if kind == "folder" else outside / "precious")

    plant.__name__ = f"{where} is a {kind}"
    return plant


def link_in_commit(run: Path, outside: Path) -> None:
    """A file behind a sub folder that is a link: what moved would land outside."""
    folder = commit(run, {"deepspeed/zero1.json": "planted"})
    (run / "deepspeed").symlink_to(outside)
    assert folder.is_dir()


def commit_of_the_users_name(run: Path, outside: Path) -> None:
    """A commit that replaces a file which dsforge never writes."""
    commit(run, {"notes.txt": "planted"})


def commit_without_manifest(run: Path, outside: Path) -> None:
    """Files that nothing vouches for."""
    (commit(run, {"plan.json": "{}"}) / MANIFEST).unlink()


def commit_with_a_wrong_sum(run: Path, outside: Path) -> None:
    """A file that is not what its manifest says."""
    (commit(run, {"plan.json": "{}"}) / "plan.json").write_text("other")


def commit_over_the_users_file(run: Path, outside: Path) -> None:
    """A name of ours under which the user has a file: no manifest says that it is ours."""
    commit(run, {OURS: "planted"})


def removal_of_the_users_file(run: Path, outside: Path) -> None:
    """The manifest claims the user's file with its true checksum, and the commit removes it."""
    claimed = {"notes.txt": sha256((run / "notes.txt").read_bytes())}
    (run / MANIFEST).write_text(json.dumps({"files": claimed}))
    commit(run, {}, ["notes.txt"])


def manifest_claims_the_users_file(run: Path, outside: Path) -> None:
    """Without a commit, the claimed file would be removed as stale."""
    sums = {"notes.txt": sha256((run / "notes.txt").read_bytes())}
    (run / MANIFEST).write_text(json.dumps({"files": sums}))


def staging_with_a_link(run: Path, outside: Path) -> None:
    """A staging folder that is to be dropped holds a link."""
    (run / STAGING).mkdir()
    (run / STAGING / "x").symlink_to(outside)


def garbled(name: str, content: bytes) -> Plant:
    """A bookkeeping file with any content."""

    def plant(run: Path, outside: Path) -> None:
        if name == REMOVALS:
            commit(run, {})
            (run / COMMIT / REMOVALS).write_bytes(content)
        else:
            (run / name).write_bytes(content)

    plant.__name__ = f"{name} is {content[:12]!r}"
    return plant


PATHS = ("../victim", "{outside}/precious", "a/../../victim", "notes.txt", "", ".", "..", OURS)
LINKS = (
    MANIFEST,
    COMMIT,
    STAGING,
    "plan.json",
    "deepspeed",
    "launch",
    ".deepspeed_env",
    "hostfile",
)
INNER = (
    f"{COMMIT}/{MANIFEST}",
    f"{COMMIT}/plan.json",
    f"{COMMIT}/deepspeed",
    f"{COMMIT}/{REMOVALS}",
)
CONTENTS = (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'["' + b"x" * 1000 + b'"]', b"3", b"[[1]]")
PLANTS: list[Plant] = [
    *map(removing, PATHS),
    *(linking(w, kind=k) for w, k in product((*LINKS, *INNER), ("folder", "file", "pipe"))),
    *(garbled(name, content) for name, content in product((MANIFEST, REMOVALS), CONTENTS)),
    link_in_commit,
    commit_of_the_users_name,
    commit_without_manifest,
    commit_with_a_wrong_sum,
    commit_over_the_users_file,
    removal_of_the_users_file,
    manifest_claims_the_users_file,
    staging_with_a_link,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_nothing_outside_and_nothing_of_the_users_changes(tmp_path: Path, plant: Plant) -> None:
    """Refused with a message and no change at all, or written like any folder."""
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    run.mkdir()
    (outside / "precious").write_text("mine")
    (tmp_path / "victim").write_text("mine")
    (run / "notes.txt").write_text("mine")
    if plant is commit_over_the_users_file:
        (run / OURS).parent.mkdir()
        (run / OURS).write_text("mine")
    plant(run, outside)
    before, whole = snapshot(outside), snapshot(tmp_path)

    refused = None
    try:
        write_all(NEW, run)
    except DsforgeError as error:
        refused = error
    if refused is not None:
        assert snapshot(tmp_path) == whole
        assert "\n" not in refused.message
        assert refused.hint
    else:
        assert all((run / a.path).read_text() == a.text for a in NEW)
        assert not (run / COMMIT).exists()
    assert snapshot(outside) == before
    assert (tmp_path / "victim").read_text() == "mine"
    assert (run / "notes.txt").read_text() == "mine"


def test_a_commit_of_ours_is_still_finished(tmp_path: Path) -> None:
    """What a killed call has left is completed, with its removals."""
    old = (*NEW, Artifact("deepspeed/zero3.json", "old\n"))
    write_all(old, tmp_path)
    changed = Artifact("plan.json", '{"later": 3}\n')
    files = {a.path: a.text for a in (changed, *NEW[1:])}
    folder = commit(tmp_path, files, ["deepspeed/zero3.json"])
    (folder / MANIFEST).write_text(manifest((changed, *NEW[1:])))

    written = write_all(NEW, tmp_path)

    assert written.updated == ("plan.json",)
    assert not (tmp_path / "deepspeed/zero3.json").exists()


def test_an_edit_after_the_cut_is_kept(tmp_path: Path) -> None:
    """A pending commit does not replace or remove what a person has changed since."""
    write_all((*NEW, Artifact("deepspeed/zero3.json", "old\n")), tmp_path)
    (tmp_path / "deepspeed/zero3.json").write_text("mine")
    files = {a.path: a.text for a in NEW}
    commit(tmp_path, files, ["deepspeed/zero3.json"])

    write_all(NEW, tmp_path)

    assert (tmp_path / "deepspeed/zero3.json").read_text() == "mine"


@pytest.mark.parametrize("name", [f".run{STAGING}", "run"])
def test_a_link_in_the_place_of_a_new_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Neither the staging folder beside it nor the folder itself is reached through a link."""
    (tmp_path / "outside").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "outside")

    with pytest.raises(DsforgeError, match="symbolic link"):
        write_all(NEW, tmp_path / "run")

    assert not list((tmp_path / "outside").iterdir())


def test_a_bench_folder_that_is_a_link_is_not_cleared(tmp_path: Path) -> None:
    """A cell is made anew; behind a link it would be another run that is removed."""
    run, victim = tmp_path / "run", tmp_path / "victim" / "zero2"
    victim.mkdir(parents=True)
    run.mkdir()
    (victim / "train.yaml").write_text("mine")
    (run / "bench").mkdir()
    (run / "bench" / "zero2").symlink_to(victim)
    cell = type("Cell", (), {"name": "zero2", "config": "deepspeed/zero2.json"})()
    bench = Bench(run, None, None, run / "bench", 1, 1.0)  # type: ignore[arg-type]

    with pytest.raises(DsforgeError, match="is not a run"):
        prepare_cell(bench, cell)

    assert (victim / "train.yaml").read_text() == "mine"


def test_the_environment_file_is_never_wide(tmp_path: Path) -> None:
    """Mode 0600 from the first moment, and an old one of ours is narrowed."""
    seen: list[int] = []
    opened = os.open

    def watched(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        descriptor = opened(path, flags, mode, **more)
        if str(path).endswith(".deepspeed_env") and flags & os.O_CREAT:
            seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        write_all(NEW, tmp_path / "run")
    env = tmp_path / "run" / ".deepspeed_env"
    env.chmod(0o644)
    write_all(NEW, tmp_path / "run")
    narrowed = stat.S_IMODE(env.stat().st_mode)
    env.chmod(0o644)
    write_all((*NEW[:3], Artifact(".deepspeed_env", "A=2\n", private=True)), tmp_path / "run")

    assert seen == [0o600]
    assert narrowed == stat.S_IMODE(env.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["run", COMMIT])
def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """As git does; the one who called sudo, and a folder that is named as safe, pass."""
    monkeypatch.setattr("dsforge.artifacts.owner.CONTAINER_FILES", ())
    monkeypatch.setattr("dsforge.artifacts.owner.CONTAINER_VARIABLES", ())
    run = tmp_path / "run"
    write_all(NEW, run)
    commit(run, {a.path: a.text for a in NEW})
    os.chown(run if whose == "run" else run / COMMIT, 4321, -1)
    before = snapshot(run)

    with pytest.raises(DsforgeError, match="belongs to user 4321") as caught:
        write_all(NEW, run)

    assert snapshot(run) == before
    assert SAFE in caught.value.hint
    monkeypatch.setenv("SUDO_UID", "4321")
    write_all(NEW, run)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is anybody")
def test_whose_folders_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's by everybody; everybody's by root in a container, and nowhere else."""
    monkeypatch.setattr("dsforge.artifacts.owner.CONTAINER_VARIABLES", ("HERE",))
    monkeypatch.setattr("dsforge.artifacts.owner.CONTAINER_FILES", ())
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert not is_ours(1000)
    monkeypatch.setenv("HERE", "docker")
    assert is_ours(1000)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert is_ours(0)
    assert is_ours(1000)
    assert not is_ours(1001)


def test_names_of_other_files_are_none_of_ours() -> None:
    """The pattern of names takes no path with a way out."""
    for path in ("../plan.json", "/plan.json", "deepspeed/../plan.json", "plan.json\n", "x", "", 3):
        assert not is_generated(path)
