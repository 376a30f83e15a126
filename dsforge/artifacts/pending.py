"""Pending: a commit that was cut short is finished, if it is one.

Whoever made the folder could have put anything into `.dsforge-commit`. A commit is therefore
checked as a whole, and against the folder, before the first file moves: it may only hold files
that its own manifest names with their checksums, only replace and remove what the folder's
manifest says dsforge wrote, and leave alone what a person has edited since.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.artifacts.anchored import REMOVE, Anchored
from dsforge.artifacts.artifact import COMMIT, MANIFEST, REMOVALS, checksums, is_generated, sha256
from dsforge.errors import DsforgeError, EditedError
from dsforge.outside import UnreadableError, decoded, json_value


class _Step(NamedTuple):
    """What a commit still has to do, the manifest last."""

    removals: tuple[str, ...]
    moves: tuple[str, ...]


def finish(folder: Anchored, *, force: bool = False) -> None:
    """Complete the commit in a folder, where there is one.

    Raises DsforgeError before anything is changed where it is no commit of dsforge, EditedError
    where it would replace what a person has edited and `force` is not set.
    """
    with folder.inner(COMMIT) as commit:
        if commit is None:
            return
        step = _checked(folder, commit, force=force)
        for path in step.removals:
            folder.remove(path)
        commit.remove(REMOVALS)
        for path in step.moves:
            commit.move(path, folder)
    folder.drop(COMMIT)


def _checked(folder: Anchored, commit: Anchored, *, force: bool) -> _Step:
    """What is left to do. Raises DsforgeError where anything of it is not to be done."""
    files = commit.files()
    staged = [path for path in files if path not in (MANIFEST, REMOVALS)]
    if MANIFEST not in files and files:
        raise _no_commit(commit, f"it has no {MANIFEST}")
    before, after = checksums(folder.content(MANIFEST)), checksums(commit.content(MANIFEST))
    for path in staged:
        if after.get(path) != sha256(commit.content(path) or b""):
            raise _no_commit(commit, f"{path} differs from its {MANIFEST}")
    removals = _removals(commit, before, after)
    edited = [path for path in staged if _is_edited(folder, path, before, after)]
    if edited and not force:
        raise EditedError(tuple(edited), "")
    gone = tuple(p for p in removals if force or not _is_edited(folder, p, before, after))
    return _Step(gone, (*staged, *(path for path in files if path == MANIFEST)))


def _removals(commit: Anchored, before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The paths that a commit removes. Raises DsforgeError where one is not ours to remove."""
    content = commit.content(REMOVALS)
    try:
        paths = json_value(decoded(content)) if content is not None else []
    except UnreadableError as error:
        raise _no_commit(commit, f"{REMOVALS} {error.reason}") from error
    if not isinstance(paths, list):
        raise _no_commit(commit, f"{REMOVALS} is not a list")
    for path in paths:
        if not is_generated(path) or path not in before or path in after:
            raise _no_commit(commit, f"it removes {str(path)[:100]!a}, which dsforge did not write")
    return paths


def _is_edited(folder: Anchored, path: str, before: dict[str, str], after: dict[str, str]) -> bool:
    """Whether a file on disk is neither the old nor the new one. Raises DsforgeError for a link."""
    content = folder.content(path)
    return content is not None and sha256(content) not in (before.get(path), after.get(path))


def _no_commit(commit: Anchored, why: str) -> DsforgeError:
    return DsforgeError(f"{commit.path} is not a commit of dsforge: {why}", REMOVE)
