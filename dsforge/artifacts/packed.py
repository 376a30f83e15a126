"""Packed: a run folder as one zip file, in memory. The same artifacts make the same bytes."""

from __future__ import annotations

import io
import zipfile

from dsforge.artifacts.artifact import MANIFEST, Artifact, manifest

DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold: a plan has no date
PRIVATE, PLAIN, EXECUTABLE = 0o600, 0o644, 0o755  # modes, as writing gives them
REGULAR = 0o100000  # the type of a file in its mode


def packed(artifacts: tuple[Artifact, ...], folder: str) -> bytes:
    """The zip file of the artifacts and their manifest, below a folder of that name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in artifacts:
            mode = EXECUTABLE if each.executable else PLAIN
            content, mode = each.content, PRIVATE if each.private else mode
            archive.writestr(_entry(f"{folder}/{each.path}", mode), content)
        archive.writestr(_entry(f"{folder}/{MANIFEST}", PLAIN), manifest(artifacts))
    return stream.getvalue()


def _entry(path: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, DATE)
    entry.external_attr = (REGULAR | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
