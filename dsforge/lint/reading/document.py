"""Document: a parsed file that knows the place of each key and value in its text.

Findings need line and column, repairs need offsets, and a repair must leave comments and order as
they are: it is an edit of the text, never a value that is written out again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

from dsforge.findings import Edit
from dsforge.importing.marks import Flaw, Loc, Mark
from dsforge.lint.reading.json_text import parsed

Kind = Literal["ds_config", "hostfile", "env", "megatron", "accelerate", "train", "unknown"]

KINDS: tuple[Kind, ...] = ("ds_config", "hostfile", "env", "megatron", "accelerate", "train")


class Line(NamedTuple):
    """One line of a file that consists of lines."""

    start: int
    text: str

    @property
    def end(self) -> int:
        """Where it ends, before its line break."""
        return self.start + len(self.text)


class Document(NamedTuple):
    """What was read: plain values, the place of each, and the flaws found on the way."""

    name: str
    kind: Kind
    text: str
    root: Any
    written: Mapping[Loc, Mark] | None  # none: looked for in the JSON text once one is asked for
    flaws: tuple[Flaw, ...] = ()
    yaml: bool = False
    script: bool = False  # a shell script, of which only the flags were read
    uncertain: frozenset[str] = frozenset()  # flags of it that only some branches give

    @property
    def marks(self) -> Mapping[Loc, Mark]:
        """Where each value stands."""
        if self.written is not None:
            return self.written
        return parsed(self.text).marks

    @property
    def lines(self) -> Iterator[Line]:
        """The lines of the text, with their offsets."""
        start = 0
        for line in self.text.split("\n"):
            yield Line(start, line)
            start += len(line) + 1

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        line = self.text.count("\n", 0, offset) + 1
        return line, offset - self.text.rfind("\n", 0, offset)

    def line(self, number: int) -> Line:
        """The line with that number, from 1; the last one where there are fewer."""
        lines = list(islice(self.lines, number))
        return lines[-1] if lines else Line(0, "")

    def offset(self, loc: Loc) -> int:
        """Where the value at a location begins, with its key; of its parent where it is not there.

        A missing key is the fault of the block that lacks it.
        """
        for end in range(len(loc), 0, -1):
            mark = self.marks.get(loc[:end])
            if mark is not None:
                return mark.key_start
        return 0

    def replaced(self, loc: Loc, value: Any) -> tuple[Edit, ...]:
        """The edit that puts another plain value at a location."""
        mark = self.marks.get(loc)
        return (Edit(mark.start, mark.end, json.dumps(value)),) if mark else ()

    def renamed(self, loc: Loc, key: str) -> tuple[Edit, ...]:
        """The edit that renames the key at a location; none where the new name is taken."""
        mark = self.marks.get(loc)
        if mark is None or mark.key_start == mark.key_end or (*loc[:-1], key) in self.marks:
            return ()
        return (Edit(mark.key_start, mark.key_end, key if self.yaml else json.dumps(key)),)

    def removed(self, loc: Loc) -> tuple[Edit, ...]:
        """The edit that takes a key with its value out of a JSON object, and one comma with it."""
        mark = self.marks.get(loc)
        if mark is None or self.yaml:
            return ()
        before = len(self.text[: mark.key_start].rstrip())
        after = mark.end + len(self.text[mark.end :]) - len(self.text[mark.end :].lstrip())
        if self.text[after : after + 1] == ",":
            return (Edit(before, after + 1, ""),)
        if self.text[before - 1 : before] == ",":
            return (Edit(before - 1, mark.end, ""),)
        return (Edit(mark.key_start, mark.end, ""),)


def applied(text: str, edits: list[Edit]) -> str:
    """The text after all edits; of two that overlap the earlier one is made."""
    made, last = "", 0
    for edit in sorted(set(edits)):
        if edit.start >= last:
            made += text[last : edit.start] + edit.text
            last = edit.end
    return made + text[last:]
