"""The machine that reads a pickle: stack, memo, budget, and the results of calls.

It calls nothing. What torch and Python call in order to build plain things is built here from the
arguments, each of which is checked; everything else becomes a `Foreign`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from dsforge.checkpoints.pickles.keys import STAGE_NUMBERS, STAGES, cost, plain_key
from dsforge.checkpoints.pickles.numpy_arrays import NUMPY, check_numpy
from dsforge.checkpoints.pickles.values import Foreign, Name, Storage, StoredTensor
from dsforge.checkpoints.weights.bit_types import ITEM_BYTES

MAX_WORK = 12_000_000  # of which each of these takes a share
CONTAINER_WORK, MEMO_WORK, COPY_WORK = 5, 4, 4
MAX_NUMBER_BYTES = 64
MAX_NAME = 512
MAX_DIMENSIONS = 64
MAX_COUNT = 2**62
MAX_KEY_COST = 4_096


class Machine:
    """The stack, the memo and the names of a pickle that is being read."""

    def __init__(self, stream: bytes) -> None:
        self.stream, self.at = stream, 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below each mark
        self.memo: dict[int, Any] = {}
        self.names: set[str] = set()
        self.called: set[str] = set()
        self.foreign: list[Foreign] = []
        self.states: list[Any] = []
        self.storages: dict[str, Storage] = {}
        self.work, self.key_cost = 0, 0

    def finish(self) -> Any:
        """The value at the end of the stream. Raises ValueError where more follows."""
        if self.at != len(self.stream) or self.outer or len(self.stack) != 1:
            raise ValueError("data after its end")
        return self.stack[0]

    def handed(self) -> list[Any]:
        """Arguments and states of everything that is called."""
        parts = [part for each in self.foreign for part in (each.arguments, each.items)]
        return [*parts, *self.states]

    def charge(self, work: int) -> None:
        """Count work. Raises ValueError where it becomes too much."""
        self.work += work
        if self.work > MAX_WORK:
            raise ValueError("more values than a checkpoint contains")

    def take(self, count: int) -> bytes:
        """The next bytes. Raises ValueError where there are fewer."""
        part = self.stream[self.at : self.at + count]
        if len(part) != count:
            raise ValueError("it ends too early")
        self.at += count
        return part

    def line(self) -> bytes:
        """The bytes up to the end of the line, and go behind it."""
        end = self.stream.index(b"\n", self.at)
        part = self.stream[self.at : end]
        self.at = end + 1
        return part

    def push(self, value: Any) -> None:
        """Put a new container or object on the stack."""
        self.charge(CONTAINER_WORK)
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        """What was pushed after the last mark, taken off the stack with it."""
        values, self.stack = self.stack, self.outer.pop()
        return values

    def name(self, module: Any, name: Any) -> Name:
        """A name that would be imported."""
        if not (isinstance(module, str) and isinstance(name, str)):
            raise ValueError("a name that is not text")  # noqa: TRY004 - what callers expect
        path = f"{module}.{name}"
        if len(path) > MAX_NAME:
            raise ValueError("a name that is too long")
        if path not in GETATTR:  # judged by what it is called with
            self.names.add(path)
        return Name(path)

    def call(self, what: Any, arguments: Any) -> Any:
        """What a call gives: a tensor's description, a plain container, or a Foreign."""
        if not isinstance(arguments, tuple):
            raise ValueError("a call without arguments")  # noqa: TRY004
        while isinstance(what, Name) and what.path == "torch._tensor._rebuild_from_type_v2":
            what, kind, arguments, state = arguments
            self.called.add("torch._tensor._rebuild_from_type_v2")
            self.states += [kind, state]
            _check_attributes(state)
        path = what.path if isinstance(what, Name) else f"the result of {_kind(what)}"
        if path in GETATTR:
            return self.attribute(path, arguments)
        self.called.add(path)
        if path in BUILDERS:
            return BUILDERS[path](self, *arguments)
        return self.build(path, arguments)

    def attribute(self, path: str, arguments: tuple[Any, ...]) -> Any:
        """A member of an enum as Python 3.11.2 writes it; any other attribute is a call."""
        if len(arguments) == 2 and isinstance(arguments[0], Name) and arguments[0].path in ENUMS:  # noqa: PLR2004
            of, member = arguments
            if isinstance(member, str) and member in ENUMS[of.path]:
                return self.name(of.path, member)
        self.called.add(path)
        return self.build(path, arguments)

    def build(self, path: str, arguments: tuple[Any, ...]) -> Foreign:
        """An object that the pickle would build. Raises ValueError."""
        if path in NUMPY:
            check_numpy(path, arguments)
        built = Foreign(path, arguments)
        self.foreign.append(built)
        return built

    def change(self, target: Any, how: str) -> None:
        """Note that something other than a new container is changed: a call of its method."""
        self.called.add(f"{target.path}.{how}" if isinstance(target, Name) else _kind(target))

    def key(self, key: Any) -> Any:
        """A key of a dict or a member of a set. Raises ValueError where it could be costly."""
        plain = plain_key(key)
        self.key_cost += cost(plain)
        if self.key_cost > MAX_KEY_COST:
            raise ValueError("too many keys of several parts, or of large numbers")
        return plain


def _kind(value: Any) -> str:
    return value.path if isinstance(value, Foreign | Name) else type(value).__name__


def count(value: Any) -> int:
    """A size, offset or stride. Raises ValueError where it is no whole number from 0 up."""
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError("a size that is not a whole number, or too large")
    return value


def _counts(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple | list) or len(values) > MAX_DIMENSIONS:
        raise ValueError("an invalid shape")
    return tuple(map(count, values))


def storage(identity: Any) -> Storage:
    """The storage that a persistent identity names. Raises ValueError."""
    if not isinstance(identity, tuple) or len(identity) != 5:  # noqa: PLR2004 - as torch writes it
        raise ValueError("an invalid storage")
    kind, what, key, _, elements = identity
    if kind != "storage" or not isinstance(what, Name) or not isinstance(key, str):
        raise ValueError("an invalid storage")
    known = STORAGES.get(what.path.rpartition(".")[2])
    if known is None or not what.path.startswith("torch."):
        raise ValueError(f"a storage of an unknown type, {what.path}")
    if not key.isascii() or not key.isdigit() or len(key) > 20:  # noqa: PLR2004
        raise ValueError("a storage whose key is not a number")
    return Storage(key, known, count(elements))


def one_storage(machine: Machine, identity: Any) -> Storage:
    """A storage, which torch makes where it is named first and never again. Raises ValueError."""
    found = storage(identity)
    if machine.storages.setdefault(found.key, found) != found:
        raise ValueError(f"storage {found.key} as two different ones")
    return found


def _check_hooks(machine: Machine, hooks: Any) -> None:
    """Note functions that a tensor would call; they may be put in after it was built."""
    machine.states.append(hooks)
    if hooks:
        machine.called.add("torch.Tensor._backward_hooks")


def _tensor(machine: Machine, held: Any, *rest: Any) -> StoredTensor:
    if not isinstance(held, Storage) or not 3 <= len(rest) <= 7:  # noqa: PLR2004
        raise ValueError("a tensor without a storage")
    offset, shape, stride, _, hooks = (*rest, None, None)[:5]
    _check_hooks(machine, hooks)
    found = StoredTensor(held, count(offset), _counts(shape), _counts(stride))
    if len(found.shape) != len(found.stride) or found.elements >= MAX_COUNT:
        raise ValueError("a shape that is too large, or not that of its strides")
    return found


def _typed_tensor(machine: Machine, held: Any, *rest: Any) -> StoredTensor:
    """A tensor of a type without a storage class of its own, as 8-bit floating point."""
    if not isinstance(held, Storage) or len(rest) < 6 or not isinstance(rest[5], Name):  # noqa: PLR2004
        raise ValueError("a tensor without a type")
    dtype = rest[5].path.removeprefix("torch.")
    size = ITEM_BYTES.get(dtype)
    if size is None or held.elements % size:
        raise ValueError(f"a tensor of an unknown type, {dtype}")
    return _tensor(machine, Storage(held.key, dtype, held.elements // size), *rest[:5])


def _parameter(machine: Machine, tensor: Any, *rest: Any) -> StoredTensor:
    if not isinstance(tensor, StoredTensor) or not 2 <= len(rest) <= 3:  # noqa: PLR2004
        raise ValueError("a parameter without a tensor")
    _, hooks, *state = rest
    _check_hooks(machine, hooks)
    machine.states += state
    for each in state:
        _check_attributes(each)
    return tensor


def _check_attributes(state: Any) -> None:
    """Raises ValueError where attributes of a tensor would give it other contents or methods."""
    for part in state if isinstance(state, tuple) else (state,):
        if part is None or part == {}:
            continue
        if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
            raise ValueError("invalid attributes of a tensor")
        odd = [key for key in part if key in CONTENTS or key.startswith("__")]
        if odd:
            raise ValueError(f"a tensor whose `{odd[0][:40]}` is set")


def _ordered(machine: Machine, pairs: Any = ()) -> dict[Any, Any]:
    if not isinstance(pairs, list | tuple) or any(not isinstance(p, list | tuple) for p in pairs):
        raise ValueError("an ordered dict of values that are not pairs")
    machine.charge(COPY_WORK * len(pairs))
    return {machine.key(key): value for key, value in pairs}


def check_dict_state(state: Any) -> None:
    """Raises ValueError where attributes of an ordered dict take the place of its methods."""
    if not isinstance(state, dict) or any(not isinstance(key, str) for key in state):
        raise ValueError("invalid attributes of a dict")
    odd = sorted(key for key in state if key.startswith("__") or key in METHODS)
    if odd:
        raise ValueError(f"a dict whose `{odd[0][:40]}` is set")


def _default(machine: Machine, factory: Any = None) -> dict[Any, Any]:
    machine.states.append(factory)
    return {}


def _members(machine: Machine, values: Any = ()) -> set[Any]:
    machine.charge(COPY_WORK * len(values))
    return {machine.key(value) for value in values}


def _frozen(machine: Machine, values: Any = ()) -> frozenset[Any]:
    return frozenset(_members(machine, values))


def _size(machine: Machine, sizes: Any = ()) -> tuple[int, ...]:
    machine.charge(len(sizes))
    return _counts(sizes)


def _encoded(machine: Machine, text: Any, coding: Any) -> bytes:
    if not isinstance(text, str) or coding not in ("latin1", "latin-1", "iso-8859-1"):
        raise ValueError("bytes in an unknown encoding")
    machine.charge(len(text) // 8)
    return text.encode("latin-1")


def _byte_array(machine: Machine, value: Any = b"") -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("an invalid byte array")  # noqa: TRY004
    return value


def _no_bytes(_: Machine) -> bytes:
    """Empty bytes, as Python writes them for protocol 2."""
    return b""


def _unread(kind: str) -> Callable[..., Any]:
    """What stands for tensors of a kind whose contents are not read here, though torch can."""

    def refuse(*_: Any) -> Any:
        raise ValueError(f"{kind} tensor, which is not supported")

    return refuse


STORAGES = {
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
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "QUInt8Storage": "quint8",
    "QInt8Storage": "qint8",
    "QInt32Storage": "qint32",
}
CONTENTS = frozenset(  # attributes of a tensor that are more than a note on it
    (
        *("data", "real", "imag", "names", "grad", "_grad", "grad_fn", "requires_grad"),
        *("_backward_hooks", "_post_accumulate_grad_hooks", "_cdata", "_version"),
    )
)
METHODS = frozenset(dir(OrderedDict))
GETATTR = frozenset(("builtins.getattr", "__builtin__.getattr"))
ENUMS = {STAGES: STAGE_NUMBERS.keys()}
# What torch and Python call in order to build plain things, and what is built here instead.
BUILDERS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_sparse_tensor": _unread("a sparse"),
    "torch._utils._rebuild_qtensor": _unread("a quantised"),
    "torch._utils._rebuild_meta_tensor_no_storage": _unread("an empty meta"),
    "torch._utils._rebuild_nested_tensor": _unread("a nested"),
    "torch.Size": _size,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
    "builtins.set": _members,
    "__builtin__.set": _members,
    "builtins.frozenset": _frozen,
    "__builtin__.frozenset": _frozen,
    "_codecs.encode": _encoded,
    "builtins.bytes": _no_bytes,
    "__builtin__.bytes": _no_bytes,
    "builtins.bytearray": _byte_array,
    "__builtin__.bytearray": _byte_array,
}
Operation = Callable[[Machine], None]
