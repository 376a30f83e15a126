"""Artifacts: text files in memory, and the one way to write a folder of them.

`write_all` is atomic for the folder as a whole. All new files are written into
`.dsforge-staging`; renaming that folder to `.dsforge-commit` is the moment of decision. Before it
the old files stand untouched; after it the new ones are complete on the same disk and only have to
be renamed into place, which the next call finishes (and the launch scripts wait for) if this one
was killed. A folder that did not exist appears with a single rename.

Files that a person has edited are never overwritten unasked: `.dsforge-manifest.json` keeps the
checksum of every file as it was written. What dsforge did not write is never touched.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dsforge.errors import DsforgeError, EditedError, RenderError

STAGING = ".dsforge-staging"
COMMIT = ".dsforge-commit"
REMOVALS = ".dsforge-removals.json"  # in the staging folder: paths that this commit removes
MANIFEST = ".dsforge-manifest.json"
LONGEST_DIFF = 200  # lines for one file
ANOTHER = "choose another --out"
REMOVE = "remove it or choose another --out"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A text file of the run folder. `path` is relative, with forward slashes."""

    path: str
    text: str
    executable: bool = False

    def __post_init__(self) -> None:
        """Refuse a path that would leave the folder."""
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or ".." in parts or "\0" in self.path:
            raise RenderError(f"artifact path {self.path!r} leaves the run folder")

    @property
    def sha256(self) -> str:
        """Checksum of the text in hexadecimal."""
        return _sha256(self.text.encode())


class Written(NamedTuple):
    """What `write_all` did, as paths, and the diff of the updated files."""

    created: tuple[str, ...]
    updated: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]
    diff: str


def write_all(artifacts: tuple[Artifact, ...], folder: Path, *, force: bool = False) -> Written:
    """Write the artifacts as the new content of a folder, all of them or none.

    Generated files that are no artifact any more are removed. Raises EditedError, with a diff and
    before anything is written, where a person has edited a file and `force` is not set.
    """
    try:
        if not folder.exists() and not folder.is_symlink():
            return _create(artifacts, folder)
        _check_folder(folder)
        with _locked(folder):
            finish(folder)
            return _update(artifacts, folder, force=force)
    except OSError as error:
        message = f"cannot write {error.filename or folder}: {error.strerror}"
        raise DsforgeError(message, ANOTHER) from error


def finish(folder: Path) -> None:
    """Complete a commit that was cut short, and drop what was staged but never committed."""
    commit = folder / COMMIT
    if commit.is_dir():
        _apply(folder)
    if (folder / STAGING).is_dir():
        shutil.rmtree(folder / STAGING)


def _create(artifacts: tuple[Artifact, ...], folder: Path) -> Written:
    """A folder that did not exist, by one rename."""
    parent = folder.absolute().parent
    if parent.exists() and not parent.is_dir():
        raise DsforgeError(f"cannot write {folder}: {parent} is not a folder")
    parent.mkdir(parents=True, exist_ok=True)
    with _locked(parent):
        staging = parent / f".{folder.name}{STAGING}"
        shutil.rmtree(staging, ignore_errors=True)
        try:
            _stage(artifacts, staging)
            staging.rename(folder)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    return Written(tuple(a.path for a in artifacts), (), (), (), "")


def _update(artifacts: tuple[Artifact, ...], folder: Path, *, force: bool) -> Written:
    """New content for a folder that exists."""
    known = _read_manifest(folder)
    stale = tuple(path for path in sorted(known) if path not in {a.path for a in artifacts})
    _check_targets([a.path for a in artifacts] + list(stale), folder)
    before = {a.path: _content(folder / a.path) for a in artifacts}
    changed = tuple(a for a in artifacts if before[a.path] != a.text.encode())
    edited = tuple(a for a in changed if _is_edited(before[a.path], known.get(a.path)))
    lost = tuple(path for path in stale if _is_edited(_content(folder / path), known[path]))
    if (edited or lost) and not force:
        raise _edited_error(edited, lost, folder)
    unchanged = tuple(a.path for a in artifacts if a not in changed)
    if changed or stale or _content(folder / MANIFEST) != _manifest(artifacts).encode():
        _commit(artifacts, stale, folder)
    updated = tuple(a for a in changed if before[a.path] is not None)
    return Written(
        created=tuple(a.path for a in changed if a not in updated),
        updated=tuple(a.path for a in updated),
        unchanged=unchanged,
        removed=stale,
        diff="".join(_diff(a.path, before[a.path] or b"", a.text) for a in updated),
    )


def _commit(artifacts: tuple[Artifact, ...], removals: tuple[str, ...], folder: Path) -> None:
    """Stage everything, decide by one rename, put it in place."""
    staging = folder / STAGING
    try:
        _stage(artifacts, staging)
        (staging / REMOVALS).write_text(json.dumps(removals))
        staging.rename(folder / COMMIT)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    try:
        _apply(folder)
    except BaseException:  # Ctrl-C between two renames: it is decided, so finish
        _apply(folder)
        raise


def _stage(artifacts: tuple[Artifact, ...], staging: Path) -> None:
    """Write all files and the manifest below a folder of their own."""
    for artifact in artifacts:
        target = staging / artifact.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(artifact.text, encoding="utf-8", newline="")
        if artifact.executable:
            target.chmod(target.stat().st_mode | 0o111)
    (staging / MANIFEST).write_text(_manifest(artifacts))


def _apply(folder: Path) -> None:
    """Rename committed files into place; can be cut at any point and called again.

    The list of removals goes first and the manifest last, so that what remains is always enough.
    """
    commit = folder / COMMIT
    removals = commit / REMOVALS
    if removals.exists():
        for path in json.loads(removals.read_text()):
            (folder / path).unlink(missing_ok=True)
        removals.unlink()
    staged = sorted(p for p in commit.rglob("*") if p.is_file() and p.name != MANIFEST)
    for source in [*staged, *(p for p in [commit / MANIFEST] if p.exists())]:
        target = folder / source.relative_to(commit)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    shutil.rmtree(commit)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder to ourselves; the lock ends with the process, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise DsforgeError(f"another dsforge gen is writing {folder}", "wait for it") from error
    try:
        yield
    finally:
        os.close(descriptor)


def _check_folder(folder: Path) -> None:
    """Raise DsforgeError where the folder cannot take files."""
    if not folder.is_dir():
        raise DsforgeError(f"`--out` (={folder}) is not a folder", ANOTHER)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DsforgeError(f"`--out` (={folder}) is not writable", ANOTHER)


def _check_targets(paths: list[str], folder: Path) -> None:
    """Raise DsforgeError where a target is no regular file or lies behind a symbolic link."""
    for path in paths:
        target = folder / path
        for place in (target, *target.parents):
            if place == folder:
                break
            if place.is_symlink():
                raise DsforgeError(f"{place} is a symbolic link", REMOVE)
        if target.exists() and not target.is_file():
            raise DsforgeError(f"{target} is not a file", REMOVE)
        parent = target.parent
        if parent.exists() and not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            raise DsforgeError(f"{parent} is not a writable folder", ANOTHER)


def _read_manifest(folder: Path) -> dict[str, str]:
    """Checksums by path as written last time; none where there is no readable manifest."""
    content = _content(folder / MANIFEST)
    try:
        files = json.loads(content or b"{}").get("files", {})
    except (ValueError, AttributeError):
        return {}  # damaged: every differing file then counts as edited, which is the safe side
    if not isinstance(files, dict):
        return {}
    return {path: str(checksum) for path, checksum in files.items() if _is_inside(path)}


def _is_inside(path: str) -> bool:
    """Whether a path from a manifest stays in the folder."""
    return not path.startswith("/") and ".." not in PurePosixPath(path).parts


def _manifest(artifacts: tuple[Artifact, ...]) -> str:
    """The manifest as text, the same for the same artifacts."""
    files = {a.path: a.sha256 for a in sorted(artifacts, key=lambda a: a.path)}
    return json.dumps({"schema_version": 1, "files": files}, indent=2) + "\n"


def _content(path: Path) -> bytes | None:
    """Bytes of a file; none where it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _is_edited(content: bytes | None, checksum: str | None) -> bool:
    """Whether a file on disk differs from what was written there last time."""
    return content is not None and _sha256(content) != checksum


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _edited_error(edited: tuple[Artifact, ...], lost: tuple[str, ...], folder: Path) -> EditedError:
    """The refusal, with what would have happened to each edited file."""
    diffs = [_diff(a.path, _content(folder / a.path) or b"", a.text) for a in edited]
    diffs += [_diff(path, _content(folder / path) or b"", "") for path in lost]
    paths = (*(a.path for a in edited), *lost)
    return EditedError(paths, "".join(diffs))


def _diff(path: str, old: bytes, new: str) -> str:
    """Unified diff from the file on disk to the new text, cut where it is long."""
    lines = list(
        difflib.unified_diff(
            old.decode("utf-8", "replace").splitlines(keepends=True),
            new.splitlines(keepends=True),
            fromfile=f"{path} (on disk)",
            tofile=f"{path} (new)",
        )
    )
    if len(lines) > LONGEST_DIFF:
        rest = len(lines) - LONGEST_DIFF
        lines = [*lines[:LONGEST_DIFF], f"... {rest} more lines\n"]
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
