"""Tables of rows, of which only the rows asked for are parsed.

Parsing all of models.yaml as YAML takes 100 ms, a fifth of what `dsforge gen` may take, and the
parser's import another 30. So each row is written as JSON, which is YAML too, and begins with one
line that holds all its names: those lines are the index, and only wanted rows are parsed whole. A
test holds the files to the form.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dsforge.errors import Problem, SpecError

NEAREST = 5

_ROW = "\n- "
_DECODER = json.JSONDecoder()
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
        return parsed(self.texts[found])

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


def parsed(text: str) -> dict[str, Any]:
    """The row at the beginning of a piece of a table; comments may follow it."""
    row: dict[str, Any] = _DECODER.raw_decode(text)[0]
    return row


@cache
def table(kind: str, words: str = "") -> Table:
    """The table `<kind>s.yaml` beside this module; `words` is a pattern of words to ignore."""
    text = Path(__file__).with_name(f"{kind}s.yaml").read_text(encoding="utf-8")
    empty = Table(kind, {}, {}, re.compile(words or r"$^"))
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for row in text.split(_ROW)[1:]:
        name, *others = _names_of(row.partition("\n")[0])
        texts[name] = row
        for other in (name, *others):
            names.setdefault(empty.key(other), name)
    return empty._replace(texts=MappingProxyType(texts), names=MappingProxyType(names))


def _names_of(line: str) -> list[str]:
    """Name, hub id with and without its organisation, and aliases from the first line of a row."""
    head = json.loads(line.removesuffix(",") + "}")
    names = [head["name"], *head["aliases"]]
    if hub_id := head.get("hub_id"):
        names += [hub_id, hub_id.rpartition("/")[2]]
    return names
