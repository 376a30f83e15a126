"""Source: a mapping that a person wrote, where each value knows its place."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dsforge import outside
from dsforge.errors import SpecError, quoted
from dsforge.reading.refusals import MAX_DEPTH, Loc, refusal

MAX_BYTES = 512 * 1024  # a hosts list of ten thousand machines is below it
LONGEST_NAME, LONGEST_PATH = 255, 4095  # bytes: NAME_MAX and PATH_MAX of Linux


class Setting(NamedTuple):
    """One value from the command line that wins over the file."""

    loc: Loc
    value: Any
    place: str


class Source(NamedTuple):
    """A mapping and the place (file and line, or flag) of each of its values."""

    name: str
    values: Mapping[str, Any]
    places: Mapping[Loc, str] = MappingProxyType({})
    prefix: Loc = ()  # where the mapping hangs in its file, for messages

    def place(self, loc: Loc) -> str:
        """Where the value at `loc` was written, or where its nearest parent was."""
        for end in range(len(loc), -1, -1):
            if loc[:end] in self.places:
                return self.places[loc[:end]]
        return self.name

    def overlaid(self, settings: Iterable[Setting]) -> Source:
        """A copy in which each setting replaces or adds one value."""
        values, places = dict(self.values), dict(self.places)
        for loc, value, place in settings:
            folder = values
            for key in loc[:-1]:
                inner = folder.get(str(key))
                folder[str(key)] = dict(inner) if isinstance(inner, Mapping) else {}
                folder = folder[str(key)]
            folder[str(loc[-1])] = value
            places[loc] = place
        return self._replace(values=values, places=places)

    def without(self, *keys: str) -> Source:
        """A copy without some keys."""
        return self._replace(values={k: v for k, v in self.values.items() if k not in keys})

    def part(self, key: str) -> Source:
        """The mapping under a key, which still knows its places; empty where there is none."""
        inner = self.values.get(key)
        places = {loc[1:]: place for loc, place in self.places.items() if loc[:1] == (key,)}
        values = inner if isinstance(inner, Mapping) else {}
        return Source(self.name, values, places, (*self.prefix, key))

    def item(self, key: str, index: int) -> Source:
        """The mapping at an index of the list under a key, which still knows its places."""
        inner = self.values[key][index]
        places = {loc[2:]: at for loc, at in self.places.items() if loc[:2] == (key, index)}
        places.setdefault((), self.place((key,)))
        values = inner if isinstance(inner, Mapping) else {}
        return Source(self.name, values, places, (*self.prefix, key, index))


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file. Raises SpecError where it is missing, too large or not UTF-8 text."""
    try:
        return outside.read_text(path, max_bytes)
    except outside.UnreadableError as error:
        place = f"{path}:{error.line}" if error.line else str(path)
        raise refusal(error.rule, place, error.reason) from error


def read_source(path: Path) -> Source:
    """The mapping in a YAML file. Raises SpecError with every problem of its text."""
    return parse_source(read_text(path), str(path))


def parse_source(text: str, name: str) -> Source:
    """The mapping in YAML text; `name` is what messages call it. Raises SpecError."""
    from dsforge.reading.tree import grown  # with yaml 30 ms, which flags alone need not pay

    tree = grown(text, name)
    if tree.problems:
        raise SpecError(tuple(tree.problems))
    if not isinstance(tree.root, dict):
        raise refusal("yaml-not-a-mapping", name, "must contain `key: value` lines")
    return Source(name, tree.root, tree.places)


def path_of(value: object, thing: str) -> Path:
    """A path that a program names. Raises SpecError where no file system can hold it.

    `thing` is what messages call it.
    """
    if not isinstance(value, str | os.PathLike):
        message = f"`{thing}` ({type(value).__name__}) must be text or a path"
        raise refusal("value-type", "", message)
    try:
        name = os.fsencode(value)
    except UnicodeError:
        name = b"\x00"
    longest = max(map(len, name.split(b"/")))
    if b"\x00" in name or longest > LONGEST_NAME or len(name) > LONGEST_PATH:
        raise refusal("value-wrong", "", f"`{thing}` (={quoted(os.fspath(value))}) is not a path")
    return Path(os.fsdecode(value))


def plain(value: object, thing: str, *, depth: int = MAX_DEPTH) -> Any:
    """A copy of a value from a program as YAML could hold it: the rules of files hold for it, too.

    `thing` is what messages call it. Raises SpecError for another kind of value, a key that is no
    text, a number that is not finite, and more than `depth` levels.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise refusal("value-wrong", "", f"`{thing}` (={value}) must be a finite number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if not isinstance(value, Mapping | list | tuple):
        kind = type(value).__name__
        message = f"`{thing}` ({kind}) must be a mapping, list, text, number, boolean or None"
        raise refusal("value-type", "", message)
    if not depth:
        raise refusal("value-depth", "", f"`{thing[:60]}` is nested too deeply")
    if isinstance(value, Mapping):
        _check_keys(value, thing)
        return {key: plain(v, f"{thing}.{key}", depth=depth - 1) for key, v in value.items()}
    return [plain(v, f"{thing}[{n}]", depth=depth - 1) for n, v in enumerate(value)]


def _check_keys(mapping: Mapping[Any, object], thing: str) -> None:
    """Raise SpecError where a key is no text."""
    for key in mapping:
        if not isinstance(key, str):
            raise refusal("value-key", "", f"a key of `{thing}` (={key!r:.60}) must be text")
