"""Releases of DeepSpeed: the first and last release that knows each config key.

`deepspeed.json` beside this holds what `scripts/deepspeed_schema.py` read from the source of every
release from 0.14.0 on. One key of it: `{"since": "0.16.4", "until": "0.19.5", "type": "int", ...}`;
`since` is missing where the first release has it already, `until` where the last one still has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.lint.schemas.deepspeed_source import Key, Schema

DATA = Path(__file__).with_name("deepspeed.json")

Release = tuple[int, ...]


def number(release: str) -> Release:
    """A release as numbers that can be compared; `0.16` stands for its last patch release."""
    parts = tuple(int(part) for part in release.split(".") if part.isdecimal())
    return parts if len(parts) != 2 else (*parts, 999)  # noqa: PLR2004


class Block(NamedTuple):
    """One block of the config: its keys, and since when it refuses others; none: it does not."""

    keys: Mapping[str, Mapping[str, Any]]
    closed: Release | None
    removed: Mapping[str, str]


class Releases(NamedTuple):
    """Everything that is known of all releases."""

    names: tuple[str, ...]
    blocks: Mapping[str, Block]

    @property
    def last(self) -> str:
        """The newest release that is known."""
        return self.names[-1]


@cache
def frozen() -> Releases:
    """The releases in the package's data."""
    return releases_of(json.loads(DATA.read_text(encoding="utf-8")))


def releases_of(document: Mapping[str, Any]) -> Releases:
    """The releases of a document that `merged` made."""
    blocks = {
        path: Block(
            block["keys"],
            number(block["closed"]) if block.get("closed") else None,
            block.get("removed", {}),
        )
        for path, block in document["blocks"].items()
    }
    return Releases(tuple(document["releases"]), blocks)


def merged(found: Mapping[str, Schema]) -> dict[str, Any]:
    """One document of the schemas of several releases, ascending."""
    names = list(found)
    paths = sorted({path for schema in found.values() for path in (*schema.keys, *schema.removed)})
    blocks = {".".join(path): _block(path, found) for path in paths}
    return {"releases": names, "blocks": blocks}


def _block(path: tuple[str, ...], found: Mapping[str, Schema]) -> dict[str, Any]:
    """One block over all releases."""
    names = list(found)
    keys = sorted({key for schema in found.values() for key in schema.keys.get(path, {})})
    block: dict[str, Any] = {}
    closed = [name for name in names if path in found[name].closed]
    if closed:
        block["closed"] = closed[0]
    removed = sorted({key for s in found.values() for key in s.removed.get(path, ())})
    if removed:
        block["removed"] = {
            key: next(n for n in names if key in found[n].removed.get(path, ())) for key in removed
        }
    block["keys"] = {key: _life((*path, key), found) for key in keys}
    return block


def _life(path: tuple[str, ...], found: Mapping[str, Schema]) -> dict[str, Any]:
    """First and last release of a key, and what the last one says about it."""
    names = list(found)
    having = [n for n in names if path[-1] in found[n].keys.get(path[:-1], {})]
    life: dict[str, Any] = {}
    if having[0] != names[0]:
        life["since"] = having[0]
    if having[-1] != names[-1]:
        life["until"] = having[-1]
    return life | _facts(found[having[-1]].keys[path[:-1]][path[-1]])


def _facts(key: Key) -> dict[str, Any]:
    """What is known of a key, without what is not."""
    facts = {
        "type": key.type,
        "null": key.null,
        "limits": dict(key.limits),
        "choices": list(key.choices),
    }
    known = {name: value for name, value in facts.items() if value}
    return known if key.deprecated is None else {**known, "replaced_by": key.deprecated}


def with_installed(known: Releases, schema: Schema, version: str) -> Releases:
    """The installed release alone, which still knows until when it had keys that are gone."""
    document = merged({version: schema})
    for path, block in known.blocks.items():
        keys = document["blocks"].setdefault(path, {"keys": {}})["keys"]
        for key, life in block.keys.items():
            if key not in keys and number(life.get("until", known.last)) < number(version):
                keys[key] = {**life, "until": life.get("until", known.last)}
    return releases_of(document)
