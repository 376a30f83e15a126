"""Traced numbers compute what plain ones do, and know how."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as some

from dsforge.traced import (
    Constant,
    Traced,
    ceil_div,
    counted,
    given,
    label,
    lifted,
    log2,
    maximum,
    minimum,
    named,
    next_power_of_two,
    plain,
)

TWO_SIDED = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, divmod, maximum, minimum),
]
ONE_SIDED = [math.ceil, math.floor, round, operator.neg, log2]
SIZES = some.integers(min_value=1, max_value=2**40)
SHARES = some.floats(min_value=1e-6, max_value=1e12)


def size(value: float, name: str = "size") -> Any:
    """An input."""
    return given(value, name, "bytes", "a test")


def untraced(found: Any) -> Any:
    """The value, or both of a pair."""
    return tuple(map(plain, found)) if isinstance(found, tuple) else plain(found)


@pytest.mark.parametrize("operation", TWO_SIDED)
@drawn(left=SIZES | SHARES, right=SIZES | SHARES)
def test_operations_give_the_value_of_plain_numbers(
    operation: Any, left: float, right: float
) -> None:
    """Whichever side is traced."""
    expected = operation(left, right)
    pairs = [(size(left), size(right)), (size(left), right), (left, size(right))]
    if operation is divmod:
        pairs.pop()  # nothing divides a plain number so
    for first, second in pairs:
        found = operation(first, second)
        assert untraced(found) == pytest.approx(expected, rel=1e-15)


@drawn(dividend=SIZES, divisor=SIZES)
def test_whole_quotients_are_exact(dividend: int, divisor: int) -> None:
    """Rounded up, also where a quotient of floats would round."""
    for first, second in [(dividend, size(divisor)), (size(dividend), divisor)]:
        assert plain(ceil_div(first, second)) == ceil_div(dividend, divisor)


@pytest.mark.parametrize("function", ONE_SIDED)
@drawn(value=SIZES | SHARES)
def test_functions_give_the_value_of_plain_numbers(function: Any, value: float) -> None:
    """Rounding, sign and logarithm; all of them stay traced."""
    found = function(size(value))

    assert isinstance(found, Traced)
    assert found.value == function(value)


@drawn(value=SIZES)
def test_the_next_power_of_two_is_the_smallest(value: int) -> None:
    """And the same of a traced number."""
    power = next_power_of_two(value)

    assert power // 2 < value <= power
    assert power & (power - 1) == 0
    assert plain(next_power_of_two(size(value))) == power


@pytest.mark.parametrize("convert", [float, int])
def test_what_would_drop_a_trace_is_refused(convert: Any) -> None:
    """A conversion in a formula is a mistake that a test must see."""
    with pytest.raises(TypeError, match="drops the trace of size"):
        convert(size(3.0))


def test_plain_numbers_stay_plain() -> None:
    """Planning pays for no trace."""
    assert named(3, "three") == 3
    assert type(named(3, "three")) is int
    assert type(counted(3, "three", "", of=2.0)) is int
    assert type(lifted(Constant(0.5, "half", "", "a test"), of=2)) is Constant
    assert type(maximum(1, 2.5)) is float
    label(3, "three", "", "")


def test_a_second_name_refers_to_the_first() -> None:
    """Nothing is renamed under a formula that uses it."""
    first = size(7)
    second: Any = named(first, "same")

    assert (first.name, second.name) == ("size", "same")
    assert second.operands == (first,)


def test_a_source_is_the_docstring_of_the_formula() -> None:
    """Its first paragraph, with the file."""

    def area(width: Any) -> Any:
        """Square of a width.

        No more than that.
        """
        return named(width * width, "area", "m2")

    assert area(size(3)).source == "unit/test_traced.py: Square of a width"


def test_caches_of_plain_inputs_never_answer_traced_ones() -> None:
    """A traced number equals its value, but is another key."""
    assert size(3) == 3
    assert len({size(3), size(3), 3}) == 3
