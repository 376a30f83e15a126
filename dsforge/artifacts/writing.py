"""Writing: the artifacts of a folder, all of them or none."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dsforge.artifacts.anchored import ANOTHER, Anchored, anchored
from dsforge.artifacts.artifact import (
    COMMIT,
    MANIFEST,
    REMOVALS,
    STAGING,
    Artifact,
    generated_checksums,
    manifest,
    sha256,
)
from dsforge.artifacts.mounts import mount_points
from dsforge.artifacts.owner import check_owner
from dsforge.artifacts.pending import finish
from dsforge.errors import DsforgeError, EditedError

LONGEST_DIFF = 200  # lines for one file
PRIVATE, PLAIN, EXECUTABLE = 0o600, 0o666, 0o777  # modes of new files, less the umask


class Written(NamedTuple):
    """What `write_all` did, as paths, and the diff of the updated files."""

    created: tuple[str, ...]
    updated: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]
    merged: tuple[str, ...]  # of updated and unchanged: edits of a person are in them
    diff: str


def write_all(
    artifacts: tuple[Artifact, ...],
    folder: Path,
    *,
    force: bool = False,
    bases: Mapping[str, str] | None = None,
) -> Written:
    """Write the artifacts as the new content of a folder, all of them or none.

    Generated files that are no artifact any more are removed. What a person has edited is merged
    with the new content, by the texts of the last generation in `bases`. Raises EditedError, with a
    diff and before anything is written, where that is not possible and `force` is not set.
    """
    try:
        if not os.path.lexists(folder):
            return _create(artifacts, folder)
        _check_folder(folder)
        with anchored(folder) as anchor:
            if any(anchor.state(name) for name in (MANIFEST, COMMIT, STAGING)):
                check_owner(anchor.descriptor, folder)
            finish(anchor, force=force)
            anchor.drop(STAGING)
            return _update(artifacts, anchor, force=force, bases=bases or {})
    except OSError as error:
        message = f"cannot write {error.filename or folder}: {error.strerror}"
        raise DsforgeError(message, ANOTHER) from error


def _create(artifacts: tuple[Artifact, ...], folder: Path) -> Written:
    """A folder that did not exist, by one rename."""
    parent = folder.absolute().parent
    if parent.exists() and not parent.is_dir():
        raise DsforgeError(f"cannot write {folder}: {parent} is not a folder")
    parent.mkdir(parents=True, exist_ok=True)
    name = f".{folder.name}{STAGING}"
    with anchored(Path(os.path.realpath(parent))) as anchor:
        anchor.drop(name)
        try:
            _stage(artifacts, anchor, name)
            anchor.rename(name, folder.name)
        except BaseException:
            _dropped(anchor, name)
            raise
    return Written(tuple(a.path for a in artifacts), (), (), (), (), "")


def _update(
    artifacts: tuple[Artifact, ...], folder: Anchored, *, force: bool, bases: Mapping[str, str]
) -> Written:
    """New content for a folder that exists."""
    known = generated_checksums(folder.content(MANIFEST))
    stale = tuple(path for path in sorted(known) if path not in {a.path for a in artifacts})
    _check_targets([a.path for a in artifacts] + list(stale), folder)
    before = {a.path: folder.content(a.path) for a in artifacts}
    edited = tuple(a for a in artifacts if _is_edited_since(a, before[a.path], known))
    lost = tuple(path for path in stale if _is_edited(folder.content(path), known[path]))
    kept = {} if force else {a.path: _merged(a, before[a.path], bases, known) for a in edited}
    refused = tuple(a for a in edited if kept.get(a.path) is None)
    if (refused or lost) and not force:
        raise _edited_error(refused, lost, folder)
    generated = {a.path: a.sha256 for a in edited if kept.get(a.path) not in (None, a)}
    artifacts = tuple(kept.get(a.path) or a for a in artifacts)
    changed = tuple(a for a in artifacts if before[a.path] != a.content)
    if changed or stale or folder.content(MANIFEST) != manifest(artifacts, generated).encode():
        _commit(artifacts, stale, folder, generated)
    for artifact in artifacts:
        if artifact.private:
            folder.narrow(artifact.path)
    updated = tuple(a for a in changed if before[a.path] is not None)
    return Written(
        created=tuple(a.path for a in changed if a not in updated),
        updated=tuple(a.path for a in updated),
        unchanged=tuple(a.path for a in artifacts if a not in changed),
        removed=stale,
        merged=tuple(generated),
        diff="".join(_diff(a.path, before[a.path] or b"", a.text) for a in updated if a.has_diff),
    )


def _is_edited_since(artifact: Artifact, content: bytes | None, known: Mapping[str, str]) -> bool:
    """Whether a person has changed a file since it was generated, and not to its new content."""
    return content != artifact.content and _is_edited(content, known.get(artifact.path))


def _merged(
    artifact: Artifact, content: bytes | None, bases: Mapping[str, str], known: Mapping[str, str]
) -> Artifact | None:
    """The artifact with the edits of the file on disk; none where they cannot be merged."""
    if content is None or artifact.path not in bases:
        return None
    from dsforge.artifacts.merging import merged  # only where something was edited

    return merged(artifact, content, bases, known.get(artifact.path))


def _commit(
    artifacts: tuple[Artifact, ...],
    removals: tuple[str, ...],
    folder: Anchored,
    generated: Mapping[str, str],
) -> None:
    """Stage everything, decide by one rename, put it in place."""
    try:
        _stage(artifacts, folder, STAGING, removals=removals, generated=generated)
        folder.rename(STAGING, COMMIT)
    except BaseException:
        _dropped(folder, STAGING)
        raise
    try:
        finish(folder, force=True)  # what is edited was looked at before
    except BaseException:  # Ctrl-C between two renames: it is decided, so finish
        finish(folder, force=True)
        raise


def _stage(
    artifacts: tuple[Artifact, ...],
    folder: Anchored,
    name: str,
    *,
    removals: tuple[str, ...] | None = None,
    generated: Mapping[str, str] | None = None,
) -> None:
    """Write all files and the manifest into a new folder; with removals, as a commit."""
    folder.make(name)
    with folder.inner(name) as staging:
        if staging is None:
            raise DsforgeError(f"{folder.path / name} was removed by another process", ANOTHER)
        for artifact in artifacts:
            mode = EXECUTABLE if artifact.executable else PLAIN
            staging.write(artifact.path, artifact.content, PRIVATE if artifact.private else mode)
        staging.write(MANIFEST, manifest(artifacts, generated).encode(), PLAIN)
        if removals is not None:
            staging.write(REMOVALS, json.dumps(removals).encode(), PLAIN)


def _dropped(folder: Anchored, name: str) -> None:
    """Remove what was staged, as far as possible: the error that led here is the one to show."""
    with suppress(OSError, DsforgeError):
        folder.drop(name)


def _check_folder(folder: Path) -> None:
    """Raise DsforgeError where the folder cannot take files."""
    if folder.is_symlink() and folder.is_dir():
        place = os.path.realpath(folder)
        raise DsforgeError(
            f"`--out` (={folder}) is a symbolic link", f"give the folder itself: --out {place}"
        )
    if not folder.is_dir():
        raise DsforgeError(f"`--out` (={folder}) is not a folder", ANOTHER)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DsforgeError(f"`--out` (={folder}) is not writable", ANOTHER)


def _check_targets(paths: list[str], folder: Anchored) -> None:
    """Raise DsforgeError where a target is no file, or cannot be replaced by a whole new one."""
    mounts = mount_points()
    for path in paths:
        folder.check_file(path)
        if os.path.realpath(folder.path / path) in mounts:
            message = f"{folder.path / path} is a mount point and cannot be replaced"
            raise DsforgeError(message, f"mount its folder instead, or {ANOTHER}")
        parent = (folder.path / path).parent
        if parent.exists() and not os.access(parent, os.W_OK | os.X_OK):
            raise DsforgeError(f"{parent} is not a writable folder", ANOTHER)


def _is_edited(content: bytes | None, checksum: str | None) -> bool:
    """Whether a file on disk differs from what was written there last time."""
    return content is not None and sha256(content) != checksum


def _edited_error(
    edited: tuple[Artifact, ...], lost: tuple[str, ...], folder: Anchored
) -> EditedError:
    """The refusal, with what would have happened to each edited file."""
    diffs = [_diff(a.path, folder.content(a.path) or b"", a.text) for a in edited]
    diffs += [_diff(path, folder.content(path) or b"", "") for path in lost]
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
