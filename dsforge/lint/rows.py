"""Rules as data: one row for each rule that tests a value under a few conditions.

Most rules have one of few shapes: a value beyond a range, a word that does not exist, a key that is
ignored below a ZeRO stage, two keys that cannot be combined, a variable that does harm. Such a rule
is a `Row`; `rules` makes rules of rows. What needs arithmetic stays a function.

A key is written dotted (`fp16.loss_scale`); several, separated by blanks, are looked at one by one.
In a `.deepspeed_env` a key is the name of a variable, and `*` stands for any part of it. A key with
`@` is a fact that the file implies: `FACTS` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, NamedTuple

from dsforge.findings import Edit, Hit, Rule, Severity
from dsforge.lint.checked_file import ZERO, CheckedFile, shown
from dsforge.lint.reading.document import Kind
from dsforge.lint.reading.marks import Loc
from dsforge.lint.reading.variables import variables
from dsforge.lint.schemas.releases import number
from dsforge.units import count

Operator = Literal[
    "present",  # null counts
    "absent",
    "missing",  # or null
    "given",  # and neither null, false, 0 nor empty
    "not given",
    "on",  # literally true
    "not on",
    "off",
    "not off",
    "is",
    "is not",
    "in",
    "not in",  # where it is there
    "not among",  # or not there
    "below",
    "above",
    "between",
    "outside",
    "not 0",
    "used",  # true, or a number above 1
    "boolean",
    "block",  # a mapping with something in it
    "no block",
    "no size",  # there, and no whole number above 0
    "does not divide",
]


class If(NamedTuple):
    """A condition: what the value of a key is."""

    key: str
    operator: Operator
    operand: Any = None


class Repair(NamedTuple):
    """What `--fix` writes: another value, or another name."""

    way: Literal["replace", "rename"]
    text: Any


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
    kinds: tuple[Kind, ...] = ("ds_config",)
    since: str = ""  # the first release of DeepSpeed for which it holds; empty: all
    until: str = ""  # the last one; empty: all


MOST_DIGITS = 12  # of a size; longer ones are slips, and slow to read


class _Absent:
    """The value of a key that is not there; `null` is one that is."""


ABSENT = _Absent()


class Place(NamedTuple):
    """One key that a row looks at, and its value."""

    loc: Loc
    value: Any
    offset: int | None = None  # of the line, in a file of variables


def rules(*rows: Row) -> tuple[Rule[CheckedFile], ...]:
    """The rules that rows describe."""
    return tuple(
        Rule(
            row.id,
            row.severity,
            row.kinds,
            row.title,
            row.why,
            row.evidence,
            partial(_hits, row, tuple(map(_loc, row.test.key.split())), _needed(row)),
            row.repair is not None,
        )
        for row in rows
    )


def _needed(row: Row) -> frozenset[str]:
    """Top-level keys of which a file must have one; empty where a row is about missing ones."""
    keys = row.test.key.split()
    if row.test.operator in OF_ABSENT or "env" in row.kinds or keys[0] in FACTS:
        return frozenset()
    return frozenset(key.split(".")[0] for key in keys)


def _hits(
    row: Row, locs: tuple[Loc, ...], needed: frozenset[str], file: CheckedFile
) -> Iterable[Hit]:
    """What a row finds in a file."""
    if (needed and needed.isdisjoint(file.document.root)) or not _is_of(row, file):
        return ()
    holds = OPERATORS[row.test.operator]
    operand = _operand(file, row.test)
    places = [place for place in _places(row, locs, file) if holds(place.value, operand)]
    return [
        _hit(row, file, place)
        for place in places
        if all(_is_true(file, place.loc, condition) for condition in row.when)
    ]


def _hit(row: Row, file: CheckedFile, place: Place) -> Hit:
    """The finding of a row at a key."""
    words = _words(row, file, place)
    message, fix = row.message.format_map(words), row.fix.format_map(words)
    pointed_to = place.loc if row.at is None else _loc(row.at)
    where = pointed_to if place.offset is None else ()
    return Hit(where, message, fix, _repaired(row, file, place.loc), place.offset)


def _places(row: Row, locs: tuple[Loc, ...], file: CheckedFile) -> list[Place]:
    """Each key that a row looks at, its value, and its offset where the file consists of lines."""
    if "env" not in row.kinds:
        return [Place(loc, _value(file, loc)) for loc in locs]
    return [
        Place((variable.name,), variable.value.strip(), variable.line.start)
        for variable in variables(file.document)
        if any(fnmatchcase(variable.name, str(loc[0])) for loc in locs)
    ]


def _is_of(row: Row, file: CheckedFile) -> bool:
    """Whether the release that is checked against is one of the row's."""
    late = row.since and file.release < number(row.since)
    return not late and not (row.until and file.release > number(row.until))


def _loc(key: str) -> Loc:
    """The location of a dotted key; the whole file for an empty one."""
    return tuple(key.split(".")) if key else ()


def _value(file: CheckedFile, loc: Loc) -> Any:
    """The value of a key or fact; sizes of Megatron are texts of digits."""
    name = str(loc[-1])
    if name.startswith("@"):
        return FACTS[name](file, loc)
    block = file.document.root
    for key in loc:
        if type(block) is not dict or key not in block:
            return ABSENT
        block = block[key]
    is_size = file.document.kind == "megatron" and isinstance(block, str) and block.isdigit()
    return int(block) if is_size and len(block) <= MOST_DIGITS else block


def _is_true(file: CheckedFile, loc: Loc, condition: If) -> bool:
    """Whether a condition holds beside the key that is looked at; for one of several keys."""
    operand = _operand(file, condition)
    for key in condition.key.split():
        value = FACTS[key](file, loc) if key in FACTS else _value(file, _loc(key))
        if OPERATORS[condition.operator](value, operand):
            return True
    return False


def _operand(file: CheckedFile, condition: If) -> Any:
    """What a value is compared with: itself, or the value of a flag that it names."""
    operand = condition.operand
    is_flag = isinstance(operand, str) and operand.startswith("--")
    return _value(file, (operand,)) if is_flag else operand


def _words(row: Row, file: CheckedFile, place: Place) -> dict[str, Any]:
    """What messages may name."""
    loc, value, _ = place
    return {
        "key": shown(loc[-1]),
        "block": shown(loc[-2]) if len(loc) > 1 else "",
        "value": shown(value),
        "number": value,
        "count": count(value) if "{count" in row.message else "",
        "operand": row.test.operand,
        "of": shown(_operand(file, row.test)),
        "stage": file.stage,
        "device": FACTS["@device"](file, loc),
        "model": file.model.name if file.model else "",
    }


def _repaired(row: Row, file: CheckedFile, loc: Loc) -> tuple[Edit, ...]:
    """The edits of the repair; none where there is no safe one."""
    if row.repair is None:
        return ()
    way, text = row.repair
    return (
        file.document.renamed(loc, text) if way == "rename" else file.document.replaced(loc, text)
    )


OF_ABSENT = ("absent", "missing", "not given", "not on", "not off", "not among", "no block")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_there(value: Any) -> bool:
    return value is not ABSENT and value is not None


def _same(value: Any, other: Any) -> bool:
    """Whether two values are the same, in capital or small letters; 1 is not true."""
    if isinstance(value, str):
        return isinstance(other, str) and value.lower() == other
    return type(value) is type(other) and bool(value == other)


def _is_one_of(value: Any, choices: Any) -> bool:
    return any(_same(value, choice) for choice in choices)


def _is_within(value: Any, ends: Any) -> bool:
    return bool(ends[0] <= value <= ends[1])


def _divides(value: Any, whole: Any) -> bool:
    """Whether a size divides another; what is no size divides everything."""
    sizes = type(value) is int and type(whole) is int and value > 1 and whole > 0
    return not sizes or whole % value == 0


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


OPERATORS: Mapping[Operator, Callable[[Any, Any], bool]] = {
    "present": lambda value, _: value is not ABSENT,
    "absent": lambda value, _: value is ABSENT,
    "missing": lambda value, _: not _is_there(value),
    "given": lambda value, _: value is not ABSENT and bool(value),
    "not given": lambda value, _: value is ABSENT or not value,
    "on": lambda value, _: value is True,
    "not on": lambda value, _: value is not True,
    "off": lambda value, _: value is False,
    "not off": lambda value, _: value is not False,
    "is": _same,
    "is not": lambda value, other: _is_there(value) and not _same(value, other),
    "in": _is_one_of,
    "not in": lambda value, choices: _is_there(value) and not _is_one_of(value, choices),
    "not among": lambda value, choices: not _is_one_of(value, choices),
    "below": lambda value, limit: _is_number(value) and value < limit,
    "above": lambda value, limit: _is_number(value) and _is_number(limit) and value > limit,
    "between": lambda value, ends: _is_number(value) and _is_within(value, ends),
    "outside": lambda value, ends: _is_number(value) and not _is_within(value, ends),
    "not 0": lambda value, _: _is_number(value) and value != 0,
    "used": lambda value, _: value is True or (_is_number(value) and value > 1),
    "boolean": lambda value, _: isinstance(value, bool),
    "block": lambda value, _: isinstance(value, dict) and bool(value),
    "no block": lambda value, _: not isinstance(value, dict) or not value,
    "no size": lambda value, _: value is not ABSENT and not _is_size(value),
    "does not divide": lambda value, whole: not _divides(value, whole),
}


def _offload_block(loc: Loc) -> str:
    """The offload block that a key is or stands in; empty for other keys."""
    return next((str(key) for key in loc if key in ("offload_optimizer", "offload_param")), "")


FACTS: Mapping[str, Callable[[CheckedFile, Loc], Any]] = {
    "@stage": lambda file, _: file.stage,
    "@offload_optimizer": lambda file, _: file.device("offload_optimizer"),
    "@offload_param": lambda file, _: file.device("offload_param"),
    # of the offload block of the key that is looked at:
    "@device": lambda file, loc: file.device(_offload_block(loc)) if _offload_block(loc) else "",
    "@nvme_path": lambda file, loc: file.at(ZERO, _offload_block(loc), "nvme_path"),
    "@bf16": lambda file, _: file.is_on(
        "bf16" if "bf16" in file.block() else "bfloat16", "enabled"
    ),
    "@tensor_parallel_size": lambda file, _: file.tensor_parallel_size,
    "@model_type": lambda file, _: file.model.model_type if file.model else ABSENT,
    "@tied_embeddings": lambda file, _: file.model.tied_embeddings if file.model else ABSENT,
    "@network": lambda file, _: file.cluster.inter_node.kind if file.cluster else ABSENT,
}
