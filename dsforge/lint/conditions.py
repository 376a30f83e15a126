"""Conditions: what a row of lint asks of the values of a file.

A key is written dotted (`fp16.loss_scale`); several, separated by blanks, are tested one by one.
A key with `@` is a fact that the file implies: `FACTS` names them. An operand that begins with `--`
is the value of that flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from dsforge.importing.marks import Loc
from dsforge.lint.checked_file import ZERO, CheckedFile
from dsforge.zero_stages import FULLY_SHARDED

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
    "not above",  # or no number
    "between",
    "outside",
    "not 0",
    "used",  # true, or a number above 1
    "boolean",
    "block",  # a mapping with something in it
    "no block",
    "no size",  # there, and no whole number above 0
    "at most",
    "does not divide",
    "names",  # a text that has one of these words in it
    "does not name",
]


class If(NamedTuple):
    """A condition: what the value of a key is."""

    key: str
    operator: Operator
    operand: Any = None


MOST_DIGITS = 12  # of a size; longer ones are slips, and slow to read


class _Absent:
    """The value of a key that is not there, where `null` is one that is, or of one unknown."""


ABSENT = _Absent()
FROM_CHECKPOINT = "-1"  # of a size in scripts that take it from a checkpoint
UNCERTAIN = _Absent()  # a flag that only some branches of a script give
UNKNOWN = _Absent()  # the value of a flag that a script computes


def loc_of(key: str) -> Loc:
    """The location of a dotted key; the whole file for an empty one."""
    return tuple(key.split(".")) if key else ()


def value_at(file: CheckedFile, loc: Loc) -> Any:
    """The value of a key or fact; sizes of Megatron are texts of digits."""
    name = str(loc[-1])
    if name.startswith("@"):
        return FACTS[name](file, loc)
    block = file.document.root
    for key in loc:
        if type(block) is not dict or key not in block:
            return ABSENT
        block = block[key]
    if name in file.document.uncertain:
        return UNCERTAIN
    if file.document.script and block in (None, FROM_CHECKPOINT):
        return UNKNOWN
    is_size = file.document.kind == "megatron" and isinstance(block, str) and block.isdecimal()
    return int(block) if is_size and len(block) <= MOST_DIGITS else block


def is_true(file: CheckedFile, loc: Loc, condition: If) -> bool:
    """Whether a condition holds beside the key that is looked at; for one of several keys."""
    operand = operand_of(file, condition)
    for key in condition.key.split():
        value = FACTS[key](file, loc) if key in FACTS else value_at(file, loc_of(key))
        if OPERATORS[condition.operator](value, operand):
            return True
    return False


def operand_of(file: CheckedFile, condition: If) -> Any:
    """What a value is compared with: itself, or the value of a flag that it names."""
    operand = condition.operand
    is_flag = isinstance(operand, str) and operand.startswith("--")
    return value_at(file, (operand,)) if is_flag else operand


OF_ABSENT = (
    "absent",
    "missing",
    "not given",
    "not on",
    "not off",
    "not among",
    "not above",
    "no block",
)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_there(value: Any) -> bool:
    return value is not ABSENT and value is not None


def _same(value: Any, other: Any) -> bool:
    """Whether two values are the same, in capital or small letters; 1 is not true."""
    if isinstance(value, str):
        return isinstance(other, str) and value.lower() == other
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


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


OF_NO_VALUE = (ABSENT, UNKNOWN, UNCERTAIN)
OPERATORS: Mapping[Operator, Callable[[Any, Any], bool]] = {
    "present": lambda value, _: value not in (ABSENT, UNCERTAIN),
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
    "at most": lambda value, limit: _is_number(value) and value <= limit,
    "above": lambda value, limit: _is_number(value) and _is_number(limit) and value > limit,
    "not above": lambda value, limit: (
        value not in (UNKNOWN, UNCERTAIN) and not (_is_number(value) and value > limit)
    ),
    "between": lambda value, ends: _is_number(value) and _is_within(value, ends),
    "outside": lambda value, ends: _is_number(value) and not _is_within(value, ends),
    "not 0": lambda value, _: _is_number(value) and value != 0,
    "used": lambda value, _: value is True or (_is_number(value) and value > 1),
    "boolean": lambda value, _: isinstance(value, bool),
    "block": lambda value, _: isinstance(value, dict) and bool(value),
    "no block": lambda value, _: not isinstance(value, dict) or not value,
    "no size": lambda value, _: value not in OF_NO_VALUE and not _is_size(value),
    "does not divide": lambda value, whole: not _divides(value, whole),
    "names": lambda value, words: isinstance(value, str) and any(word in value for word in words),
    "does not name": lambda value, words: not OPERATORS["names"](value, words),
}


def _offload_block(loc: Loc) -> str:
    """The offload block that a key is or stands in; empty for other keys."""
    return next((str(key) for key in loc if key in ("offload_optimizer", "offload_param")), "")


def _offload_is_read(file: CheckedFile, loc: Loc) -> bool:
    """Whether the stage reads the offload block of the key; one that is not known may."""
    least = FULLY_SHARDED if _offload_block(loc) == "offload_param" else 1
    return file.stage is None or file.stage >= least


INFERENCE = ("infer", "generat")  # in the name of a file that trains nothing


def _is_filled(file: CheckedFile, _: Loc) -> bool:
    """Whether a Hugging Face trainer fills in values, which then saves the model, too."""
    trained = not any(word in file.document.name.lower() for word in INFERENCE)
    blocks = ("optimizer", "scheduler", "fp16", "bf16", "")
    return trained and any(
        entry.value == "auto" and entry.path.partition(".")[0] in blocks for entry in file.entries
    )


FACTS: Mapping[str, Callable[[CheckedFile, Loc], Any]] = {
    # whether a trainer fills in values, so that it decides what is written elsewhere, too:
    "@auto": lambda file, _: any(entry.value == "auto" for entry in file.entries),
    "@trainer": _is_filled,
    "@name": lambda file, _: file.document.name.lower(),
    "@accelerator": lambda file, _: "cpu" if file.on_cpu else "gpu",
    "@stage": lambda file, _: file.stage,
    "@offload_optimizer": lambda file, _: file.device("offload_optimizer"),
    "@offload_param": lambda file, _: file.device("offload_param"),
    # of the offload block of the key that is looked at:
    "@device": lambda file, loc: file.device(_offload_block(loc)) if _offload_block(loc) else "",
    "@offload_is_read": _offload_is_read,
    "@nvme_path": lambda file, loc: file.at(ZERO, _offload_block(loc), "nvme_path"),
    "@bf16": lambda file, _: file.is_on(
        "bf16" if "bf16" in file.block() else "bfloat16", "enabled"
    ),
    "@tensor_parallel_size": lambda file, _: file.tensor_parallel_size,
    "@model_type": lambda file, _: file.model.model_type if file.model else ABSENT,
    "@tied_embeddings": lambda file, _: file.model.tied_embeddings if file.model else ABSENT,
    "@network": lambda file, _: file.cluster.inter_node.kind if file.cluster else ABSENT,
}
