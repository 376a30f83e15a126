"""Files for lint: reads them within limits, and writes repairs atomically.

Everything that is read may be hostile or broken. So a file is a regular one, bounded in size, and
text; what is wrong with it becomes a finding like any other, never the end of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsforge.artifacts.whole import write_whole
from dsforge.ds_config import read
from dsforge.errors import DsforgeError
from dsforge.findings import Edit, Finding
from dsforge.importing.marks import Flaw
from dsforge.lint.bounds import MAX_BYTES
from dsforge.lint.check import findings
from dsforge.lint.checked_file import checked_file
from dsforge.lint.reading.document import Document, Kind, applied
from dsforge.lint.reading.kind import BOM, document_of
from dsforge.lint.schemas.deepspeed_source import extracted, is_config_module
from dsforge.lint.schemas.releases import Release, Releases, frozen, number, with_installed
from dsforge.outside import UnreadableError, decoded, read_bytes, read_text

if TYPE_CHECKING:
    from dsforge.specs import ClusterSpec, ModelSpec

MAX_PASSES = 4  # repairs that make others possible
INSTALLED = "installed"


class NotRepairedError(DsforgeError):
    """A file that could be repaired and is left as it was; the message says why."""


class Against(NamedTuple):
    """What files are checked against."""

    releases: Releases
    release: Release
    model: ModelSpec | None = None
    cluster: ClusterSpec | None = None


IsBrokenBy = Callable[[str, str], bool]


def release_named(text: str | None) -> tuple[Releases, Release]:
    """The releases that are known, and the one to check against; the newest unless named."""
    if text == INSTALLED:
        return _installed()
    known = frozen()
    parts = (text or known.last).split(".")
    asked = number(".".join(parts))
    if not all(part.isdecimal() for part in parts) or not asked:
        raise DsforgeError(f"`--deepspeed` (={text!a}) is not a release", "such as 0.16.4 or 0.16")
    if asked < number(known.names[0]) or asked[:2] > number(known.last)[:2]:
        hint = f"`--deepspeed {INSTALLED}` uses the installed release"
        message = (
            f"DeepSpeed {text} is outside {known.names[0]} to {known.last}, the supported releases"
        )
        raise DsforgeError(message, hint)
    return known, asked


def _installed() -> tuple[Releases, Release]:
    """The schema of the DeepSpeed of this environment, from its source: nothing is imported."""
    spec = find_spec("deepspeed")
    if spec is None or spec.origin is None:
        raise DsforgeError("no DeepSpeed is installed here", "give a release: --deepspeed 0.19")
    root = Path(spec.origin).parent
    files = {str(path.relative_to(root)): path for path in root.rglob("*.py")}
    sources = {n: p.read_text("utf-8") for n, p in files.items() if is_config_module(n)}
    version = metadata.version("deepspeed").partition("+")[0]
    return with_installed(frozen(), extracted(sources), version), number(version)


def read_document(path: Path, kind: Kind | None = None) -> Document:
    """The document in a file; one with a single flaw where it cannot be read."""
    try:
        text = _text(path)
    except UnreadableError as error:
        line = f" (line {error.line})" if error.line else ""
        flaw = Flaw("file-unreadable", 0, error.reason + line)
        return Document(str(path), "unknown", "", {}, {}, (flaw,))
    return document_of(str(path), text, kind)


def _text(path: Path) -> str:
    """The text of a file, its byte-order mark included. Raises UnreadableError."""
    data = read_bytes(path, MAX_BYTES)
    if b"\x00" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnreadableError("file-not-text", "cannot be read: binary, not text")
    return BOM * data.startswith(BOM.encode()) + decoded(data)


def checked(document: Document, against: Against) -> tuple[Finding, ...]:
    """What is wrong with a document, together with the file that it names."""
    engine = _engine(document) if document.kind == "train" else None
    file = checked_file(
        document,
        against.releases,
        against.release,
        model=against.model,
        cluster=against.cluster,
        engine=engine,
        on_cpu=_runs_on_cpu(Path(document.name), against.cluster),
    )
    return findings(file)


def _runs_on_cpu(path: Path, cluster: ClusterSpec | None) -> bool:
    """Whether the ranks are on the CPU, by the cluster or by the variables of the run folder."""
    if cluster is not None:
        return cluster.gpu.is_cpu
    for folder in path.parents[:2]:  # a run folder has its configs in `deepspeed/`
        with suppress(UnreadableError):
            text = read_text(folder / ".deepspeed_env", MAX_BYTES, pipes=False)
            return "DS_ACCELERATOR=cpu" in text.splitlines()
    return False


def _engine(document: Document) -> Document | None:
    """The ds_config beside a train.yaml; none where it is not there or no JSON."""
    named = document.root.get("deepspeed_config")
    if not isinstance(named, str) or "\x00" in named:
        return None
    engine = read_document(Path(document.name).parent / named, "ds_config")
    return None if any(flaw.rule == "file-unreadable" for flaw in engine.flaws) else engine


def repaired(
    path: Path, document: Document, against: Against, is_broken_by: IsBrokenBy | None = None
) -> Document:
    """The document after all safe repairs, written to its file; unchanged where none is possible.

    `is_broken_by` asks the engine whether it reads the text before and refuses the one after.
    Raises NotRepairedError where it does, and where the file cannot be written.
    """
    now = _repaired_safely(document, against)
    if now.text == document.text:
        return document
    asked = is_broken_by is not None and document.kind == "ds_config" and not document.yaml
    if asked and is_broken_by is not None and is_broken_by(document.text, now.text):
        message = f"DeepSpeed reads {path} and would refuse it after the repairs"
        raise NotRepairedError(message, "repair it by hand")
    try:
        write_whole(path, now.text, lambda: _check_unchanged(path, document.text))
    except NotRepairedError:
        raise
    except DsforgeError as error:
        raise NotRepairedError(error.message, error.hint) from error
    except OSError as error:
        raise NotRepairedError(f"{path} cannot be written: {error.strerror}") from error
    return now


def _repaired_safely(document: Document, against: Against) -> Document:
    """The document after the repairs of all rules; of those of each in turn where all do harm."""
    everything = _after(document, against, None)
    if everything.text == document.text or not _is_worse(everything, document, against):
        return everything
    now = document
    rules = dict.fromkeys(finding.rule for finding in checked(document, against) if finding.edits)
    for rule in rules:
        candidate = _after(now, against, rule)
        if not _is_worse(candidate, now, against):
            now = candidate
    return now


def _after(document: Document, against: Against, rule: str | None) -> Document:
    """The document after the repairs of one rule, or of all."""
    now = document
    for _ in range(MAX_PASSES):
        repairing = (f for f in checked(now, against) if rule is None or f.rule == rule)
        edits = [edit for finding in repairing for edit in finding.edits]
        if not edits:
            break
        now = document_of(document.name, applied(now.text, edits), document.kind)
    return now


def _is_worse(now: Document, before: Document, against: Against) -> bool:
    """Whether a repaired file has an error that it had not, by the rules or the reading of it.

    A block whose name was misspelt is read only after its repair, and may then hold what the
    engine refuses: the file that it accepted before is left as it was.
    """
    return bool(_refusals(now, against) - _refusals(before, against))


def _refusals(document: Document, against: Against) -> Counter[str]:
    """How often each rule finds an error, and each problem of the config as the engine reads it."""
    errors = Counter(f.rule for f in checked(document, against) if f.severity == "error")
    if document.kind == "ds_config":
        errors.update(f"engine: {problem.rule}" for problem in read(document.root).problems)
    return errors


def is_harmless(document: Document, edits: Iterable[Edit], against: Against) -> bool:
    """Whether a document with some edits has no error that it had not."""
    now = document_of(document.name, applied(document.text, list(edits)), document.kind)
    return not _is_worse(now, document, against)


def _check_unchanged(path: Path, before: str) -> None:
    """Raise NotRepairedError where somebody has written to the file since it was read."""
    if _text(path) != before:
        raise NotRepairedError(f"{path} was changed meanwhile", "run it again")
