"""Files for lint: found, read within limits, and written back whole. The only place here that does.

Everything that is read may be hostile or broken. So a file is a regular one, bounded in size, and
text; what is wrong with it becomes a finding like any other, never the end of the run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsforge.errors import DsforgeError
from dsforge.lint.case import case_of
from dsforge.lint.document import Document, Flaw, Kind, applied
from dsforge.lint.extract import extracted, is_config_module
from dsforge.lint.registry import Finding, findings
from dsforge.lint.releases import Release, Releases, frozen, number, with_installed
from dsforge.lint.texts import document_of

if TYPE_CHECKING:
    from dsforge.specs import ClusterSpec, ModelSpec

MAX_BYTES = 512 * 1024  # a config has a few KB
MAX_FILES = 20_000
MAX_PASSES = 4  # repairs that make others possible
SUFFIXES = (".json", ".yaml", ".yml")
NAMES = ("hostfile", ".deepspeed_env", "args.txt")
SKIPPED = {".git", "node_modules", "__pycache__", ".venv", "venv", ".mypy_cache", ".ruff_cache"}
INSTALLED = "installed"


class Against(NamedTuple):
    """What files are checked against."""

    releases: Releases
    release: Release
    model: ModelSpec | None = None
    cluster: ClusterSpec | None = None


class Found(NamedTuple):
    """Files to look at: those that were named, and those that lay in a folder that was."""

    path: Path
    named: bool


def release_named(text: str | None) -> tuple[Releases, Release]:
    """The releases that are known, and the one to check against; the newest unless named."""
    if text == INSTALLED:
        return _installed()
    known = frozen()
    parts = (text or known.last).split(".")
    asked = number(".".join(parts))
    if not all(part.isdigit() for part in parts) or not asked:
        raise DsforgeError(f"`--deepspeed` (={text!a}) is no release", "such as 0.16.4 or 0.16")
    if asked < number(known.names[0]) or asked[:2] > number(known.last)[:2]:
        hint = f"`--deepspeed {INSTALLED}` reads the one that is installed here"
        message = f"DeepSpeed {text} is outside {known.names[0]} to {known.last}, which are known"
        raise DsforgeError(message, hint)
    return known, asked


def _installed() -> tuple[Releases, Release]:
    """The schema of the DeepSpeed of this environment, from its source: nothing is imported."""
    spec = find_spec("deepspeed")
    if spec is None or spec.origin is None:
        raise DsforgeError("no DeepSpeed is installed here", "name a release: --deepspeed 0.19")
    root = Path(spec.origin).parent
    files = {str(path.relative_to(root)): path for path in root.rglob("*.py")}
    sources = {n: p.read_text("utf-8") for n, p in files.items() if is_config_module(n)}
    version = metadata.version("deepspeed").partition("+")[0]
    return with_installed(frozen(), extracted(sources), version), number(version)


def found(paths: Iterable[Path]) -> Iterator[Found]:
    """The files that are named, and those of a known kind in the folders that are."""
    count = 0
    for path in paths:
        if not path.is_dir():
            yield Found(path, named=True)
            continue
        for inner in _walked(path):
            count += 1
            if count > MAX_FILES:
                raise DsforgeError(
                    f"more than {MAX_FILES} files below {path}", "name a folder in it"
                )
            yield Found(inner, named=False)


def _walked(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(files):
            if name.endswith(SUFFIXES) or name.startswith(NAMES):
                yield Path(where) / name


def read_document(path: Path, kind: Kind | None = None) -> Document:
    """The document in a file; one with a single flaw where it cannot be read."""
    try:
        text = _text(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        flaw = Flaw("file-unreadable", 0, f"cannot be read: {why}")
        return Document(str(path), "unknown", "", {}, {}, (flaw,))
    return document_of(str(path), text, kind)


def _text(path: Path) -> str:
    """The text of a regular file of bounded size. Raises OSError and ValueError."""
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")
    with path.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES // 1024} KiB, which no config is")
    if b"\x00" in data:
        raise ValueError("binary, not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"not UTF-8 text (line {line})") from None


def checked(document: Document, against: Against) -> tuple[Finding, ...]:
    """What is wrong with a document, together with the file that it names."""
    engine = _engine(document) if document.kind == "train" else None
    case = case_of(
        document,
        against.releases,
        against.release,
        model=against.model,
        cluster=against.cluster,
        engine=engine,
    )
    return findings(case)


def _engine(document: Document) -> Document | None:
    """The ds_config beside a train.yaml; none where it is not there or no JSON."""
    named = document.root.get("deepspeed_config")
    if not isinstance(named, str) or "\x00" in named:
        return None
    engine = read_document(Path(document.name).parent / named, "ds_config")
    return None if any(flaw.rule == "file-unreadable" for flaw in engine.flaws) else engine


def repaired(path: Path, document: Document, against: Against) -> Document:
    """The document after every safe repair, which the file then holds too; else as it was.

    Raises DsforgeError where the file cannot be written.
    """
    now = document
    for _ in range(MAX_PASSES):
        edits = [edit for finding in checked(now, against) for edit in finding.edits]
        if not edits:
            break
        now = document_of(document.name, applied(now.text, edits), document.kind)
    if now.text == document.text or _is_worse(now, document):
        return document
    try:
        _write(path, now.text)
    except OSError as error:
        raise DsforgeError(f"{path} cannot be written: {error.strerror}") from error
    return now


def _is_worse(now: Document, before: Document) -> bool:
    """Whether repairs broke the text."""
    syntax = ("json-syntax", "yaml-syntax", "not-a-mapping")
    broken = sum(flaw.rule in syntax for flaw in now.flaws)
    return broken > sum(flaw.rule in syntax for flaw in before.flaws)


def _write(path: Path, text: str) -> None:
    """Put a text in place of a file at once, with the permissions of the old one."""
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        Path(name).chmod(target.stat().st_mode & 0o7777)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
