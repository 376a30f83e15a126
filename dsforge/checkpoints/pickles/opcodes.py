"""What each opcode of a pickle does to the machine that reads it, protocols 0 to 5.

All that can go on in Python's own unpickler is here, so that both see the same program. Persistent
identities as text, extension codes and buffers outside the stream are refused: torch writes none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsforge.checkpoints.pickles.literals import LITERALS, constant, digits, length
from dsforge.checkpoints.pickles.machine import (
    CONTAINER_WORK,
    MEMO_WORK,
    Machine,
    Operation,
    check_dict_state,
    one_storage,
)
from dsforge.checkpoints.pickles.numpy_arrays import check_state
from dsforge.checkpoints.pickles.values import Foreign, Name


class Stopped(Exception):  # noqa: N818 - no failure, the end of a pickle
    """The opcode at the end of a pickle was reached."""


def _stop(_: Machine) -> None:
    raise Stopped


def _refused(code: int) -> Operation:
    def refuse(_: Machine) -> None:
        raise ValueError(f"opcode {code:#04x}")

    return refuse


def _global(machine: Machine) -> None:
    module, name = machine.line().decode("utf-8"), machine.line().decode("utf-8")
    machine.stack.append(machine.name(module, name))


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.name(module, name))


def _reduce(machine: Machine) -> None:
    arguments, what = machine.stack.pop(), machine.stack.pop()
    machine.push(machine.call(what, arguments))


def _construct(machine: Machine, what: Any, arguments: tuple[Any, ...]) -> None:
    """An instance of a class; another thing in its place is called."""
    path = what.path if isinstance(what, Name) else f"the result of {type(what).__name__}"
    machine.called.add(path)
    machine.push(machine.build(path, arguments))


def _new_object(machine: Machine) -> None:
    arguments, what = machine.stack.pop(), machine.stack.pop()
    if what == Name("collections.OrderedDict") and not arguments:
        machine.push(machine.call(what, ()))
        return
    _construct(machine, what, (arguments,))


def _new_object_by_name(machine: Machine) -> None:
    named, arguments, what = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    _construct(machine, what, (arguments, named))


def _object(machine: Machine) -> None:
    what, *arguments = machine.since_mark()
    _construct(machine, what, tuple(arguments))


def _instance(machine: Machine) -> None:
    module, name = machine.line().decode("ascii"), machine.line().decode("ascii")
    what = machine.name(module, name)
    _construct(machine, what, tuple(machine.since_mark()))


def _set_state(machine: Machine) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    machine.states.append(state)
    if isinstance(target, Foreign):
        check_state(target, state)
        target.state = state
    elif isinstance(target, dict):
        check_dict_state(state)
    else:
        machine.change(target, "__setstate__")


def _persistent(machine: Machine) -> None:
    machine.push(one_storage(machine, machine.stack.pop()))


def _container(make: Callable[[], Any]) -> Operation:
    return lambda machine: machine.push(make())


def _mark(machine: Machine) -> None:
    machine.charge(CONTAINER_WORK)
    machine.outer.append(machine.stack)
    machine.stack = []


def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.since_mark()


def _pop_mark(machine: Machine) -> None:
    machine.since_mark()


def _duplicate(machine: Machine) -> None:
    machine.stack.append(machine.stack[-1])


def _tuple(length: int) -> Operation:
    def last(machine: Machine) -> None:
        if len(machine.stack) < length:
            raise ValueError("a tuple of more values than exist")
        values = tuple(machine.stack[-length:])
        del machine.stack[-length:]
        machine.push(values)

    return last


def _marked(make: Callable[[list[Any]], Any]) -> Operation:
    def gather(machine: Machine) -> None:
        values = machine.since_mark()
        machine.push(make(values))

    return gather


def _marked_dict(machine: Machine) -> None:
    pairs = machine.since_mark()
    machine.push({})
    _fill(machine, pairs)


def _marked_frozen_set(machine: Machine) -> None:
    values = machine.since_mark()
    machine.push(frozenset(map(machine.key, values)))


def _fill(machine: Machine, pairs: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, dict):
        for raw, value in zip(pairs[::2], pairs[1::2], strict=True):
            key = machine.key(raw)
            if key in target:  # what took the dict before has seen the earlier value
                machine.states.append(target[key])
            target[key] = value
        return
    _add_items(machine, target, pairs, "__setitem__")


def _set_items(machine: Machine) -> None:
    pairs = machine.since_mark()
    _fill(machine, pairs)


def _set_item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _fill(machine, [key, value])


def _append(machine: Machine) -> None:
    value = machine.stack.pop()
    _extend(machine, [value])


def _appends(machine: Machine) -> None:
    values = machine.since_mark()
    _extend(machine, values)


def _extend(machine: Machine, values: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, list):
        target.extend(values)
    else:
        _add_items(machine, target, values, "extend")


def _add_members(machine: Machine) -> None:
    values = machine.since_mark()
    target = machine.stack[-1]
    if isinstance(target, set):
        target.update(map(machine.key, values))
    else:
        _add_items(machine, target, values, "add")


def _add_items(machine: Machine, target: Any, values: list[Any], how: str) -> None:
    """Items of an object that is no plain container."""
    if isinstance(target, Foreign):
        target.items += values
    else:
        machine.change(target, how)


def _put(machine: Machine, index: int) -> None:
    machine.charge(MEMO_WORK)
    machine.memo[index] = machine.stack[-1]


def _put_line(machine: Machine) -> None:
    index = int(digits(machine))
    if index < 0:
        raise ValueError("a negative place in the memo")
    _put(machine, index)


def _put_short(machine: Machine) -> None:
    machine.at += 1
    _put(machine, machine.stream[machine.at - 1])


def _put_long(machine: Machine) -> None:
    _put(machine, length(machine, 4))


def _memoize(machine: Machine) -> None:
    _put(machine, len(machine.memo))


def _fetch_line(machine: Machine) -> None:
    machine.stack.append(machine.memo[int(digits(machine))])


def _fetch_short(machine: Machine) -> None:
    machine.at += 1
    machine.stack.append(machine.memo[machine.stream[machine.at - 1]])


def _fetch_long(machine: Machine) -> None:
    machine.stack.append(machine.memo[length(machine, 4)])


def _read_only(machine: Machine) -> None:
    if not isinstance(machine.stack[-1], bytes):
        raise ValueError("an invalid buffer")  # noqa: TRY004 - what callers expect


def _protocol(machine: Machine) -> None:
    if machine.take(1)[0] > 5:  # noqa: PLR2004 - the newest
        raise ValueError("an unknown protocol")


def _skip(size: int) -> Operation:
    def skip(machine: Machine) -> None:
        machine.take(size)

    return skip


_NAMED: dict[bytes, Operation] = {
    b".": _stop,
    b"\x80": _protocol,
    b"\x95": _skip(8),  # a frame
    b"(": _mark,
    b"0": _pop,
    b"1": _pop_mark,
    b"2": _duplicate,
    **LITERALS,
    b"\x98": _read_only,
    b"}": _container(dict),
    b"]": _container(list),
    b"\x8f": _container(set),
    b")": constant(()),
    b"t": _marked(tuple),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"l": _marked(list),
    b"d": _marked_dict,
    b"\x91": _marked_frozen_set,
    b"a": _append,
    b"e": _appends,
    b"s": _set_item,
    b"u": _set_items,
    b"\x90": _add_members,
    b"c": _global,
    b"\x93": _stack_global,
    b"R": _reduce,
    b"\x81": _new_object,
    b"\x92": _new_object_by_name,
    b"o": _object,
    b"i": _instance,
    b"b": _set_state,
    b"Q": _persistent,
    b"p": _put_line,
    b"q": _put_short,
    b"r": _put_long,
    b"\x94": _memoize,
    b"g": _fetch_line,
    b"h": _fetch_short,
    b"j": _fetch_long,
}
OPCODES: tuple[Operation, ...] = tuple(
    _NAMED.get(bytes([code])) or _refused(code) for code in range(256)
)
