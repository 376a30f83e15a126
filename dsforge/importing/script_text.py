"""Launch scripts: the flags in their commands, arrays and option strings, with what they are given.

A shell script is a program, and this is no shell: nothing is run or expanded but a variable that is
assigned once, to a plain word. Any other value is unknown (none), as is one that branches disagree
about. Every flag of the script is taken together, since arrays and strings of options are usually
put together into one command.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from dsforge.importing.marks import Loc, Mark

# Quotes are passed over: what a string of options holds is split into words when it is used.
_HEREDOC = re.compile(r"<<-?[ \t]*['\"]?([A-Za-z_]\w{0,40})['\"]?(?![\w<])")
_COMMENT = re.compile(r"(?<![^\s])#[^\n]*")
_COMPUTED = re.compile(r"\$\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)|`[^`\n]*`")
_TOKEN = re.compile(
    r"(?P<joined>\\\r?\n)|(?P<end>\n)|(?P<array>[A-Za-z_]\w*\+?=\()|(?P<open>\()|(?P<close>\))"
    r"|(?P<quote>[\"'])|(?P<operator>[;|&<>]+)|(?P<word>[^\s\"'();|&<>\\]+)|(?P<other>.)",
    re.DOTALL,
)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NAMED = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
MASK = "$"  # stands for what a command computes: an unknown word
LARGEST = 50_000  # tokens
OPENING, CLOSING = ("if", "case", "for", "while", "until"), ("fi", "esac", "done")
GOING_ON = ("then", "else", "do", "elif", "!")  # words after which a command begins
MOST_VALUES = 100  # of one flag


class Word(NamedTuple):
    """One word, where it stands, and whether a value may follow on."""

    text: str
    start: int
    ends: bool = False  # the end of a command, an array or a string
    branch: bool = False  # in a part that is run under a condition
    holder: str = ""  # the variable whose array or string it is in

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + len(self.text)


class Arguments(NamedTuple):
    """Flags with their values (none: unknown), and where each stands first."""

    values: dict[str, str | None]
    marks: dict[Loc, Mark]
    uncertain: frozenset[str]  # flags that only some branches give


def arguments_of(text: str) -> Arguments:
    """Every flag of a script."""
    words = list(_words(_masked(text)))
    variables = _variables(words)
    found: dict[str, str | None] = {}
    marks: dict[Loc, Mark] = {}
    certain: set[str] = set()
    chosen = _chosen(words)
    for at, word in enumerate(words):
        flag, equals, attached = word.text.partition("=")
        if not _FLAG.fullmatch(flag):
            continue
        given = [attached] if equals else [w.text for w in _values(words, at + 1)]
        value = _resolved(given[0], variables) if len(given) == 1 else None if given else ""
        if flag in found and found[flag] != value:
            value = None
        found[flag] = value
        last = word if equals or not given else words[at + len(given)]
        mark = Mark(word.start, word.start + len(flag), word.start + len(flag), last.end)
        marks.setdefault((flag,), mark)
        if not word.branch and word.holder not in chosen:
            certain.add(flag)
    return Arguments(found, marks, frozenset(found.keys() - certain))


def _chosen(words: list[Word]) -> set[str]:
    """Variables that are assigned more than once, or in a branch: one of their values is used."""
    seen: Counter[str] = Counter()
    for word in words:
        match = _ASSIGNED.match(word.text)
        if match:
            seen[match[1]] += 1 + word.branch
    return {name for name, times in seen.items() if times > 1}


def _masked(text: str) -> str:
    """The text, of the same length, without comments, documents within it and computed words."""
    kept = _COMMENT.sub(lambda m: " " * len(m[0]), _without_documents(text))
    return _COMPUTED.sub(lambda m: MASK * len(m[0]), kept)


def _without_documents(text: str) -> str:
    """The text with blanks for the lines that commands read (`<<EOF`)."""
    lines, until = [], ""
    for line in text.split("\n"):
        lines.append(" " * len(line) if until else line)
        if until:
            until = "" if line.strip() == until else until
        elif "<<" in line and (begun := _HEREDOC.search(line)):
            until = begun[1]
    return "\n".join(lines)


class _Place:
    """Where the reader of words is: brackets, a quote, branches, and the variable around it."""

    def __init__(self) -> None:
        self.depth, self.quote, self.branches, self.holder = 0, "", 0, ""
        self.begins = True  # a command begins here

    def word(self, text: str, start: int) -> Word:
        """A word; `if` and `case` open a branch where a command begins."""
        if self.begins and not self.quote and not self.depth:
            self.branches += text in OPENING
            self.branches = max(0, self.branches - (text in CLOSING))
        self.begins = text in GOING_ON
        return Word(text, start, branch=self.branches > 0, holder=self.holder)

    def turn(self, token: str, before: str) -> None:
        """A quote opens or closes."""
        if not self.quote:
            self.quote = token
            match = _ASSIGNED.fullmatch(before)
            self.holder = match[1] if match and not match[3] and not self.depth else self.holder
        elif self.quote == token:
            self.quote = ""
            self.holder = self.holder if self.depth else ""

    def end(self) -> None:
        """A command ends."""
        self.begins = True


def _words(text: str) -> Iterator[Word]:
    """The words, with an empty one wherever a command, an array or a string ends."""
    place, before = _Place(), ""
    for count, match in enumerate(_TOKEN.finditer(text)):
        kind, token = str(match.lastgroup), match[0]
        if kind == "quote":
            place.turn(token, before if match.start() and text[match.start() - 1] == "=" else "")
        elif kind == "word":
            yield place.word(token, match.start())
            before = token
        elif kind == "array":
            place.depth, place.holder = place.depth + 1, token.rstrip("+=(")
            yield Word(token, match.start(), ends=True, branch=place.branches > 0)
        elif kind == "open":
            place.depth += 1
        elif kind == "close":
            place.depth = max(0, place.depth - 1)
            place.holder = place.holder if place.depth else ""
            yield Word("", match.start(), ends=True)
        if kind == "operator" or (kind == "end" and not place.depth and not place.quote):
            place.end()
            yield Word("", match.start(), ends=True)
        if count > LARGEST:
            return


def _values(words: list[Word], start: int) -> Iterator[Word]:
    """The words after a flag that belong to it."""
    for at, word in enumerate(words[start : start + MOST_VALUES]):
        options = at > 0 and word.text.startswith("$")  # a string of them, after the value
        if word.ends or options or word.text.startswith("--") or _ASSIGNED.match(word.text):
            return
        yield word


def _variables(words: list[Word]) -> dict[str, str | None]:
    """Variables that are assigned one plain word; none for those with several."""
    found: dict[str, str | None] = {}
    for at, word in enumerate(words):
        match = _ASSIGNED.fullmatch(word.text)
        if match is None or word.ends:
            continue
        name, added, value = match[1], match[2], match[3]
        alone = at + 1 == len(words) or words[at + 1].ends
        plain = value if alone and value and not added else None
        found[name] = plain if name not in found or found[name] == plain else None
    return found


def _resolved(value: str, variables: dict[str, str | None], depth: int = 4) -> str | None:
    """A value with its variables; none where one of them is not known."""
    if "$" not in value:
        return value
    for match in _NAMED.finditer(value):
        known = variables.get(match[1] or match[2])
        if known is None or not depth:
            return None
        return _resolved(
            value[: match.start()] + known + value[match.end() :], variables, depth - 1
        )
    return None
