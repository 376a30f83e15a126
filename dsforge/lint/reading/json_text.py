"""JSON text -> values with their places, in the dialect that DeepSpeed reads.

DeepSpeed reads its config with hjson: comments and trailing commas pass there, and stop every
program that uses Python's own `json`, as transformers and accelerate do; `True` becomes the text
"True," there silently. So a reader is needed that takes both, keeps positions and goes on
after such slips. The libraries that keep positions (json-source-map, jsonc parsers) know no
duplicate keys or are not kept up, and the grammar is six tokens: this is smaller than adapting one.
There is no recursion, and every token is found in linear time.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, NamedTuple, cast

from dsforge.findings import Edit
from dsforge.importing.marks import Flaw, Loc, Mark
from dsforge.outside import UnreadableError, json_with_repeated

MAX_DEPTH = 40
MAX_FLAWS = 50
MAX_DIGITS = 30

# No group is repeated possessively: Python before 3.11.5 matches such groups wrongly.
_TOKEN = re.compile(
    r"""[ \t\r\n]*+(?:
      (?P<punct>[{}\[\],:])
    | (?P<string>"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*")
    | (?P<number>-?[0-9]++(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?(?![\w.]))
    | (?P<word>[^\W\d][\w.]*+|-Infinity)
    | (?P<comment>//[^\n]*+|\#[^\n]*+|/\*.*?\*/)
    | (?P<end>\Z)
    | (?P<other>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_LITERALS = {"true": True, "false": False, "null": None}
_FOREIGN = {"True": "true", "False": "false", "None": "null"}
_LONG_NUMBER = re.compile(f"[0-9]{{{MAX_DIGITS + 1}}}")
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
UNFILLED = "a placeholder that nobody filled in"
UNQUOTED = ("/", "~", ".")  # beginnings of paths
PLACEHOLDERS = ("$", "%", "<", "@")  # ${x}, %x%, <x>, @x@
_CLOSING = {"{": "}", "[": "]"}


class Parsed(NamedTuple):
    """Values, places and flaws of a text; `complete` where it was read to its end."""

    root: Any
    marks: dict[Loc, Mark]
    flaws: list[Flaw]
    complete: bool


class _StopError(Exception):
    """Nothing sensible can be read behind the last flaw."""


class _Open:
    """A collection that is being read."""

    __slots__ = ("content", "key", "loc", "opening", "start")

    def __init__(self, loc: Loc, content: Any, start: int, opening: str) -> None:
        self.loc, self.content, self.start, self.opening = loc, content, start, opening
        self.key: tuple[str, int, int] | None = None


def plain(text: str) -> dict[str, Any] | None:
    """The object in a sound JSON text, by the fast reader of the standard library.

    None where there is anything to find: nine files in ten are sound, and places are then needed
    only for those in which a rule finds something.
    """
    if _LONG_NUMBER.search(text):
        return None
    try:
        found, repeated = json_with_repeated(text)
    except UnreadableError:
        return None
    if repeated or not isinstance(found, dict):
        return None
    few = text.count("{") + text.count("[") <= MAX_DEPTH
    return found if few or not _is_deep(found) else None


def _is_deep(value: Any) -> bool:
    """Whether a value is nested deeper than a config may be."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


@lru_cache(maxsize=2)  # a document asks for its places more than once
def parsed(text: str) -> Parsed:
    """The values of a JSON text as far as it can be read, with what is wrong."""
    reader = _Reader(text)
    try:
        reader.read()
    except _StopError:
        return Parsed(reader.root, reader.marks, reader.flaws, complete=False)
    return Parsed(reader.root, reader.marks, reader.flaws, complete=True)


class _Reader:
    """Reads token by token; `expects` is what may come next: value, key, colon or comma."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.root: Any = None
        self.marks: dict[Loc, Mark] = {}
        self.flaws: list[Flaw] = []
        self.open: list[_Open] = []
        self.expects = "value"
        self.comma = -1

    def read(self) -> None:
        """Read to the end. Raises _StopError behind a flaw that cannot be passed."""
        at = 0
        while True:
            match = cast("re.Match[str]", _TOKEN.match(self.text, at))  # `other` takes the rest
            kind = str(match.lastgroup)
            start, at = match.start(kind), match.end()
            if kind == "end":
                return self._finish(start)
            self._take(kind, match[kind], start)

    def _take(self, kind: str, written: str, start: int) -> None:
        """Take one token."""
        if kind == "comment":
            self._comment(start)
        elif self.expects == "end":
            self._stop(start, "something follows the end of the document")
        elif kind == "punct":
            self._punct(written, start)
        else:
            self._scalar(kind, written, start)

    def _finish(self, at: int) -> None:
        if self.expects != "end":
            missing = "".join(_CLOSING[o.opening] for o in reversed(self.open))
            shown = missing[:10]
            self._stop(at, f"the text ends before `{shown}`" if shown else "the file is empty")

    def _punct(self, written: str, start: int) -> None:
        if written in "{[":
            self._begin(written, start)
        elif written in "}]":
            self._end(written, start)
        elif written == ":" and self.expects == "colon":
            self.expects = "value"
        elif written == "," and self.expects == "comma":
            self.comma = start
            self.expects = "key" if self.open[-1].opening == "{" else "value"
        else:
            self._stop(start, f"`{written}` where {self._wanted()} is expected")

    def _begin(self, written: str, start: int) -> None:
        if self.expects != "value":
            self._stop(start, f"`{written}` where {self._wanted()} is expected")
        if len(self.open) >= MAX_DEPTH:
            self._flaw("too-deep", start, f"nested deeper than {MAX_DEPTH} levels")
            raise _StopError
        content: Any = {} if written == "{" else []
        loc = self._put(content, start, start)
        self.open.append(_Open(loc, content, start, written))
        self.expects, self.comma = ("key" if written == "{" else "value"), -1

    def _end(self, written: str, start: int) -> None:
        top = self.open[-1] if self.open else None
        if top is None or _CLOSING[top.opening] != written:
            self._stop(start, f"`{written}` closes no open bracket")
            return
        empty = not top.content and self.comma < 0
        if self.comma >= 0 and self.expects in ("key", "value"):
            message = f"comma before `{written}`: Python's `json` refuses it"
            edit = Edit(self.comma, self.comma + 1, "")
            self._flaw("json-trailing-comma", self.comma, message, fix="remove it", edit=edit)
        elif self.expects != "comma" and not empty:
            self._stop(start, f"`{written}` where {self._wanted()} is expected")
        self.open.pop()
        mark = self.marks.get(top.loc)
        if mark:
            self.marks[top.loc] = mark._replace(end=start + 1)
        self.expects, self.comma = ("comma" if self.open else "end"), -1

    def _scalar(self, kind: str, written: str, start: int) -> None:
        if self.expects == "key" and kind == "string":
            self._take_key(written, start)
        elif self.expects == "value" and kind in ("string", "number", "word"):
            self._put(self._value(kind, written, start), start, start + len(written))
            self.expects, self.comma = ("comma" if self.open else "end"), -1
        else:
            shown = ascii(written[:20])[1:-1]
            if self.expects == "value" and written in PLACEHOLDERS:
                self._stop(start, f"`{shown}` is {UNFILLED}")
            if self.expects == "value" and written in UNQUOTED:
                message = "text without quotes: DeepSpeed reads it, Python's `json` does not"
                self.flaws.append(Flaw("json-syntax", start, message, "add quotes", (), "warning"))
                raise _StopError
            self._stop(start, f"`{shown}` where {self._wanted()} is expected")

    def _take_key(self, written: str, start: int) -> None:
        top = self.open[-1]
        key = self._string(written, start)
        if key in top.content and len(self.flaws) < MAX_FLAWS:
            first = self.marks[(*top.loc, key)].key_start
            line = self.text.count("\n", 0, first) + 1
            message = f"`{key[:60]}` occurs twice, first on line {line}"
            self._flaw("duplicate-key", start, message, fix="keep one")
        top.key = (key, start, start + len(written))
        self.expects = "colon"

    def _value(self, kind: str, written: str, start: int) -> Any:
        if kind == "string":
            return self._string(written, start)
        if kind == "number":
            return self._number(written, start)
        if written in _LITERALS:
            return _LITERALS[written]
        if written in _FOREIGN:
            right = _FOREIGN[written]
            message = f"`{written}` is Python: hjson reads it as text, `json` refuses it"
            edit = Edit(start, start + len(written), right)
            self._flaw("json-literal", start, message, fix=f"write `{right}`", edit=edit)
            return _LITERALS[right]
        if written in _NO_NUMBERS:
            self._flaw(
                "json-number", start, f"`{written}` is not a JSON number", fix="write a number"
            )
            return None
        what = UNFILLED if written.isupper() else "not a value; text needs quotes"
        return self._stop(start, f"`{ascii(written[:40])[1:-1]}` is {what}")

    def _string(self, written: str, start: int) -> str:
        if "\\" not in written:
            return written[1:-1]
        try:
            return str(json.loads(written))
        except ValueError:
            self._stop(start, "the text contains an invalid escape `\\`")
            return ""

    def _number(self, written: str, start: int) -> Any:
        whole = written.lstrip("-").isdigit()
        value = int(written) if whole and len(written) <= MAX_DIGITS else float(written)
        if isinstance(value, float) and (whole or value in (float("inf"), float("-inf"))):
            self._flaw("json-number", start, f"`{written[:40]}` is too large", fix="write a number")
            return None
        if not whole or written.lstrip("-")[0] != "0" or len(written.lstrip("-")) == 1:
            return value
        return self._stop(start, f"`{written[:40]}` begins with 0")

    def _put(self, value: Any, start: int, end: int) -> Loc:
        """Attach a value to the open container; return its location."""
        if not self.open:
            self.root = value
            return ()
        top = self.open[-1]
        if isinstance(top.content, list):
            top.content.append(value)
            return (*top.loc, len(top.content) - 1)  # no rule points at an element of a list
        key, key_start, key_end = top.key or ("", start, start)
        top.content[key] = value
        loc = (*top.loc, key)
        self.marks[loc] = Mark(key_start, key_end, start, end)
        return loc

    def _comment(self, start: int) -> None:
        if not any(flaw.rule == "json-comment" for flaw in self.flaws):
            message = "comment: DeepSpeed reads it, transformers and accelerate refuse the file"
            self._flaw("json-comment", start, message, fix="remove comments")

    def _wanted(self) -> str:
        words = {"value": "a value", "key": "a key in quotes", "colon": "`:`", "comma": "`,`"}
        return words.get(self.expects, "nothing")

    def _flaw(
        self, rule: str, at: int, message: str, *, fix: str = "", edit: Edit | None = None
    ) -> None:
        if len(self.flaws) < MAX_FLAWS:
            self.flaws.append(Flaw(rule, at, message, fix, (edit,) if edit else ()))

    def _stop(self, at: int, message: str) -> None:
        """Note a syntax error and give up. Raises _StopError."""
        self._flaw("json-syntax", at, message)
        raise _StopError
