"""Source: a mapping that a person wrote, where each value knows its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dsforge import outside
from dsforge.errors import SpecError
from dsforge.reading.refusals import Loc, refusal

MAX_BYTES = 512 * 1024  # a hosts list of ten thousand machines is below it


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
        raise refusal("yaml-not-a-mapping", name, "must hold `key: value` lines")
    return Source(name, tree.root, tree.places)
