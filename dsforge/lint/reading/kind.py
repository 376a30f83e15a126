"""From text to Document: detects the kind of file and parses it.

The kind is taken from the name where that is a convention of the launcher, else from what the file
says; a misspelt config must still be recognised as one, so near misses of the strong keys count.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

from dsforge.errors import SpecError
from dsforge.findings import Edit
from dsforge.lint.reading.document import Document, Kind, Line
from dsforge.lint.reading.json_text import parsed, plain
from dsforge.lint.reading.marks import Flaw, Loc, Mark

STRONG = (
    *("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "fp16", "bf16"),
    *("gradient_accumulation_steps", "gradient_clipping", "zero_allow_untested_optimizer"),
    *("activation_checkpointing", "wall_clock_breakdown", "steps_per_print", "optimizer"),
)
ACCELERATE = ("compute_environment", "distributed_type", "deepspeed_config", "num_processes")
NAMES = re.compile(r"ds[_-]?conf|^deepspeed|zero[_-]?[0-3]", re.IGNORECASE)
HOST = re.compile(r"\S+[ \t]+slots=")
BOM = "\ufeff"
LOOKED_AT = 50  # keys or lines from which the kind is told


def document_of(name: str, text: str, kind: Kind | None = None) -> Document:
    """The document in a text; without a kind, name and content decide."""
    form = form_of(name, text, kind)
    if form == "json":
        return _json(name, text, kind)
    if form == "yaml":
        return _yaml(name, text, kind)
    told = kind or _kind_of_lines(name, text)
    root, marks = _arguments(text) if told == "megatron" else ({}, {})
    return _checked(Document(name, told, text, root, marks))


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
        return _checked(Document(name, kind or _kind_of_mapping(name, quick), text, quick, None))
    bare = text.removeprefix(BOM)
    found = parsed(bare)
    marks, flaws = found.marks, found.flaws
    if bare is not text:
        marks = {loc: Mark(*(offset + 1 for offset in mark)) for loc, mark in marks.items()}
        flaws = [_moved(flaw) for flaw in flaws]
        message = "the file begins with a byte-order mark"
        flaws.insert(0, Flaw("json-bom", 0, message, "remove it", (Edit(0, 1, ""),)))
    told = kind or _kind_of_mapping(name, found.root)
    if not found.complete and told == "unknown":
        told = _kind_of_broken(text)
    return _checked(Document(name, told, text, found.root, marks, tuple(flaws)), found.complete)


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
        told = kind or ("ds_config" if NAMES.search(PurePath(name).name) else _kind_of_broken(text))
        flaws = [_flaw(empty, p.rule, p.place, p.message) for p in error.problems]
        return _checked(empty._replace(kind=told, flaws=tuple(flaws)))
    flaws = [_flaw(empty, p.rule, p.place, p.message) for p in tree.problems]
    marks = {loc: Mark(*span) for loc, span in tree.spans.items()}
    told = kind or _kind_of_mapping(name, tree.root)
    return _checked(Document(name, told, text, tree.root, marks, tuple(flaws), yaml=True))


def _flaw(document: Document, rule: str, place: str, message: str) -> Flaw:
    line = place.rpartition(":")[2]
    offset = document.line(int(line)).start if line.isdigit() else 0
    rule = "duplicate-key" if rule == "yaml-duplicate-key" else "yaml-syntax"
    return Flaw(rule, offset, message)


def _checked(document: Document, complete: bool = True) -> Document:
    """The document with a mapping as its root, and a flaw where it had none, or no known kind."""
    flaws = document.flaws
    if document.kind == "unknown":
        why = f" ({flaws[0].message})" if flaws else ""
        message = "not a file that lint knows" + why
        return document._replace(
            root={}, written={}, flaws=(Flaw("kind-unknown", 0, message, "name its --kind"),)
        )
    if isinstance(document.root, dict):
        return document
    if complete:
        flaws = (*flaws, Flaw("not-a-mapping", 0, "must hold keys with values"))
    return document._replace(root={}, written={}, flaws=flaws)


def _kind_of_broken(text: str) -> Kind:
    """The kind of a text that could not be read to its end, by the words in it."""
    if any(f"{key}:" in text or f'"{key}"' in text for key in ACCELERATE[:3]):
        return "accelerate"
    strong = any(f'"{key}"' in text or f"{key}:" in text for key in STRONG)
    return "ds_config" if strong else "unknown"


def _kind_of_mapping(name: str, root: Any) -> Kind:
    """The kind of a mapping, by its keys and then by its name."""
    keys = [str(key) for key in root][:LOOKED_AT] if isinstance(root, dict) else []
    if "deepspeed_config" in keys and isinstance(root["deepspeed_config"], str):
        return "train"
    if any(key in ACCELERATE for key in keys):
        return "accelerate"
    if any(key in STRONG for key in keys) or NAMES.search(PurePath(name).name):
        return "ds_config"
    return "ds_config" if any(_nearly_strong(key) for key in keys) else "unknown"


def _nearly_strong(key: str) -> bool:
    return bool(get_close_matches(key.lower()[:60], STRONG, n=1, cutoff=0.85))


def _kind_of_lines(name: str, text: str) -> Kind:
    """The kind of a file of lines."""
    base = PurePath(name).name.lower()
    if base.lstrip(".").startswith("deepspeed_env"):
        return "env"
    if "hostfile" in base:
        return "hostfile"
    lines = [line.strip() for line in text[: 100 * LOOKED_AT].split("\n")][:LOOKED_AT]
    told = [line for line in lines if line and not line.startswith("#")]
    if any(HOST.match(line) for line in told):
        return "hostfile"
    return "megatron" if any(line.startswith("--") for line in told) else "unknown"


def _arguments(text: str) -> tuple[dict[str, str], dict[Loc, Mark]]:
    """Megatron's flags with their values, and where each stands."""
    values: dict[str, str] = {}
    marks: dict[Loc, Mark] = {}
    start = 0
    for line in text.split("\n"):
        row, start = Line(start, line), start + len(line) + 1
        body = line.strip()
        if not body.startswith("--"):
            continue
        flag, _, value = body.replace("=", " ", 1).partition(" ")
        at = row.start + line.index(body)
        values[flag] = value.strip().strip("\\").strip().strip("'\"")
        marks[(flag,)] = Mark(at, at + len(flag), at + len(flag), at + len(body))
    return values, marks
