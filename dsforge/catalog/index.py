"""Tables of rows in YAML, of which only the rows asked for are parsed.

Parsing all of models.yaml takes 100 ms, a fifth of what `dsforge gen` may take. So a table is
split as text: each row begins with one line that holds all its names, those lines are read with a
regular expression, and YAML is parsed for the wanted row alone. A test holds the files to the form.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from dsforge.errors import Problem, SpecError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NEAREST = 5

_ROW = re.compile(r"^- \{(.*),$", re.MULTILINE)
_NAMES = re.compile(r"name: ([^,]+)(?:, hub_id: ([^,]+))?, aliases: \[([^\]]*)\]")
_SEPARATORS = re.compile(r"(?<!\d)\.|\.(?!\d)|[\s_/:-]+")  # a dot between digits is a number's


class Table(NamedTuple):
    """One YAML file: text of each row by name, and the name that each key stands for."""

    kind: str
    texts: Mapping[str, str]
    names: Mapping[str, str]
    words: re.Pattern[str]

    def key(self, name: str) -> str:
        """The name without case, separators and the words that say nothing."""
        short = _SEPARATORS.sub("", name.lower())
        return self.words.sub("", short) or short

    def find(self, name: str) -> str | None:
        """The row's name for a name, alias or hub id in any spelling; none where unknown."""
        key = self.key(name)
        found = self.names.get(key) or self.names.get(self.key(name.rpartition("/")[2]))
        if found is not None or "." in key:
            return found
        rows = {row for known, row in self.names.items() if known.replace(".", "") == key}
        return rows.pop() if len(rows) == 1 else None

    def row(self, name: str) -> dict[str, Any]:
        """The parsed row. Raises SpecError with the nearest names where there is none."""
        found = self.find(name)
        if found is None:
            raise SpecError((self._unknown(name),))
        return parsed(self.texts[found])[0]

    def texts_named_like(self, words: str) -> list[str]:
        """The text of every row with all the words in its names; if none, in any spelling."""
        heads = [(text.partition("\n")[0].lower(), text) for text in self.texts.values()]
        exact = [text for head, text in heads if all(w in head for w in words.lower().split())]
        keys = [self.key(word) for word in words.split()]
        return exact or [text for head, text in heads if all(key in self.key(head) for key in keys)]

    def nearest(self, name: str) -> list[str]:
        """Names of the rows that are spelled most like the name, best first."""
        key = self.key(name.rpartition("/")[2])
        close = difflib.get_close_matches(key, self.names, n=3 * NEAREST, cutoff=0.5)
        return list(dict.fromkeys(self.names[match] for match in close))[:NEAREST]

    def _unknown(self, name: str) -> Problem:
        nearest = self.nearest(name)
        hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
        return Problem(
            rule=f"catalog-{self.kind}",
            message=f"{self.kind} {name[:80]!r} is not in the catalog",
            hint=f"{hint}`dsforge catalog {self.kind}s` lists all",
        )


def parsed(text: str) -> list[dict[str, Any]]:
    """The rows of a piece of a table."""
    rows: list[dict[str, Any]] | None = yaml.load(text, Loader=LOADER)  # noqa: S506 (a safe loader)
    return rows or []


@cache
def table(kind: str, words: str = "") -> Table:
    """The table `<kind>s.yaml` beside this module; `words` is a pattern of words to ignore."""
    text = Path(__file__).with_name(f"{kind}s.yaml").read_text(encoding="utf-8")
    starts = [match.start() for match in _ROW.finditer(text)] + [len(text)]
    empty = Table(kind, {}, {}, re.compile(words or r"$^"))
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for start, end in pairwise(starts):
        name, *others = _names_of(text[start : text.index("\n", start)])
        texts[name] = text[start:end]
        for other in (name, *others):
            names.setdefault(empty.key(other), name)
    return empty._replace(texts=MappingProxyType(texts), names=MappingProxyType(names))


def _names_of(line: str) -> list[str]:
    """Name, hub id with and without its organisation, and aliases from the first line of a row."""
    match = _NAMES.search(line)
    if match is None:
        raise ValueError(f"a catalog row must begin with name, hub_id, aliases: {line!r}")
    name, hub_id, aliases = match.groups()
    names = [name, *(alias for alias in aliases.split(", ") if alias)]
    if hub_id and hub_id != "null":
        names += [hub_id, hub_id.rpartition("/")[2]]
    return names
