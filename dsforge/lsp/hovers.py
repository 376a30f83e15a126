"""What an editor shows for a key: what it does, its releases, its memory, its findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsforge.importing.marks import Loc, Mark
from dsforge.lint.check import BY_ID
from dsforge.lint.reading.config_keys import entries_of
from dsforge.lint.reading.document import Document
from dsforge.lint.schemas.key_texts import text_of
from dsforge.lsp.plan_memory import memory_text
from dsforge.lsp.session import Session, Shown

WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "block": "a block",
}


def key_at(document: Document, offset: int) -> tuple[Loc, Mark] | None:
    """The key that is written at an offset."""
    for loc, mark in document.marks.items():
        if mark.key_start <= offset < mark.key_end:
            return loc, mark
    return None


def hover_text(session: Session, document: Document, offset: int) -> str:
    """Markdown about what stands at an offset; empty where nothing is known of it."""
    parts = []
    found = key_at(document, offset)
    if found is not None and document.kind == "ds_config":
        parts.append(_of_key(session, document, found[0]))
    parts += [_of_finding(one) for one in session.shown(document) if _is_at(one, offset)]
    return "\n\n".join(part for part in parts if part)


def _is_at(shown: Shown, offset: int) -> bool:
    return shown.start <= offset < shown.end


def _of_key(session: Session, document: Document, loc: Loc) -> str:
    """What a key of a ds_config does, takes and costs."""
    against = session.against
    entries = entries_of(document.root, against.releases, against.release)
    entry = next((one for one in entries if one.loc == loc), None)
    if entry is None or entry.life is None:
        return ""
    path = ".".join(map(str, loc))
    lines = [f"**`{path}`**", text_of(path.replace("bfloat16", "bf16")), _taken(entry.life)]
    lines.append(memory_text(session.settings, path, document.text))
    return "\n\n".join(line for line in lines if line)


def _taken(life: Mapping[str, Any]) -> str:
    """The values of a key, and the releases that have it."""
    choices = life.get("choices")
    what = "one of " + ", ".join(map(str, choices)) if choices else WORDS.get(life.get("type", ""))
    parts = [what[0].upper() + what[1:]] if what else []
    parts += [f"since DeepSpeed {life['since']}"] if "since" in life else []
    parts += [f"until DeepSpeed {life['until']}"] if "until" in life else []
    new = life.get("replaced_by")
    parts += [f"deprecated: use `{new}`" if new else "deprecated"] if new is not None else []
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""


def _of_finding(shown: Shown) -> str:
    """One finding with its reason."""
    finding = shown.finding
    fix = f" ({finding.fix})" if finding.fix else ""
    why = BY_ID[finding.rule].why
    return f"{finding.severity} `{finding.rule}`: {finding.message}{fix}\n\n{why}"
