"""What a rule is: the words that find a line, the patterns that read it, the text that explains it.

A rule is an entry of a YAML file in `rules/`. `kind` says what its line is worth in a cascade,
because a distributed run that fails prints its cause once and the consequences on every rank:

    cause   an error that stands for itself; the first one in time is the answer
    stall   ranks waited too long: the answer where no cause came before it
    death   a process was killed: as a stall
    family  an error that no rule knows, of a form that tells what kind of cause it has
    error   an exception that no rule knows, of no such form; better than an echo
    echo    a peer is gone, a destructor fails: something else came first
    exit    what a launcher says at the end
    hint    nothing failed, but this costs time or comes out wrong
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

from dsforge.diagnose.line_forms import Form
from dsforge.diagnose.templates import required_names

Kind = Literal["cause", "stall", "death", "family", "error", "echo", "exit", "hint"]


ANSWERS = ("cause", "stall", "death")  # kinds that name a cause
ERRORS = ("family", "error")  # errors that no rule knows
FLAGS = ("survives_success", "any_level", "errors_only")


class Case(NamedTuple):
    """What a general rule says where the log tells more: read in order, the first that fits counts.

    `when` are patterns by the name of a value (a group of the rule's patterns, or one that its
    `compute` adds), or of `frames` (the last traceback) and `log` (the line and those before; of a
    short text those after, too): all must be found. What a case leaves empty is as in its rule.
    """

    when: Mapping[str, str]
    hits: tuple[str, ...]  # excerpts that this case must answer
    message: str = ""
    cause: str = ""
    fix: str = ""
    confidence: float = 0.0


class Rule(NamedTuple):
    """One known fault: an entry of `rules/*.yaml`, field by field.

    A line is looked at where it contains one of the `needles` (lower case); the `patterns` are then
    searched in it, one after the other, and in as many lines after it as `lines` says. Where others
    say the same words, `context` tells them apart: for `vague` patterns, or without them for all.
    `message` and `fix` are templates (see templates.py) over the patterns' named groups, `rank`,
    `phase`, and what the function named by `compute` adds. In a fix, a line that begins with `$ `
    is a command, `- ` and `+ ` are a change to ds_config, `NAME=value` goes into the environment of
    all ranks.
    """

    id: str
    needles: tuple[str, ...]
    patterns: tuple[str, ...]
    message: str
    cause: str
    fix: str
    sources: tuple[str, ...]  # where the text of the log line comes from, or who met it
    confidence: float  # 0 to 1: how often this is the cause where the line is there
    hits: tuple[str, ...]  # excerpts in which this rule must answer first
    misses: tuple[str, ...] = ()  # excerpts that look alike and mean something else
    kind: Kind = "cause"
    lines: int = 0
    survives_success: bool = False  # counts even where the run ended well
    explains: tuple[str, ...] = ()  # rules whose lines are consequences of this one
    compute: str = ""  # function of computed.py that adds values
    any_level: bool = False  # lines that call themselves information or warnings count, too
    context: str = ""  # pattern in the line, or in the last traceback before it, that must be there
    vague: tuple[str, ...] = ()  # patterns of words that others say, too: `context` is for these
    confirmed_by: str = ""  # pattern in the failure itself, which makes a notice its cause
    continues: str = ""  # pattern in the line before, which makes a plain line part of an error
    errors_only: bool = False  # plain lines need that confirmation, too: they are often harmless
    cases: tuple[Case, ...] = ()
    cases_of: str = ""  # another rule, whose cases are tried after its own

    @property
    def all_patterns(self) -> tuple[str, ...]:
        """The patterns that count anywhere, then those that need the context."""
        return (*self.patterns, *self.vague)

    @property
    def required(self) -> frozenset[str]:
        """Groups without which the message says nothing: a match that leaves one empty is void."""
        return frozenset() if self.compute else _required(self.message, self.all_patterns)

    def match(self, text: str) -> re.Match[str] | None:
        """The first pattern's match that gives all that the message needs."""
        for pattern in self.all_patterns:
            found = compiled(pattern).search(text)
            if found and all(found.groupdict().get(name) for name in self.required):
                return found
        return None

    def fits(self, found: re.Match[str], surroundings: str) -> bool:
        """Whether a match stands where it means this: by the context, where it needs one."""
        free = not self.context or (self.vague and found.re.pattern in self.patterns)
        return bool(free or compiled(self.context).search(surroundings))


class MatchedLine(NamedTuple):
    """One line that a rule has matched, cleaned, and what it says."""

    rule: Rule
    file: str
    line: int  # from 1; of the file
    rank: int | None
    when: str  # ISO time at or before the line; empty where the log has none
    text: str
    values: Mapping[str, str]  # the pattern's groups; empty where a group took no part
    before: str  # the lines before it, as many as fit; with a cut traceback's frames below it
    phase: str  # what the run was doing, from the last line that says so
    form: Form = "error"
    after: str = ""  # the lines after it, where the text is short: settings, or who reports it


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern of a rule, case ignored."""
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


@cache
def _required(message: str, patterns: tuple[str, ...]) -> frozenset[str]:
    groups = {name for pattern in patterns for name in compiled(pattern).groupindex}
    return frozenset(required_names(message) & groups)


def rule_from(entry: Mapping[str, Any]) -> Rule:
    """The rule that a YAML entry describes.

    Raises ValueError with the entry's id, the field and what it should be.
    """
    name = entry.get("id", "?")
    fields = Rule._fields
    if unknown := sorted(set(entry) - set(fields)):
        raise ValueError(f"rule {name}: unknown field `{unknown[0]}`; fields are {fields}")
    missing = set(fields) - set(Rule._field_defaults) - set(entry)
    if missing:
        raise ValueError(f"rule {name}: field `{min(missing)}` is missing")
    return Rule(**{field: _value(name, field, value) for field, value in entry.items()})


def _case(rule: str, entry: Any) -> Case:
    """One case of a rule."""
    if not isinstance(entry, dict) or set(entry) - set(Case._fields) or not entry.get("hits"):
        raise ValueError(f"rule {rule}: a case has {Case._fields}, `hits` among them")
    return Case(**{**entry, "hits": tuple(entry["hits"])})


def _value(rule: str, field: str, value: Any) -> Any:
    """A field's value in its type; lists become tuples."""
    if field == "cases":
        return tuple(_case(rule, entry) for entry in value)
    if field in ("needles", "patterns", "vague", "sources", "hits", "misses", "explains"):
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return tuple(value)
        raise ValueError(f"rule {rule}: `{field}` must be a list of texts (got {value!r})")
    if field == "kind" and value not in get_args(Kind):
        raise ValueError(f"rule {rule}: `kind` must be one of {get_args(Kind)} (got {value!r})")
    wanted = {"lines": int, "confidence": float, **dict.fromkeys(FLAGS, bool)}.get(field, str)
    if type(value) is not wanted:
        raise ValueError(f"rule {rule}: `{field}` must be {wanted.__name__} (got {value!r})")
    return value
