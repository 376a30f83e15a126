"""Numbers that remember how they were computed, so that a prediction explains itself.

Every formula of dsforge is written once, as the code that planning runs on plain numbers. To
explain a plan, the same code runs on `Traced` inputs: each operation yields a `Traced` number that
holds its value, its operation and its operands. There is no second text of a formula that could
differ from the first.

A formula of a hundred operations helps nobody, so the code names its quantities: `named` and
`counted` return a plain number as it is (0.03 us), and name a traced one. What runs a million times
asks once whether its numbers are `TRACED`, and then uses `label`. `maximum`, `minimum`,
`log2`, `ceil_div` and `next_power_of_two` stand for builtins that would drop a trace; `math.ceil`,
`math.floor` and `round` keep it. `float` and `int` of a traced number raise TypeError, as they
would lose it silently.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TypeVar

Number = TypeVar("Number", int, float)
FIGURE, GIVEN = "figure", "given"


class Constant(float):
    """A number of the prediction itself: fitted, counted or read in a source, not an input."""

    name: str
    unit: str
    source: str

    def __new__(cls, value: float, name: str, unit: str, source: str) -> Self:
        """The constant as it appears in formulas, its unit, and where its value comes from."""
        found = super().__new__(cls, value)
        found.name, found.unit, found.source = name, unit, source
        return found


class WholeConstant(int):
    """The same of a whole number."""

    name: str
    unit: str
    source: str

    def __new__(cls, value: int, name: str, unit: str, source: str) -> Self:
        """The constant as it appears in formulas, its unit, and where its value comes from."""
        found = super().__new__(cls, value)
        found.name, found.unit, found.source = name, unit, source
        return found


AnyConstant = Constant | WholeConstant


class Traced:
    """A number with the operation and operands that gave it; a leaf has none.

    Equal to its value, but hashed by identity: caches of plain inputs never answer traced ones.
    """

    __slots__ = ("name", "operands", "operation", "source", "unit", "value")

    def __init__(self, value: float, operation: str = "", operands: tuple[Any, ...] = ()) -> None:
        """An unnamed result; `given` and `named` make the others."""
        self.value, self.operation, self.operands = value, operation, operands
        self.name = self.unit = self.source = ""

    def called(self, name: str, unit: str, source: str) -> Traced:
        """The number under a name; one that has a name stays, and the new one refers to it."""
        found = Traced(self.value, "=", (self,)) if self.name else self
        name = re.sub(r"[^a-z0-9]+", "_", name)
        found.name, found.unit, found.source = name, unit, source
        return found

    def _of(self, operation: str, other: Any, *, reflected: bool = False) -> Any:
        if isinstance(other, Traced):
            value = other.value
        elif isinstance(other, int | float):
            value = other
        else:
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        values = (value, self.value) if reflected else (self.value, value)
        result = _BINARY[operation](*values)
        if not isinstance(other, Traced | AnyConstant):
            if other == _NEUTRAL.get(operation) and (not reflected or operation in "+*"):
                return self
            if other == 0 and (operation == "*" or (operation == "/" and reflected)):
                return result
        return Traced(result, operation, pair)

    def __add__(self, other: Any) -> Any:
        return self._of("+", other)

    def __radd__(self, other: Any) -> Any:
        return self._of("+", other, reflected=True)

    def __sub__(self, other: Any) -> Any:
        return self._of("-", other)

    def __rsub__(self, other: Any) -> Any:
        return self._of("-", other, reflected=True)

    def __mul__(self, other: Any) -> Any:
        return self._of("*", other)

    def __rmul__(self, other: Any) -> Any:
        return self._of("*", other, reflected=True)

    def __truediv__(self, other: Any) -> Any:
        return self._of("/", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._of("/", other, reflected=True)

    def __floordiv__(self, other: Any) -> Any:
        return self._of("//", other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._of("//", other, reflected=True)

    def __mod__(self, other: Any) -> Any:
        return self._of("%", other)

    def __rmod__(self, other: Any) -> Any:
        return self._of("%", other, reflected=True)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __pow__(self, other: Any) -> Any:
        return self._of("**", other)

    def __rpow__(self, other: Any) -> Any:
        return self._of("**", other, reflected=True)

    def __neg__(self) -> Any:
        return Traced(-self.value, "*", (-1, self))

    def __ceil__(self) -> Any:
        return _call("ceil", math.ceil, self)

    def __floor__(self) -> Any:
        return _call("floor", math.floor, self)

    def __round__(self, digits: int | None = None) -> Any:
        return _call("round", round, self)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == plain(other))

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= plain(other))

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)  # type: ignore[arg-type]  # raises for a float

    def __float__(self) -> float:
        raise TypeError(f"float() drops the trace of {self.name or 'a number'}: leave it out")

    def __int__(self) -> int:
        raise TypeError(f"int() drops the trace of {self.name or 'a number'}: use math.floor")

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __repr__(self) -> str:
        return f"Traced({self.value!r}, {self.name or self.operation!r})"


# The class of a traced number, to compare with: `is` takes half the time of `isinstance`.
TRACED: type[object] = Traced
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_NEUTRAL = {"+": 0, "-": 0, "*": 1, "/": 1, "**": 1}


def plain(value: Any) -> Any:
    """The number without its trace."""
    return value.value if isinstance(value, Traced) else value


def given(value: float, name: str, unit: str, source: str) -> Traced:
    """An input: a number that nothing here computes."""
    return Traced(value).called(name, unit, source)


def named(value: Number, name: str, unit: str = "", why: str = "") -> Number:
    """The value; a traced one becomes a figure of that name.

    Its source is `why`, or else the first sentence of the docstring of the calling function.
    """
    if value.__class__ is not Traced:
        return value
    source = _source(sys._getframe(1), why)  # noqa: SLF001 - the way to a caller's docstring
    return value.called(name, unit, source)


def label(value: Number, name: str, unit: str, why: str) -> None:
    """Name a traced number that has no name yet, in place.

    For code that plans run a million times: it asks once whether its numbers are traced.
    """
    if value.__class__ is Traced and not value.name:
        source = _source(sys._getframe(1), why)  # noqa: SLF001
        value.called(name, unit, source)


def counted(value: Number, name: str, unit: str, *, of: float, why: str = "") -> Number:
    """A value that is counted or looked up, not calculated; an input of formulas.

    `of` is a number that it follows from: where that is traced, the value becomes traced too.
    """
    if of.__class__ is not Traced:
        return value
    source = _source(sys._getframe(1), why)  # noqa: SLF001
    return given(plain(value), name, unit, source)


def lifted(constant: Number, *, of: float) -> Number:
    """A constant; traced where a number of the same prediction is, as operations with it are."""
    if of.__class__ is not Traced or not isinstance(constant, AnyConstant):
        return constant
    return given(constant, constant.name, constant.unit, constant.source)


def maximum(first: Number, second: Number) -> Number:
    """The larger of two numbers; quicker than `max`."""
    if first.__class__ is Traced or second.__class__ is Traced:
        return _call("max", max, first, second)
    return max(first, second)


def minimum(first: Number, second: Number) -> Number:
    """The smaller of two numbers; quicker than `min`."""
    if first.__class__ is Traced or second.__class__ is Traced:
        return _call("min", min, first, second)
    return min(first, second)


def log2(value: float) -> float:
    """The logarithm to base 2."""
    return _call("log2", math.log2, value) if isinstance(value, Traced) else math.log2(value)


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient of whole numbers, rounded up."""
    if isinstance(dividend, Traced) or isinstance(divisor, Traced):
        exact = -(-plain(dividend) // plain(divisor))  # a quotient of floats could round
        found: int = _call("ceil", lambda _: exact, dividend / divisor)
        return found
    return -(-dividend // divisor)


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is not smaller than a whole number."""
    return _call("next_power_of_two", lambda n: 1 << (n - 1).bit_length(), value)  # type: ignore[no-any-return]


def _call(name: str, function: Callable[..., Any], *operands: Any) -> Any:
    """The value of a function, traced where an operand is."""
    values = [plain(operand) for operand in operands]
    value = function(*values)
    if not any(isinstance(operand, Traced) for operand in operands):
        return value
    if name in ("ceil", "floor", "round") and value == values[0] and type(values[0]) is int:
        return operands[0]
    if name in ("max", "min"):  # of several numbers: one list
        operands = tuple(leaf for operand in operands for leaf in _joined(name, operand))
    return Traced(value, name, operands)


def _joined(name: str, operand: Any) -> tuple[Any, ...]:
    """The operands of an unnamed operand of the same function; else the operand itself."""
    same = isinstance(operand, Traced) and not operand.name and operand.operation == name
    return operand.operands if same else (operand,)


def _source(frame: FrameType, why: str) -> str:
    """`estimate/loss.py: ...` with the reason, or with the calling function's docstring."""
    place = "/".join(frame.f_code.co_filename.replace("\\", "/").split("/")[-2:])
    doc = frame.f_code.co_consts[0]
    told = why or (doc if isinstance(doc, str) else "")
    text = " ".join(told.split("\n\n")[0].split()).removesuffix(".")
    return f"{place}: {text}" if text else place
