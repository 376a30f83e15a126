"""Argument files: the words that `$(cat args.txt)` gives to a command, and where each stands.

Lines only part words, as blanks do: a flag may stand with its value or with others on a line, and
values may go on in the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dsforge.importing.marks import Loc, Mark

_WORD = re.compile(r"""(?:"[^"\n]*+"|'[^'\n]*+'|[^\s"']|["'])+""")
_FLAG = re.compile(r"--[A-Za-z][^\s=]*")


class Word(NamedTuple):
    """One word, where it stands, and whether its line begins with it."""

    text: str
    start: int
    begins: bool

    @property
    def flag(self) -> str:
        """The flag that it is, without a value behind `=`; empty for any other word."""
        match = _FLAG.match(self.text)
        return match[0] if match else ""

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + len(self.text)


def words_of(text: str) -> Iterator[Word]:
    """The words of an argument file, without remarks and the backslashes that join lines."""
    start = 0
    for line in text.split("\n"):
        begins = True
        for match in _WORD.finditer(line):
            if match[0].startswith("#"):
                break
            if match[0] != "\\":
                yield Word(match[0].removesuffix("\\"), start + match.start(), begins)
                begins = False
        start += len(line) + 1


def arguments_in(text: str) -> tuple[dict[str, str], dict[Loc, Mark]]:
    """The flags of an argument file with their values (empty: none), and where each stands."""
    parts: dict[str, list[str]] = {}
    marks: dict[Loc, Mark] = {}
    last = ""
    for word in words_of(text):
        if word.flag:
            last, end = word.flag, word.start + len(word.flag)
            parts[last] = [_bare(word.text[len(last) + 1 :])]
            marks[(last,)] = Mark(word.start, end, end, word.end)
        elif last:
            parts[last].append(_bare(word.text))
            marks[(last,)] = marks[(last,)]._replace(end=word.end)
    return {flag: " ".join(filter(None, said)).strip() for flag, said in parts.items()}, marks


def _bare(text: str) -> str:
    """A value without the quotes around it."""
    return text.strip("'\"")
