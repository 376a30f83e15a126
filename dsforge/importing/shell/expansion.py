r"""Variables of a script: what words become once quotes and expansions are done.

What is not known stays in the text as a marked word: `\\x01name\\x02`, where `name` says what the
value would be taken from. `\\x01?name\\x02` is a variable that nothing sets: without arguments and
environment it is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dsforge.importing.shell.arithmetic import computed
from dsforge.importing.shell.tokens import closing, piece_end

LONGEST = 200_000  # characters of one expansion
DEEPEST = 5  # commands within commands
OPEN, CLOSE, UNSET = "\x01", "\x02", "?"
_SPECIAL = re.compile(r"[^\w?./@*-]+")  # of the shell, which would split the mark
_MARKED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(
    r"([A-Za-z_]\w*|[0-9@*#])(\[[^\]]*\])?(:?[-=?+]|[%#]{1,2}|//?|,,?|\^\^?)?(.*)", re.DOTALL
)
JOIN = "\x03\n"  # a line that goes on: a blank that keeps the count of lines
_SPLIT = re.compile(r"[ \t\n\x03]+")


class Piece(NamedTuple):
    """A word after expansion, and the line where its text stands."""

    text: str
    line: int


class Held(NamedTuple):
    """The value of a variable: one text, or the items of an array."""

    items: tuple[Piece, ...]
    is_array: bool = False

    @property
    def text(self) -> str:
        """The value as `$NAME` gives it: of an array the first item, here all."""
        return " ".join(item.text for item in self.items)


def unknown(name: str) -> str:
    """A text that stands for a value that nobody knows before the run."""
    return f"{OPEN}{_SPECIAL.sub('_', name[:80])}{CLOSE}"


def is_unknown(text: str) -> bool:
    """Whether some part of a text is not known."""
    return OPEN in text


def without_unset(text: str) -> str:
    """The text as it is when variables that nothing sets are empty."""
    return _MARKED.sub(lambda m: "" if m[1].startswith(UNSET) else m[0], text)


def readable(text: str) -> str:
    """The text with `$name` for what is not known, for messages."""
    return _MARKED.sub(lambda m: "$" + m[1].lstrip(UNSET), text)


Answers = Callable[[str, "Variables"], str | None] | None


class Variables:
    """The variables that are known at one place of a script."""

    def __init__(self, values: dict[str, Held] | None = None, answers: Answers = None) -> None:
        self.values: dict[str, Held] = dict(values or {})
        self._inside = 0  # commands within commands that are being worked out
        self.answers = answers  # what `$(command)` gives, for commands that are tests and `echo`

    def copy(self) -> Variables:
        """Variables that change without these."""
        return Variables(self.values, self.answers)

    def keep(self, name: str, text: str, line: int) -> None:
        """Give a variable one text."""
        self.values[name] = Held((Piece(text[:LONGEST], line),))

    def text(self, name: str) -> str:
        """The text of a variable; marked where nothing sets it."""
        held = self.values.get(name)
        return unknown(UNSET + name) if held is None else held.text[:LONGEST]

    def fields(self, raw: str, line: int) -> list[Piece]:
        """The words that one word becomes."""
        whole = _array_of(raw)
        if whole is not None:
            held = self.values.get(whole)
            if held is not None and held.is_array:
                return list(held.items) if raw.startswith('"') else _split(held.items)
        made: list[Piece] = []
        text, is_open, quoted = "", line, False
        for part, splits in self._parts(raw):
            if not splits:
                text, quoted = text + part, True
                continue
            first, *rest = _SPLIT.split(part)
            text += first
            for more in rest:
                if text or quoted:
                    made.append(Piece(text, is_open))
                text, quoted = more, False
        if text or quoted:
            made.append(Piece(text, is_open))
        return self._placed(raw, made)

    def _placed(self, raw: str, made: list[Piece]) -> list[Piece]:
        """Words of a variable that holds several, each at the line where it was written."""
        name = raw.strip('"').strip("${}")
        held = self.values.get(name)
        if held is None or len(held.items) != 1 or not made:
            return made
        text, line = held.items[0]
        placed, at = [], 0
        for piece in made:
            found = text.find(piece.text, at)
            at = max(at, found)
            placed.append(Piece(piece.text, line + text.count("\n", 0, at) if found >= 0 else line))
        return placed

    def whole(self, raw: str) -> str:
        """The text that one word becomes where it is not split."""
        return "".join(part for part, _ in self._parts(raw))[:LONGEST]

    def _parts(self, raw: str, depth: int = 6) -> list[tuple[str, bool]]:
        """Parts of a word without their quotes, and whether each is split at blanks."""
        parts: list[tuple[str, bool]] = []
        at = size = 0
        while at < len(raw) and size < LONGEST:
            mark = raw[at]
            end = piece_end(raw, at)
            if mark == "\\":
                parts.append((raw[at + 1 : end].replace("\n", ""), False))
            elif mark == "'" and end > at:
                parts.append((raw[at + 1 : end - 1], False))
            elif mark == '"':
                parts.append((self.string(raw[at + 1 : end - 1], depth), False))
            elif mark == "`":
                parts.append((self._substituted(raw[at + 1 : end - 1], depth), False))
            elif mark == "$":
                value, end = self._value(raw, at, depth)
                parts.append((value, True))
            else:
                end = max(at + 1, end)
                parts.append((raw[at:end], False))
            size += len(parts[-1][0])
            at = end
        return parts

    def string(self, text: str, depth: int = 6) -> str:
        """The text in double quotes, or of a here-document, with its variables."""
        made: list[str] = []
        at = size = 0
        while at < len(text) and size < LONGEST:
            mark = text[at]
            if mark == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
                made.append(JOIN if text[at + 1] == "\n" else text[at + 1])
                end = at + 2
            elif mark == "$":
                value, end = self._value(text, at, depth)
                made.append(value)
            elif mark == "`" and text.find("`", at + 1) > 0:
                end = text.find("`", at + 1) + 1
                made.append(self._substituted(text[at + 1 : end - 1], depth))
            else:
                following = (text.find(stop, at + 1) for stop in "\\$`")
                end = min((place for place in following if place > 0), default=len(text))
                made.append(text[at:end])
            size += len(made[-1])
            at = end
        return "".join(made)

    def _value(self, text: str, at: int, depth: int) -> tuple[str, int]:
        """What a `$` stands for, and where it ends."""
        if text.startswith("$((", at):
            end = closing(text, at + 1, "()")
            inner = self.string(text[at + 3 : end - 2], depth - 1) if depth else ""
            number = computed(self.with_values(inner))
            return (str(number) if number is not None else unknown(text[at + 1 : end])), end
        if text.startswith("$(", at):
            end = closing(text, at + 1, "()")
            return self._substituted(text[at + 2 : end - 1], depth), end
        if text.startswith("${", at):
            end = closing(text, at + 1, "{}")
            return (self._braced(text[at + 2 : end - 1], depth) if depth else ""), end
        name = _NAME.match(text, at + 1)
        if name is None:
            return "$", at + 1
        return self._plain(name[0]), name.end()

    def _substituted(self, command: str, depth: int) -> str:
        """What `$(command)` gives, down to a number of commands within commands."""
        if self._inside >= DEEPEST:
            return unknown(f"({command.strip()})")
        self._inside += 1
        try:
            return self._printed(command, depth)
        finally:
            self._inside -= 1

    def _printed(self, command: str, depth: int) -> str:
        """What a command prints: known for `echo`, `expr`, and those that have answers."""
        program, _, rest = command.strip().partition(" ")
        plain = not any(mark in rest for mark in "|;&<>`")
        if depth and plain and program in ("echo", "expr"):
            text = self.whole(rest) if program == "echo" else self.string(rest.replace("\\*", "*"))
            if program == "echo":
                return text.strip()
            number = computed(self.with_values(text))
            if number is not None:
                return str(number)
        if depth and self.answers is not None:
            answer = self.answers(command, self)
            if answer is not None:
                return answer
        if depth and "bc" in command and "echo" in command:
            text = self.string(command.partition("echo")[2].partition("|")[0].strip().strip('"'))
            number = computed(self.with_values(text))
            if number is not None:
                return str(number)
        return unknown(f"({command.strip()})")

    def with_values(self, text: str) -> str:
        """A text of arithmetic with the values of the names in it."""
        return re.sub(r"[A-Za-z_]\w*", lambda m: self._number(m[0]), without_unset(text))

    def _number(self, name: str) -> str:
        held = self.values.get(name)
        return name if held is None else held.text

    def _plain(self, name: str) -> str:
        if name == "#":
            return "0"  # a script that is started without arguments
        if name in ("@", "*"):
            return ""
        return self.text(name)

    def _braced(self, inner: str, depth: int) -> str:  # noqa: C901, PLR0911 - one for each form
        """What `${inner}` stands for."""
        if inner.startswith("#"):
            held = self.values.get(inner[1:].partition("[")[0])
            return str(len(held.items)) if held is not None and held.is_array else unknown(inner)
        match = _BRACED.fullmatch(inner)
        if match is None:
            return unknown(inner)
        name, index, operator, rest = match.groups()
        value = self._plain(name) if not index else self._item(name, index)
        if not operator:
            return value
        unset = without_unset(value) == ""
        if operator in (":-", "-", ":=", "="):
            if not unset:
                return value
            default = "".join(part for part, _ in self._parts(rest, depth - 1))
            if "=" in operator:
                self.keep(name, default, 0)
            return default
        if operator in (":+", "+"):
            return "" if unset else self.string(rest, depth - 1)
        if operator in (":?", "?"):
            return value
        if not is_unknown(value):
            return _changed(value, operator, rest)
        if name in ("0", "BASH_SOURCE") and (operator, rest) == ("%", "/*"):
            return "."  # the folder of the script
        return unknown(inner)

    def _item(self, name: str, index: str) -> str:
        held = self.values.get(name)
        number = index.strip("[]")
        if held is None or number in ("@", "*"):
            return self.text(name)
        if number.isdigit() and held.is_array and int(number) < len(held.items):
            return held.items[int(number)].text
        return unknown(f"{name}{index}")


def _changed(value: str, operator: str, rest: str) -> str:
    """A known value after `##*/`, `%pattern`, `/a/b` or a change of case."""
    if operator in (",", ",,"):
        return value.lower()
    if operator in ("^", "^^"):
        return value.upper()
    if operator in ("/", "//") and "/" in rest and not set("*?[") & set(rest):
        old, _, new = rest.partition("/")
        return value.replace(old, new, -1 if operator == "//" else 1) if old else value
    if operator == "##" and rest == "*/":
        return value.rpartition("/")[2]
    if operator in ("%", "%%") and not set("*?[") & set(rest):
        return value.removesuffix(rest)
    return unknown(f"{value}{operator}{rest}")


def _split(items: tuple[Piece, ...]) -> list[Piece]:
    """The words of items, as an array without quotes gives them."""
    return [Piece(word, item.line) for item in items for word in _SPLIT.split(item.text) if word]


def _array_of(raw: str) -> str | None:
    """The name in `"${NAME[@]}"` or `${NAME[*]}`; none where a word is anything else."""
    match = re.fullmatch(r'"?\$\{([A-Za-z_]\w*)\[[@*]\]\}"?', raw)
    return match[1] if match else None
