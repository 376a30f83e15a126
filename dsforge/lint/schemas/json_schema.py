"""JSON schemas of a ds_config by release, for editors without a language server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsforge.lint.reading.config_keys import is_coming, is_gone
from dsforge.lint.schemas.key_texts import text_of
from dsforge.lint.schemas.releases import Block, Release, frozen, number

TYPES: Mapping[str, tuple[str, ...]] = {
    "int": ("integer",),
    "float": ("number",),
    "bool": ("boolean",),
    "str": ("string",),
    "list": ("array", "string"),
    "block": ("object",),
}
LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
BOTH_FORMS = ("zero_optimization",)  # true was the form of 2020


def minor_releases() -> tuple[str, ...]:
    """`0.14` to the newest: what users name."""
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in frozen().names))


def ds_config_schema(release: str) -> dict[str, Any]:
    """The schema of a release; `0.16` stands for its last patch release."""
    return _block("", number(release))


def _block(path: str, release: Release) -> dict[str, Any]:
    """The schema of one block, with the blocks in it."""
    block = frozen().blocks[path]
    properties = {
        key: _key(f"{path}.{key}" if path else key, life, release)
        for key, life in block.keys.items()
        if not is_gone(life, release) and not is_coming(life, release)
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "additionalProperties": False} if _refuses(block, release) else schema


def _refuses(block: Block, release: Release) -> bool:
    """Whether the block refuses unknown keys."""
    return block.closed is not None and release >= block.closed


def _key(path: str, life: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """The schema of one key."""
    head: dict[str, Any] = {}
    if text := text_of(path):
        head["description"] = text
    if "replaced_by" in life:
        head["deprecated"] = True
    return {**head, **_value(path, life, release)}


def _value(path: str, life: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """The values of a key: of its type, `auto`, which a trainer fills in, and null where it may."""
    if path in frozen().blocks:
        forms: list[dict[str, Any]] = [_block(path, release), {"const": "auto"}]
        forms += [{"type": "boolean"}] if path in BOTH_FORMS else []
        return {"anyOf": [*forms, {"type": "null"}] if life.get("null") else forms}
    block = path.rpartition(".")[0]
    if block and not _refuses(frozen().blocks[block], release):
        return {}  # nothing checks its values
    if choices := life.get("choices"):
        return {"enum": [*choices, "auto", *([None] if life.get("null") else [])]}
    types = TYPES.get(life.get("type", ""))
    if types is None:
        return {}
    limits = {LIMITS[name]: limit for name, limit in life.get("limits", {}).items()}
    null = ["null"] if life.get("null") else []
    return {"anyOf": [{"type": [*types, *null], **limits}, {"const": "auto"}]}
