"""Merging: the edits of a person and a new generation of the same file, by their common base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from merge3 import Merge3

from dsforge.artifacts.artifact import Artifact, sha256
from dsforge.outside import UnreadableError, decoded, json_value


def merged(
    artifact: Artifact, edited: bytes, bases: Mapping[str, str], checksum: str | None
) -> Artifact | None:
    """The artifact with a person's edits kept; none where both changed the same lines.

    `edited` is the file on disk, `bases` are the texts of the last generation, and `checksum` is
    what the manifest says of it: a base that is not that one is not used.
    """
    base = bases.get(artifact.path)
    if base is None or sha256(base.encode()) != checksum:
        return None
    try:
        mine = decoded(edited)
    except UnreadableError:
        return None
    old, edit, new = (text.splitlines(keepends=True) for text in (base, mine, artifact.text))
    regions = list(Merge3(old, edit, new).merge_groups())
    if any(region[0] == "conflict" for region in regions):
        return None
    text = "".join(line for region in regions for line in region[1])
    if not _is_readable(artifact.path, text):
        return None
    return Artifact(artifact.path, text, executable=artifact.executable, private=artifact.private)


def _is_readable(path: str, text: str) -> bool:
    """Whether a merged file is still what its name says: lines that fit may not fit together."""
    suffix = PurePath(path).suffix
    if suffix == ".json":
        try:
            json_value(text, unique=True)
        except UnreadableError:
            return False
    if suffix == ".yaml":
        from dsforge.reading.tree import grown

        return not grown(text, path).problems
    return True
