"""Entries: the keys of a config, each with what a release of DeepSpeed knows about it.

They are made once for a config; a dozen rules go through them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dsforge.importing.marks import Loc
from dsforge.lint.schemas.releases import Block, Release, Releases, number

MOST_UNKNOWN = 100  # keys that are looked up among similar ones: the search is slow


class Entry(NamedTuple):
    """One key of a block that is known."""

    path: str
    block: Block
    loc: Loc
    key: str
    value: Any
    life: Mapping[str, Any] | None  # what is known of the key; none where no release has it
    type: str  # in the newest release that has it; empty where unknown
    closed: bool  # whether the release refuses unknown keys in this block
    gone: bool  # whether the key ended before the release
    coming: bool  # whether the key came after the release


def entries_of(root: Any, releases: Releases, release: Release) -> Iterator[Entry]:
    """Every key in the blocks that DeepSpeed is known to read, from the top down."""
    waiting: list[tuple[str, Loc, Any]] = [("", (), root)]
    unknown = 0
    while waiting:
        path, loc, values = waiting.pop()
        block = releases.blocks[path]
        closed = block.closed is not None and release >= block.closed
        for key, value in values.items():
            life = block.keys.get(key)
            unknown += life is None
            kind = life.get("type", "") if life else ""
            over = life is not None and is_gone(life, release)
            new = life is not None and is_coming(life, release)
            if life is not None or unknown <= MOST_UNKNOWN:
                yield Entry(path, block, (*loc, key), key, value, life, kind, closed, over, new)
            inner = f"{path}.{key}" if path else key
            known = inner in releases.blocks and not over and not new
            if known and isinstance(value, dict):
                waiting.append((inner, (*loc, key), value))


def is_gone(life: Mapping[str, Any], release: Release) -> bool:
    """Whether a key ended before the release."""
    return "until" in life and release > number(life["until"])


def is_coming(life: Mapping[str, Any], release: Release) -> bool:
    """Whether a key came after the release."""
    return "since" in life and release < number(life["since"])
