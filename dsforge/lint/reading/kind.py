"""From text to Document: detects the kind of file and parses it.

The kind is taken from the name where that is a convention of the launcher, else from what the file
says (`telling.py`).
"""

from __future__ import annotations

import re
from pathlib import PurePath

from dsforge.errors import SpecError
from dsforge.findings import Edit, Severity
from dsforge.importing.marks import Flaw, Mark
from dsforge.importing.programs import match_of
from dsforge.importing.script_text import arguments_of
from dsforge.lint.reading.argument_lines import arguments_in, words_of
from dsforge.lint.reading.document import Document, Kind
from dsforge.lint.reading.json_text import UNFILLED, parsed, plain
from dsforge.lint.reading.telling import Told, told_of, told_of_text

HOST = re.compile(r"\S+[ \t]+slots=")
BOM = "\ufeff"
LOOKED_AT = 50  # lines from which the kind is told
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".job")
NOT_MEGATRON = "a script without arguments of Megatron-LM, which are all that lint reads of one"
NOT_YAML = "not YAML"  # as the reader of YAML begins; aliases and tags are YAML
FILLED_IN = re.compile(r"\{\{|\{%|\$\{|<%")  # what another program fills in
FEWEST_OWN = 4  # flags, before a script is one that starts Megatron
OF_MEGATRON = frozenset(
    (
        *("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length"),
        *("--micro-batch-size", "--global-batch-size", "--max-position-embeddings"),
        *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--train-iters"),
        *("--lr-decay-style", "--data-path", "--lr-decay-iters", "--train-samples"),
    )
)
OTHER_TEXTS = (  # none of which is a hostfile or a list of variables, whatever its name begins with
    *(*SCRIPTS, ".py", ".md", ".rst", ".ipynb", ".html", ".css", ".js", ".toml", ".patch", ".diff"),
    *(".j2", ".jinja", ".tmpl", ".tpl", ".c", ".cc", ".cpp", ".h", ".go", ".rs", ".ts", ".log"),
    *(".csv", ".xml", ".svg", ".lock", ".orig", ".rej"),
)
CHANGES = re.compile(r"diff --git |--- \S.*\n\+\+\+ \S|Index: |From [0-9a-f]{40} ")  # a patch


def document_of(name: str, text: str, kind: Kind | None = None) -> Document:
    """The document in a text; without a kind, name and content decide."""
    form = form_of(name, text, kind)
    if form == "json":
        return _json(name, text, kind)
    if form == "yaml":
        return _yaml(name, text, kind)
    if is_script(name, text) and kind in (None, "megatron"):
        return _script(name, text, kind)
    told = Told(kind) if kind else _told_of_lines(name, text)
    root, marks = arguments_in(text) if told.kind == "megatron" else ({}, {})
    return _checked(Document(name, told.kind, text, root, marks), told)


def is_script(name: str, text: str) -> bool:
    """Whether a text is for a shell."""
    return PurePath(name).suffix in SCRIPTS or text.startswith("#!")


def _script(name: str, text: str, kind: Kind | None) -> Document:
    """The document of a launch script: the flags of Megatron in it."""
    if kind is None and sum(flag in text for flag in OF_MEGATRON) < FEWEST_OWN:
        told = Told("unknown", NOT_MEGATRON)  # as below, without reading all of its words
        return _checked(Document(name, told.kind, text, {}, {}, script=True), told)
    found = arguments_of(text)
    own = sum(flag in OF_MEGATRON for flag in found.values)
    told = Told(kind or ("megatron" if own >= FEWEST_OWN else "unknown"), NOT_MEGATRON)
    document = Document(name, told.kind, text, found.values, found.marks, script=True)
    return _checked(document._replace(uncertain=found.uncertain), told)


def form_of(name: str, text: str, kind: Kind | None) -> str:
    """json, yaml or lines."""
    path = PurePath(name)
    if kind in ("hostfile", "env", "megatron"):
        return "lines"
    if path.suffix in (".yaml", ".yml") or kind == "train":
        return "yaml"
    begins = text.lstrip(BOM + " \t\r\n")[:1]
    if path.suffix == ".json" or begins == "{" or kind == "ds_config":
        return "json"
    return "yaml" if kind == "accelerate" else "lines"


def _json(name: str, text: str, kind: Kind | None) -> Document:
    quick = plain(text)
    if quick is not None:
        told = Told(kind) if kind else told_of(name, quick)
        return _checked(Document(name, told.kind, text, quick, None), told)
    bare = text.removeprefix(BOM)
    found = parsed(bare)
    marks, flaws = found.marks, found.flaws
    if bare is not text:
        marks = {loc: Mark(*(offset + 1 for offset in mark)) for loc, mark in marks.items()}
        flaws = [_moved(flaw) for flaw in flaws]
        message = "the file begins with a byte-order mark"
        flaws.insert(0, Flaw("json-bom", 0, message, "remove it", (Edit(0, 1, ""),)))
    if "template" in PurePath(name).name.lower():  # which a script fills in
        flaws = [f._replace(severity="info") if UNFILLED in f.message else f for f in flaws]
    told = Told(kind) if kind else told_of(name, found.root)
    if not found.complete and told.kind == "unknown" and not told.reason:
        told = told_of_text(name, text)
    document = Document(name, told.kind, text, found.root, marks, tuple(flaws))
    return _checked(document, told, found.complete)


def _moved(flaw: Flaw) -> Flaw:
    edits = tuple(Edit(e.start + 1, e.end + 1, e.text) for e in flaw.edits)
    return flaw._replace(offset=flaw.offset + 1, edits=edits)


def _yaml(name: str, text: str, kind: Kind | None) -> Document:
    """The document in YAML; what the reader refuses becomes flaws."""
    from dsforge.reading.tree import grown  # with yaml, which only YAML files pay

    empty = Document(name, kind or "unknown", text, {}, {}, yaml=True)
    try:
        tree = grown(text, name)
    except SpecError as error:
        told = Told(kind) if kind else told_of_text(name, text)
        flaws = [_flaw(empty, p.rule, p.place, p.message) for p in error.problems]
        return _checked(empty._replace(kind=told.kind, flaws=tuple(flaws)), told)
    flaws = [_flaw(empty, p.rule, p.place, p.message) for p in tree.problems]
    marks = {loc: Mark(*span) for loc, span in tree.spans.items()}
    told = Told(kind) if kind else told_of(name, tree.root)
    if told == Told("unknown") and any(flaw.rule == "yaml-syntax" for flaw in flaws):
        told = told_of_text(name, text)
    return _checked(
        Document(name, told.kind, text, tree.root, marks, tuple(flaws), yaml=True), told
    )


def _flaw(document: Document, rule: str, place: str, message: str) -> Flaw:
    line = place.rpartition(":")[2]
    offset = document.line(int(line)).start if line.isdigit() else 0
    if rule == "yaml-same-key":  # which the loader of every program takes
        return Flaw("duplicate-key", offset, message, "keep one", severity="warning")
    rule = "duplicate-key" if rule == "yaml-duplicate-key" else "yaml-syntax"
    return Flaw(rule, offset, message)


def _checked(document: Document, told: Told, complete: bool = True) -> Document:
    """The document with a mapping as its root, and a flaw where it had none, or no known kind."""
    flaws = document.flaws
    if document.kind == "unknown":
        why = f" ({flaws[0].message})" if flaws else ""
        message = told.reason or "not a file that lint knows" + why
        severity: Severity | None = "error" if _is_broken(document) else None
        fix = f"--kind {_asked(document)} checks it anyway"
        flaw = Flaw("kind-unknown", 0, message, fix, severity=severity)
        return document._replace(root={}, written={}, flaws=(flaw,))
    if isinstance(document.root, dict):
        return document
    if complete:
        flaws = (*flaws, Flaw("not-a-mapping", 0, "must contain keys with values"))
    return document._replace(root={}, written={}, flaws=flaws)


def _is_broken(document: Document) -> bool:
    """Whether a file is not what its own name says: JSON or YAML, and no template of it."""
    path = PurePath(document.name)
    if path.suffix not in (".json", ".yaml", ".yml") or FILLED_IN.search(document.text):
        return False
    broken = any(
        flaw.rule == "json-syntax" or flaw.message.startswith(NOT_YAML) for flaw in document.flaws
    )
    return broken and "template" not in path.name.lower()


def _asked(document: Document) -> str:
    """The kind that a user most probably has to name for a file that was not recognised."""
    return "ds_config" if document.written is None or document.root or document.yaml else "megatron"


def _told_of_lines(name: str, text: str) -> Told:
    """What a file of lines is taken for."""
    path = PurePath(name)
    base = path.name.lower()
    if CHANGES.match(text):
        return Told("unknown", "a patch")
    if path.suffix not in OTHER_TEXTS:
        if base.lstrip(".").startswith("deepspeed_env"):
            return Told("env")
        if "hostfile" in base:
            return Told("hostfile")
    return _told_of_content(text)


def _told_of_content(text: str) -> Told:
    """What a file of lines without a telling name is taken for."""
    lines = [line.strip() for line in text[: 100 * LOOKED_AT].split("\n")][:LOOKED_AT]
    told = [line for line in lines if line and not line.startswith("#")]
    if any(HOST.match(line) for line in told):
        return Told("hostfile")
    flags = [word.flag for word in words_of("\n".join(told)) if word.flag]
    if match_of([flag.strip("-").partition("=")[0] for flag in flags]) and not _of_megatron(flags):
        return Told("unknown", "arguments of a trainer other than Megatron-LM")
    begins = any(line.startswith("--") and line[2:3].isalpha() for line in told)
    return Told("megatron" if begins else "unknown")


def _of_megatron(flags: list[str]) -> bool:
    """Whether a flag is one that Megatron has, which writes them with dashes."""
    return any(flag.count("-") > 2 and "_" not in flag for flag in flags)  # noqa: PLR2004
