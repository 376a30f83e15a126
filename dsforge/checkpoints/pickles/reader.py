"""The values in a pickle, without running it.

A pickle is a program for a stack machine that may call anything by name. This machine does what
each opcode says to the stack and calls nothing: a tensor becomes its description, an ordered dict a
dict, and every other object a `Foreign` with its name, arguments and state. So a file from a
stranger can be looked at, and what it would call can be judged before torch loads it. Opcodes,
copies and memory have a budget: a small file cannot ask for much work.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from dsforge.checkpoints.pickles.expanded_size import check_extent, names_in
from dsforge.checkpoints.pickles.machine import Machine
from dsforge.checkpoints.pickles.opcodes import OPCODES, Stopped

MAX_OPCODES = 10_000_000


class PickleError(ValueError):
    """A stream that is no pickle, has opcodes that torch does not write, or asks for too much.

    `names` are those that it would have imported before.
    """

    def __init__(self, message: str, names: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.names = names


class Pickled(NamedTuple):
    """The value of a pickle, the names that it would import, and what of these it would call.

    `handed` are the names among the arguments and states of what is called.
    """

    value: Any
    names: frozenset[str]
    called: frozenset[str]
    handed: frozenset[str]


def read_pickle(stream: bytes) -> Pickled:
    """The value of a pickle. Raises PickleError; nothing that it names is imported or called."""
    machine = Machine(stream)
    try:
        with _without_collector():
            value = _run(machine)
            check_extent(value, machine.foreign)
            handed = names_in(machine.handed())
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
        why = str(error) if type(error) is ValueError else "its opcodes do not fit together"
        message = f"not a pickle that torch writes: {why}"
        raise PickleError(message, frozenset(machine.names)) from error
    except (RecursionError, MemoryError, OverflowError) as error:
        message = "a pickle with operations that a checkpoint does not need"
        raise PickleError(message, frozenset(machine.names)) from error
    return Pickled(value, frozenset(machine.names), frozenset(machine.called), handed)


def _run(machine: Machine) -> Any:
    """The value at the end of all opcodes. Raises ValueError."""
    stream = machine.stream
    try:
        for _ in range(MAX_OPCODES):
            code = stream[machine.at]
            machine.at += 1
            OPCODES[code](machine)
    except Stopped:
        return machine.finish()
    except IndexError:
        if machine.at >= len(stream):
            raise ValueError("it ends too early") from None
        raise
    raise ValueError(f"more than {MAX_OPCODES:,} opcodes")


@contextmanager
def _without_collector() -> Iterator[None]:
    """No search for cycles while millions of objects are made: each would walk all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
