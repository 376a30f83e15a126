"""What a message of Arrow or `datasets` tells of the columns that do not fit: names and types.

Types are written in two ways: those of Arrow (`struct<role: string, ids: list<item: int64>>`) and
those of `datasets` (`{'role': Value('string'), 'ids': List(Value('int64'))}`).
"""

from __future__ import annotations

import re

from dsforge.diagnose.rule import MatchedLine

_OPENING, _CLOSING = "<{([", ">})]"
_COLUMN = re.compile(
    r"^(?P<name>[^\s:{][^:\n]{0,80}): \S", re.MULTILINE
)  # of a schema, not below it
_KEY = re.compile(r"\s*['\"]?(?P<name>[\w .$-]{1,80}?)['\"]?\s*:")
_LIST = re.compile(
    r"\s*(?:\[|(?:large_|fixed_size_)?list\b|Sequence\(|List\(|LargeList\()", re.IGNORECASE
)
_CHANGED = re.compile(
    r"Column\((?P<path>[^)\n]{0,120})\) changed from (?P<one>\w+) to (?P<other>\w+)"
)
_CONVERT = re.compile(
    r"Could not convert (?P<value>[^\n]{0,200}?) with type (?P<one>[\w.]+)"
    r"(?:: tried to convert to (?P<other>[\w.\[\]]+))?"
)
_OF_COLUMN = re.compile(r"Conversion failed for column (?P<column>[^\n]{1,80}?) with type")
_ALIGNED = re.compile(r"because the key (?P<column>[^\n]{1,80}?) of features")
SHOWN = 6  # names
_SCALARS = (
    "string",
    "int",
    "uint",
    "float",
    "double",
    "bool",
    "timestamp",
    "date",
    "Value",
    "null",
)


def _parts(text: str) -> list[str]:
    """The parts of a text between commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if sign == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def keys_of(type_: str) -> set[str]:
    """The names of the fields of a structure; none where it is another type, or was cut."""
    text = type_.strip()
    inner = text[len("struct<") :] if text.startswith("struct<") else text[1:]
    if not text.startswith(("struct<", "{")) or "..." in text:
        return set()
    return {found["name"] for part in _parts(inner.rstrip(">}")) if (found := _KEY.match(part))}


def columns_of(schema: str) -> set[str]:
    """The columns of a schema as Arrow prints it, or of features."""
    names = {found["name"] for found in _COLUMN.finditer(schema)}
    return (
        keys_of(schema)
        if schema.strip().startswith("{")
        else names - {"to", "-- schema metadata --"}
    )


def _shown(names: set[str]) -> str:
    """Some names of a set, in their order."""
    some = sorted(names)
    return ", ".join(some[:SHOWN]) + (f" and {len(some) - SHOWN} more" if len(some) > SHOWN else "")


def _kind(was: str, asked: str) -> str:
    """How two types differ: in nesting, as one is empty (null), or as plain values."""
    if "null" in (was.strip(), asked.strip()) or ("'null'" in asked and not keys_of(asked)):
        return "null"
    lists = [bool(_LIST.match(one)) for one in (was, asked)]
    if lists[0] != lists[1] or "struct<" in was[:7] or asked.strip().startswith("{"):
        return "nesting"
    plain = [one.strip().startswith(_SCALARS) for one in (was, asked)]
    return "types" if all(plain) else "nesting"


def schema_facts(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Which columns, keys or types differ in a data set, as far as the message says it."""
    values = {name: text for hit in reversed(hits) for name, text in hit.values.items() if text}
    what = values.get("what", "")
    was, asked = values.get("was", ""), values.get("asked", "")
    facts = {
        "facts": "",
        "one": was,
        "other": asked,
        "column": "",
        "value": "",
        "extra": "",
        "lacking": "",
    }
    for form in (_OF_COLUMN, _ALIGNED):
        if found := form.search(what):
            facts["column"] = found["column"].strip("'/")
    if "schema" in values:
        here, wanted = columns_of(values["schema"]), columns_of(values.get("features", ""))
        known = {**facts, "facts": "columns", "extra": _shown(here - wanted)}
        return {**known, "lacking": _shown(wanted - here) if here else ""}
    if was and asked:
        here, wanted = keys_of(was), keys_of(asked)
        kind = "keys" if here and wanted and here != wanted else _kind(was, asked)
        return {
            **facts,
            "facts": kind,
            "extra": _shown(here - wanted),
            "lacking": _shown(wanted - here),
        }
    if found := _CONVERT.search(what):
        kind = "types" if found["other"] else "object"
        more = {"value": found["value"], "one": found["one"], "other": found["other"] or ""}
        return {**facts, **more, "facts": kind}
    if found := _CHANGED.search(what):
        more = {"column": found["path"].strip("/"), "one": found["one"], "other": found["other"]}
        return {**facts, **more, "facts": "changed" if more["column"] else "top"}
    return facts
