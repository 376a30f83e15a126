"""Artifact: one text file of a run folder, the names that there are, and the manifest of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsforge.errors import RenderError
from dsforge.outside import UnreadableError, decoded, json_value

STAGING = ".dsforge-staging"
COMMIT = ".dsforge-commit"
REMOVALS = ".dsforge-removals.json"  # in the staging folder: paths that this commit removes
MANIFEST = ".dsforge-manifest.json"

# Scripts that start `dsforge train`, each by a template of its name: on any engine; on DeepSpeed.
ANY_ENGINE = ("torchrun.sh", "slurm.sbatch")
LAUNCHERS = ("deepspeed.sh", *ANY_ENGINE)

# Everything that dsforge writes into a folder. A manifest or a commit of somebody else can name
# nothing but these, so a file of the user with another name is never replaced or removed.
_GENERATED = re.compile(
    rf"""plan\.json | PLAN\.md | ds_config\.json | train(-deepspeed)?\.yaml | hostfile
    | \.deepspeed_env
    | deepspeed/[a-z0-9_]{{1,60}}\.json
    | megatron/(args\.txt | pretrain\.sh | slurm\.sbatch)
    | (launch|deepspeed)/({"|".join(map(re.escape, LAUNCHERS))})
    | for/[a-z0-9-]{{1,40}}/[A-Za-z0-9_-][A-Za-z0-9_.-]{{0,60}}
    | report\.(html | md | json)
    | figures/[a-z0-9-]{{1,60}}\.svg
    """,
    re.VERBOSE,
)


def is_generated(path: object) -> bool:
    """Whether a path, relative to a folder, is one that dsforge writes."""
    return isinstance(path, str) and _GENERATED.fullmatch(path) is not None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A text file of the run folder. `path` is relative, with forward slashes.

    A `private` file can be read by its owner only.
    """

    path: str
    text: str
    executable: bool = False
    private: bool = False

    def __post_init__(self) -> None:
        """Refuse a path that dsforge does not write, and text that no file can hold."""
        if not is_generated(self.path):
            raise RenderError(f"artifact path {self.path!r} is none of a run folder")
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            message = (
                f"{self.path} contains an unpaired surrogate (U+{ord(self.text[error.start]):04X})"
            )
            raise RenderError(message, "write the character itself") from error

    @property
    def has_diff(self) -> bool:
        """Whether people read its changes as lines: not those of a page."""
        return not self.path.endswith(".html")

    @property
    def content(self) -> bytes:
        """The bytes of the file."""
        return self.text.encode()

    @property
    def sha256(self) -> str:
        """Checksum of the text in hexadecimal."""
        return sha256(self.content)


def sha256(content: bytes) -> str:
    """Checksum in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def manifest(artifacts: Iterable[Artifact], generated: Mapping[str, str] | None = None) -> str:
    """The manifest as text, the same for the same artifacts.

    `generated` has the checksums of files as they were generated, where edits were merged in.
    """
    files = {a.path: a.sha256 for a in sorted(artifacts, key=lambda a: a.path)}
    document: dict[str, object] = {"schema_version": 1, "files": files}
    if generated:
        document["generated"] = dict(sorted(generated.items()))
    return json.dumps(document, indent=2) + "\n"


def generated_checksums(content: bytes | None) -> dict[str, str]:
    """Checksums by path of what dsforge generated last, before the edits of a person."""
    return checksums(content) | checksums(content, "generated")


def checksums(content: bytes | None, key: str = "files") -> dict[str, str]:
    """Checksums by path in a manifest: of the files as written; none where it is not readable.

    Every differing file then counts as edited, which is the safe side.
    """
    try:
        found = json_value(decoded(content or b"{}"))
    except UnreadableError:
        return {}
    files = found.get(key) if isinstance(found, dict) else None
    if not isinstance(files, dict):
        return {}
    return {path: str(checksum) for path, checksum in files.items() if is_generated(path)}
