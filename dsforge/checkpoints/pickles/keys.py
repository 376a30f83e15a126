"""Keys of dictionaries and members of sets in a pickle, compared as Python compares them.

A number or text of numpy, a complex number and a member of an enum equal the plain value that they
stand for, so one of them takes the place of that key when a pickle is loaded. Here they become that
plain value: this reader and torch then see the same entries. What could equal a plain value without
saying which is refused.
"""

from __future__ import annotations

import re
from typing import Any

from dsforge.checkpoints.pickles.numpy_arrays import SCALARS, scalar_of
from dsforge.checkpoints.pickles.values import Foreign, Name, Storage, StoredTensor

MAX_KEY_PARTS = 64
HASH_MODULUS = 2**61 - 1  # from here on whole numbers can be chosen to collide in a dict
PLAIN = (str, bytes, bool, int, float, complex)
LARGE_COST = 4  # of a tuple's: a thousand of them may collide
COMPLEX = frozenset(("builtins.complex", "__builtin__.complex"))
STAGES = "deepspeed.runtime.zero.config.ZeroStageEnum"
STAGE_NUMBERS = {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3}
DTYPES = re.compile(r"torch\.(b?float\d*\w*|double|half|u?int\d*|short|long|bool|complex\d+)")
ALIASES = {  # second names of the same types
    "torch.float": "torch.float32",
    "torch.double": "torch.float64",
    "torch.half": "torch.float16",
    "torch.short": "torch.int16",
    "torch.int": "torch.int32",
    "torch.long": "torch.int64",
    "__builtin__.long": "builtins.int",
    "__builtin__.unicode": "builtins.str",
}
CLASS = re.compile(r"(.*\.)?[A-Z]\w*[a-z]\w*|(builtins|__builtin__)\.[a-z]+")


def plain_key(key: Any) -> Any:
    """A key as the plain value that it equals. Raises ValueError where it equals none for sure."""
    if type(key) is str:  # nearly all of them
        return key
    if isinstance(key, Name):
        return _named(key)
    if isinstance(key, Foreign):
        return _object(key)
    if isinstance(key, Storage | StoredTensor):
        raise ValueError("a tensor as a key")  # noqa: TRY004 - what callers expect
    if isinstance(key, tuple):
        _check_compound(key)
        return tuple(map(plain_key, key))
    return key


def cost(key: Any) -> int:
    """Budget that a key costs: high for keys that can be made to collide or are slow to compare."""
    if isinstance(key, tuple):
        return 1
    return LARGE_COST if isinstance(key, int) and abs(key) >= HASH_MODULUS else 0


def _check_compound(key: tuple[Any, ...]) -> None:
    """Raises ValueError where a key of several parts has very many, or parts that vary."""
    waiting, parts = [key], 0
    while waiting:
        inner = waiting.pop()
        parts += len(inner)
        if parts > MAX_KEY_PARTS:
            raise ValueError("a key of too many parts")
        waiting += [part for part in inner if isinstance(part, tuple)]


def _object(key: Foreign) -> Any:
    """The plain value of a number, a text or a stage; another object equals no plain value."""
    if key.path in SCALARS:
        value = scalar_of(key.arguments)
        if not isinstance(value, PLAIN):
            raise ValueError("a key that is a date, or a number wider than Python's")
        return plain_key(value)
    if key.path in COMPLEX and all(type(part) in (int, float) for part in key.arguments):
        return complex(*key.arguments)
    if key.path == STAGES and len(key.arguments) == 1 and isinstance(key.arguments[0], int):
        return int(key.arguments[0])
    if key.path in COMPLEX or key.path == STAGES:
        raise ValueError("a key that is not a number")
    return key


def _named(key: Name) -> Any:
    """A type, or the number of a stage; anything else that has a name could be any text."""
    of, _, member = key.path.rpartition(".")
    if of == STAGES and member in STAGE_NUMBERS:
        return STAGE_NUMBERS[member]
    if DTYPES.fullmatch(key.path) or CLASS.fullmatch(key.path):
        plain = key.path.replace("__builtin__.", "builtins.")
        return Name(ALIASES.get(key.path, plain))
    raise ValueError(f"{key.path[:80]} as a key, which could be any text")
