"""Quantities are said in plain digits, and what is written is read back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.units import (
    GIB,
    amount,
    bit_rate,
    count,
    digits,
    factor,
    gb_per_s,
    gib,
    parse_count,
    seconds,
    some,
    tflops,
    times,
)

POSITIVE = st.floats(1e-9, 1e17, allow_nan=False)


@given(POSITIVE)
def test_no_figure_is_a_power_of_ten(value: float) -> None:
    """`1e+03 M` is what a person never says."""
    for show in (amount, count, seconds, gb_per_s, tflops, bit_rate, factor, gib):
        assert "e" not in show(value).replace("seconds", "").replace("days", "").replace("me", "")


@given(POSITIVE, st.integers(1, 6))
def test_digits_keep_the_value(value: float, most: int) -> None:
    """So many significant digits, and no more rounding than that."""
    shown = float(digits(value, most).replace(",", ""))

    assert math.isclose(shown, value, rel_tol=0.51 * 10 ** (1 - most))


@given(st.floats(1, 9e14))
def test_a_count_never_has_more_than_three_digits_before_its_letter(value: float) -> None:
    """999,885,952 parameters are 1 B and not 1,000 M."""
    number = count(value).split()[0]

    assert float(number.replace(",", "")) < 1000
    assert math.isclose(parse_count(count(value).replace(" ", "")), value, rel_tol=0.51)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_times_says_which_is_faster(other: float, mine: float) -> None:
    """The ratio is at least 1, and swapping both swaps the word."""
    said, back = times(other, mine), times(mine, other)
    words = {"as fast": "as fast", "faster": "slower", "slower": "faster"}

    assert back.split("x ")[-1] == words[said.split("x ")[-1]]
    if said != "as fast":
        assert said.endswith("faster") == (other < mine)
        assert float(said.partition("x")[0].replace(",", "")) >= 1


@pytest.mark.parametrize(
    ("value", "said"), [(0.9996, "1 s"), (0.25, "250 ms"), (119.96, "2 min"), (7199.9, "2 h")]
)
def test_durations_round_into_the_next_unit(value: float, said: str) -> None:
    """`1e+03 ms` and `120 s` are a second and two minutes."""
    assert seconds(value) == said


def test_words_of_numbers() -> None:
    """The quoted cases."""
    assert count(999_885_952) == "1 B"
    assert amount(999.9) == "1,000"
    assert gb_per_s(12_345e9) == "12,340 GB/s"
    assert gib(1024 * GIB) == "1,024 GiB"
    assert (some(1, "GPU"), some(1024, "GPU")) == ("1 GPU", "1,024 GPUs")
    assert (parse_count("8k"), parse_count("8k", thousand=1024)) == (8000, 8192)
