"""The values in a pickle, without running it.

A pickle is a program for a stack machine that may call anything by name. This machine knows the
opcodes that torch writes and calls nothing: a tensor becomes its description, an ordered dict a
dict, and every other object a `Foreign` with its name, arguments and state. So a file from a
stranger can be looked at, and the names it would import can be judged before torch loads it.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class PickleError(ValueError):
    """A stream that is no pickle, or has opcodes that torch does not write."""


class Storage(NamedTuple):
    """A block of numbers in an archive: its key there, its type by torch's name, its length."""

    key: str
    dtype: str
    elements: int


class StoredTensor(NamedTuple):
    """A tensor as a window onto a storage; `offset` and `stride` count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other, the last dimension fastest."""
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return self.elements == 0
            expected *= size
        return True


@dataclass(frozen=True, slots=True)
class Name:
    """Something that the pickle would import: `module.name`."""

    path: str


@dataclass(slots=True)
class Foreign:
    """An object that the pickle would build: what by, from which arguments and state."""

    path: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)


class Pickled(NamedTuple):
    """The value of a pickle and every name that it would import."""

    value: Any
    names: frozenset[str]


_MARK = object()
_GETATTR = frozenset(("builtins.getattr", "__builtin__.getattr"))
_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
}


def read_pickle(stream: bytes) -> Pickled:
    """The value of a pickle. Raises PickleError; nothing that it names is imported or called."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "STOP":
                return Pickled(machine.stack[-1], frozenset(machine.names))
            machine.run(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PickleError(f"not a pickle that torch writes: {error}") from error
    raise PickleError("the pickle ends too early")


class _Machine:
    """The stack, the memo and the names of a pickle that is being read."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.names: set[str] = set()

    def run(self, name: str, argument: Any) -> None:
        """Do one opcode. Raises ValueError for those that torch does not write."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name in _OPERATIONS:
            _OPERATIONS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"opcode {name}")

    def since_mark(self) -> list[Any]:
        """What was pushed after the last mark, taken off the stack with it."""
        at = max(i for i, value in enumerate(self.stack) if value is _MARK)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def named(self, path: str) -> None:
        """Push a name that would be imported; `getattr` is judged by what it is called with."""
        if path not in _GETATTR:
            self.names.add(path)
        self.stack.append(Name(path))


def _global(machine: _Machine, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")
    machine.named(f"{module}.{name}")


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.named(f"{module}.{name}")


def _reduce(machine: _Machine, _: Any) -> None:
    arguments, what = machine.stack.pop(), machine.stack.pop()
    if isinstance(what, Name) and what.path in _GETATTR:
        _attribute(machine, what, *arguments)
    else:
        machine.stack.append(_built(what, arguments))


def _attribute(machine: _Machine, what: Name, of: Any, name: Any, *_: Any) -> None:
    """A member of something named: as Python 3.11.2 writes those of enums."""
    if isinstance(of, Name) and isinstance(name, str):
        machine.named(f"{of.path}.{name}")
        return
    machine.names.add(what.path)
    machine.stack.append(Foreign(what.path, (of, name)))


def _new_object(machine: _Machine, _: Any) -> None:
    arguments, what = machine.stack.pop(), machine.stack.pop()
    machine.names.add(what.path)
    machine.stack.append(Foreign(what.path, tuple(arguments)))


def _build(machine: _Machine, _: Any) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(target, Foreign):
        target.state = state


def _persistent(machine: _Machine, _: Any) -> None:
    kind, what, key, _, count = machine.stack.pop()
    if kind != "storage":
        raise ValueError(f"persistent {kind!r}")
    known = what.path.rpartition(".")[2]
    machine.stack.append(Storage(str(key), _DTYPES.get(known, known), int(count)))


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    def last(machine: _Machine, _: Any) -> None:
        values = tuple(machine.stack[-count:])
        del machine.stack[-count:]
        machine.stack.append(values)

    return last


def _marked_tuple(machine: _Machine, _: Any) -> None:
    values = tuple(machine.since_mark())
    machine.stack.append(values)


def _fill(machine: _Machine, pairs: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, Foreign):
        target.items += pairs
        return
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        target[key] = value


def _set_items(machine: _Machine, _: Any) -> None:
    pairs = machine.since_mark()
    _fill(machine, pairs)


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _fill(machine, [key, value])


def _append(machine: _Machine, _: Any) -> None:
    value = machine.stack.pop()
    _extend(machine.stack[-1], [value])


def _appends(machine: _Machine, _: Any) -> None:
    values = machine.since_mark()
    _extend(machine.stack[-1], values)


def _extend(target: Any, values: list[Any]) -> None:
    if isinstance(target, Foreign):
        target.items += values
    elif isinstance(target, set):
        target.update(values)
    else:
        target.extend(values)


def _put(machine: _Machine, argument: Any) -> None:
    machine.memo[int(argument)] = machine.stack[-1]


def _memoize(machine: _Machine, _: Any) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _get(machine: _Machine, argument: Any) -> None:
    machine.stack.append(machine.memo[int(argument)])


def _pop_mark(machine: _Machine, _: Any) -> None:
    machine.since_mark()


def _push(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make())


def _tensor(storage: Storage, offset: int, *rest: Any) -> StoredTensor:
    shape, stride = rest[:2]
    return StoredTensor(storage, int(offset), tuple(shape), tuple(stride))


def _built(what: Any, arguments: tuple[Any, ...]) -> Any:
    """What a call gives: a tensor's description, a plain container, or a Foreign."""
    path = what.path if isinstance(what, Name) else repr(what)[:80]
    return _CALLS[path](*arguments) if path in _CALLS else Foreign(path, tuple(arguments))


# What torch and Python call in order to build plain things, and what is built here instead.
_CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
    "torch._tensor._rebuild_from_type_v2": lambda what, _, arguments, *__: _built(what, arguments),
    "torch.Size": lambda sizes=(): tuple(sizes),
    "collections.OrderedDict": lambda pairs=(): dict(pairs),
    "collections.defaultdict": lambda *_: {},
    "builtins.set": lambda values=(): set(values),
    "__builtin__.set": lambda values=(): set(values),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "FLOAT", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "STRING"),
    *("SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "EMPTY_DICT": _push(dict),
    "EMPTY_LIST": _push(list),
    "EMPTY_SET": _push(set),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "NEWOBJ": _new_object,
    "BUILD": _build,
    "BINPERSID": _persistent,
    "TUPLE": _marked_tuple,
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "APPEND": _append,
    "APPENDS": _appends,
    "ADDITEMS": _appends,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "PUT": _put,
    "MEMOIZE": _memoize,
    "BINGET": _get,
    "LONG_BINGET": _get,
    "GET": _get,
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": _pop_mark,
}
