"""YAML text -> plain values, each with its line.

PyYAML's own constructors are too generous for input from outside: duplicate keys win silently,
`no` is a boolean, `1e-4` is a string, aliases grow without bound, deep nesting ends the
interpreter's stack. Here the tree is built from the parser's events, without recursion, by the
small YAML 1.2 core schema, and anything else is refused with its line. `yaml.compose` has lines,
too, but recurses in C: 250,000 opening brackets in half a megabyte end the process.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import yaml

from dsforge.errors import Problem
from dsforge.reading.refusals import MAX_DEPTH, MAX_PROBLEMS, Loc, refusal

MAX_DIGITS = 30
DUPLICATE = "yaml-duplicate-key"
MOST_EVENTS = 1_000_000  # of one file: seconds, on any machine
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser takes a tenth of the time

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def grown(text: str, name: str, *, foreign: bool = False) -> Tree:
    """The tree of YAML text; `name` is what messages call it. Raises SpecError.

    A `foreign` file is for another program: aliases stand for their values, tags say nothing, and
    of several documents the first is read.
    """
    tree = Tree(name, foreign=foreign)
    try:
        for count, event in enumerate(yaml.parse(text, Loader=LOADER)):
            tree.take(event)
            if tree.is_complete:
                break
            if count > MOST_EVENTS:
                message = f"has more than {MOST_EVENTS:,} values"
                raise refusal("yaml-large", tree.place(event), message)
    except yaml.MarkedYAMLError as error:
        last = text.rstrip("\n").count("\n")  # an end that is missing has no line of its own
        line = min(error.problem_mark.line, last) + 1 if error.problem_mark else 1
        raise refusal("yaml-syntax", f"{name}:{line}", f"not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        message = f"not YAML: character U+{code:04X} is not allowed"
        raise refusal("yaml-syntax", f"{name}:{line}", message) from error
    except (yaml.YAMLError, ValueError) as error:
        raise refusal("yaml-syntax", name, f"not YAML: {error}") from error
    return tree


class _Open(NamedTuple):
    """A collection that has begun and not yet ended; `keys` holds the event of a waiting key."""

    loc: Loc
    content: dict[str, Any] | list[Any]
    keys: list[Any]


class Span(NamedTuple):
    """Offsets in the text: of a key and of its value; an element of a list is its own key."""

    key_start: int
    key_end: int
    start: int
    end: int


class Tree:
    """Builds plain values from parser events and notes the line of each."""

    def __init__(self, name: str, *, foreign: bool = False) -> None:
        self.name, self.foreign = name, foreign
        self.is_complete = False
        self.root: Any = {}
        self.places: dict[Loc, str] = {}
        self.spans: dict[Loc, Span] = {}
        self.problems: list[Problem] = []
        self._open: list[_Open] = []
        self._documents = 0
        self._anchored: dict[str, Any] = {}

    def take(self, event: Any) -> None:
        """Take the next event. Raises SpecError where going on would be unsafe."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            self.is_complete = self.foreign and self._documents > 1
            if self._documents > 1 and not self.foreign:
                raise refusal(
                    "yaml-documents", self.place(event), "only one YAML document is allowed"
                )
        elif isinstance(event, yaml.AliasEvent) and self.foreign:
            self._alias(event)
        elif isinstance(event, yaml.AliasEvent):
            message = f"alias `*{event.anchor}` is not allowed; write the value out"
            raise refusal("yaml-alias", self.place(event), message)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._begin(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._open.pop()
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)

    def _alias(self, event: Any) -> None:
        """Hang the value of an anchor in; inside itself it is none."""
        if self._awaits_key():
            raise refusal("yaml-key", self.place(event), "a key must be plain text")
        inside = [each.content for each in self._open]
        value = self._anchored.get(event.anchor)
        self._put(None if any(value is each for each in inside) else value, event)

    def _begin(self, event: Any) -> None:
        if len(self._open) >= MAX_DEPTH:
            message = f"is nested deeper than {MAX_DEPTH} levels"
            raise refusal("yaml-depth", self.place(event), message)
        if self._awaits_key():
            raise refusal("yaml-key", self.place(event), "a key must be plain text")
        self._check_tag(event)
        content: dict[str, Any] | list[Any]
        content = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._open.append(_Open(self._put(content, event), content, []))
        if event.anchor:
            self._anchored[event.anchor] = content

    def _scalar(self, event: Any) -> None:
        self._check_tag(event)
        if self._awaits_key():
            self._open[-1].keys.append(event)
            return
        value = event.value if event.style else self._plain(event)
        self._put(value, event)
        if event.anchor:
            self._anchored[event.anchor] = value

    def _awaits_key(self) -> bool:
        return bool(
            self._open and isinstance(self._open[-1].content, dict) and not self._open[-1].keys
        )

    def _put(self, value: Any, event: Any) -> Loc:
        """Hang a value into the open collection; its location."""
        if not self._open:
            self.root = value
            return ()
        top = self._open[-1]
        key: Any
        named = event
        if isinstance(top.content, dict):
            named = top.keys.pop()
            key = named.value
            if key == "<<" and self.foreign:
                _merge(top.content, value)
                return top.loc
            if key in top.content and not self._is_merged(top, key):
                self._repeated(named, value == top.content[key])
            top.content[key] = value
        else:
            key = len(top.content)
            top.content.append(value)
        loc = (*top.loc, key)
        self.places[loc] = self.place(event)
        marks = (named.start_mark, named.end_mark, event.start_mark, event.end_mark)
        self.spans[loc] = Span(*(mark.index for mark in marks))
        return loc

    def _is_merged(self, top: _Open, key: Any) -> bool:
        """Whether a key came from another mapping, which a key of its own replaces."""
        return self.foreign and (*top.loc, key) not in self.places

    def _repeated(self, event: Any, same: bool) -> None:
        rule, more = ("yaml-same-key", " with the same value") if same else (DUPLICATE, "")
        self._problem(rule, event, f"`{event.value}` is written twice{more}")

    def _plain(self, event: Any) -> Any:
        """The value of an unquoted scalar by the YAML 1.2 core schema."""
        text: str = event.value
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text) and len(text) <= MAX_DIGITS:
            return int(text)
        if _INT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
            return self._not_a_number(event)
        if _FLOAT.fullmatch(text):
            value = float(text)
            return value if math.isfinite(value) else self._not_a_number(event)
        return text

    def _not_a_number(self, event: Any) -> str | None:
        """Nothing; of a foreign file the text, which whoever asks for a number refuses."""
        if self.foreign:
            return str(event.value)
        self._problem("yaml-number", event, f"`{event.value[:40]}` is not a finite number")
        return None

    def _check_tag(self, event: Any) -> None:
        if event.tag not in (None, "!") and not self.foreign:
            self._problem(
                "yaml-tag", event, f"tag `{event.tag}` is not allowed; write a plain value"
            )

    def _problem(self, rule: str, event: Any, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(rule, message, place=self.place(event)))

    def place(self, event: Any) -> str:
        """Where an event stands: name and line."""
        return f"{self.name}:{event.start_mark.line + 1}"


def _merge(content: dict[str, Any], value: Any) -> None:
    """Add what a merged mapping, or a list of them, has and this one has not."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            for key, inner in each.items():
                content.setdefault(key, inner)
