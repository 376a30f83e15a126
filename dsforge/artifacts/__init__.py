"""Artifacts: text files in memory, and the one way to write a folder of them.

`write_all` is atomic for the folder as a whole. All new files are written into
`.dsforge-staging`; renaming that folder to `.dsforge-commit` is the moment of decision. Before it
the old files stand untouched; after it the new ones are complete on the same disk and only have to
be renamed into place, which the next call finishes (and the launch scripts wait for) if this one
was killed. A folder that did not exist appears with a single rename.

Edits of a person are merged with new content, never overwritten: `.dsforge-manifest.json` has the
checksum of every file as it was generated and as it was written. Other files are never touched.

A run folder may come from somebody else, so nothing in it is believed: every path is one that
dsforge writes, every place is reached through the open folder without following a link, and a
commit that is waiting to be finished is checked as a whole before the first file moves.
"""

from dsforge.artifacts.artifact import (
    ANY_ENGINE,
    COMMIT,
    LAUNCHERS,
    MANIFEST,
    REMOVALS,
    STAGING,
    Artifact,
)
from dsforge.artifacts.writing import Written, write_all

__all__ = [
    "ANY_ENGINE",
    "COMMIT",
    "LAUNCHERS",
    "MANIFEST",
    "REMOVALS",
    "STAGING",
    "Artifact",
    "Written",
    "write_all",
]
