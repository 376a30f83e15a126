"""Rules as data: one row for each rule that tests a value under a few conditions.

Most rules have one of few shapes: a value beyond a range, a word that does not exist, a key that is
ignored below a ZeRO stage, two keys that cannot be combined, a variable that does harm. Such a rule
is a `Row`; `rules` makes rules of rows. What needs arithmetic stays a function.

How keys and conditions are written stands in `conditions.py`. In a `.deepspeed_env` a key is the
name of a variable, and `*` stands for any part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, NamedTuple

from dsforge.findings import Edit, Hit, Rule, Severity
from dsforge.importing.marks import Loc
from dsforge.lint.checked_file import CheckedFile, shown
from dsforge.lint.conditions import (
    FACTS,
    OF_ABSENT,
    OPERATORS,
    If,
    is_true,
    loc_of,
    operand_of,
    value_at,
)
from dsforge.lint.reading.document import Kind
from dsforge.lint.reading.variables import variables
from dsforge.lint.schemas.releases import number
from dsforge.units import count


class Repair(NamedTuple):
    """What `--fix` writes: another value, another name, or nothing where the key stood."""

    way: Literal["replace", "rename", "remove"]
    text: Any = None


class Look(NamedTuple):
    """One look at a file; the fields are those of a `Row`."""

    test: If
    message: str
    fix: str = ""
    when: tuple[If, ...] = ()
    at: str | None = None
    repair: Repair | None = None


class Row(NamedTuple):
    """One rule. Each key of `test` that fulfils it is a finding where every `when` holds.

    `message` and `fix` may name `{key}`, `{block}` (what the key is in), `{value}`, `{number}`,
    `{count}` (as 50.0M), the `{operand}` and the value `{of}` it, `{stage}`, `{device}`, `{model}`.
    """

    id: str
    severity: Severity
    test: If
    message: str
    fix: str = ""
    title: str = ""
    why: str = ""
    evidence: str = ""
    when: tuple[If, ...] = ()
    at: str | None = None  # what the finding points to; none: the key that is looked at
    repair: Repair | None = None
    also: tuple[Look, ...] = ()  # other ways to break the same rule
    kinds: tuple[Kind, ...] = ("ds_config",)
    since: str = ""  # the first release of DeepSpeed for which it holds; empty: all
    until: str = ""  # the last one; empty: all


Prepared = tuple[Look, tuple[Loc, ...], frozenset[str]]  # with its keys, and those it needs


class Place(NamedTuple):
    """One key that a row looks at, and its value."""

    loc: Loc
    value: Any
    offset: int | None = None  # of the line, in a file of variables


def rules(*rows: Row) -> tuple[Rule[CheckedFile], ...]:
    """The rules that rows describe."""
    return tuple(_rule(row) for row in rows)


def _rule(row: Row) -> Rule[CheckedFile]:
    first = Look(row.test, row.message, row.fix, row.when, row.at, row.repair)
    looks = (first, *row.also)
    seen_from = tuple((look, _locs(look), _needed(row, look)) for look in looks)
    fixable = any(look.repair is not None for look in looks)
    find = partial(_hits, row, seen_from)
    title, why, evidence = row.title, row.why, row.evidence
    return Rule(row.id, row.severity, row.kinds, title, why, evidence, find, fixable)


def _locs(look: Look) -> tuple[Loc, ...]:
    """The locations of the keys that are tested."""
    return tuple(loc_of(key) for key in look.test.key.split())


def _needed(row: Row, look: Look) -> frozenset[str]:
    """Top-level keys of which a file must have one; empty where the test is about missing ones."""
    keys = look.test.key.split()
    if look.test.operator in OF_ABSENT or "env" in row.kinds or keys[0] in FACTS:
        return frozenset()
    return frozenset(key.split(".")[0] for key in keys)


def _hits(row: Row, looks: tuple[Prepared, ...], file: CheckedFile) -> list[Hit]:
    """What a row finds in a file."""
    found: list[Hit] = []
    for look, locs, needed in looks:
        missing = needed and needed.isdisjoint(file.document.root)
        if not missing and _is_of(row, file):
            found += _hits_of_look(look, _places(row, look, locs, file), file)
    return found


def _hits_of_look(look: Look, places: list[Place], file: CheckedFile) -> Iterator[Hit]:
    """What one look finds among the places where its test is true."""
    for place in places:
        if all(is_true(file, place.loc, condition) for condition in look.when):
            yield _hit(look, file, place)


def _hit(look: Look, file: CheckedFile, place: Place) -> Hit:
    """The finding of a look at a key."""
    words = _words(look, file, place)
    message, fix = look.message.format_map(words), look.fix.format_map(words)
    pointed_to = place.loc if look.at is None else loc_of(look.at)
    where = pointed_to if place.offset is None else ()
    return Hit(where, message, fix, _repaired(look, file, place.loc), place.offset)


def _places(row: Row, look: Look, locs: tuple[Loc, ...], file: CheckedFile) -> list[Place]:
    """The keys of a look for which its test is true."""
    holds, operand = OPERATORS[look.test.operator], operand_of(file, look.test)
    if "env" in row.kinds:
        return [p for p in _variables(locs, file) if holds(p.value, operand)]
    values = [(loc, value_at(file, loc)) for loc in locs]
    return [Place(loc, value) for loc, value in values if holds(value, operand)]


def _variables(locs: tuple[Loc, ...], file: CheckedFile) -> Iterator[Place]:
    """The variables of a file that consists of lines, each once: the last value counts."""
    places: dict[str, Place] = {}
    for variable in variables(file.document):
        if any(fnmatchcase(variable.name, str(loc[0])) for loc in locs):
            place = Place((variable.name,), variable.value.strip(), variable.line.start)
            before = places.get(variable.name)
            if before is None or before.value != place.value:
                places[variable.name] = place
    yield from places.values()


def _is_of(row: Row, file: CheckedFile) -> bool:
    """Whether the release that is checked against is one of the row's."""
    late = row.since and file.release < number(row.since)
    return not late and not (row.until and file.release > number(row.until))


def _words(look: Look, file: CheckedFile, place: Place) -> dict[str, Any]:
    """What messages may name."""
    loc, value, _ = place
    return {
        "key": shown(loc[-1]),
        "block": shown(loc[-2]) if len(loc) > 1 else "",
        "value": shown(value),
        "number": value,
        "count": count(value) if "{count" in look.message else "",
        "operand": look.test.operand,
        "of": shown(operand_of(file, look.test)),
        "stage": file.stage,
        "device": FACTS["@device"](file, loc),
        "model": file.model.name if file.model else "",
    }


def _repaired(look: Look, file: CheckedFile, loc: Loc) -> tuple[Edit, ...]:
    """The edits of the repair; none where there is no safe one."""
    if look.repair is None:
        return ()
    way, text = look.repair
    if way == "remove":
        return file.document.removed(loc)
    edits = file.document.renamed if way == "rename" else file.document.replaced
    return edits(loc, text)
