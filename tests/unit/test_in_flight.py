"""Micro batches in flight on a stage of an interleaved pipeline."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsforge.estimate.peak import interleaved


def walked(chunks: list[int], pp: int, rank: int, micro_batches: int) -> Fraction:
    """The same by walking the schedule, and keeping what each chunk still has to bring back."""
    virtual = len(chunks)
    total = micro_batches * virtual
    warmup = min(total, (pp - rank - 1) * 2 + (virtual - 1) * pp)
    kept: list[tuple[int, int]] = []
    most = 0

    def turn(number: int, *, forward: bool) -> tuple[int, int]:
        group, place = divmod(number, pp * virtual)
        chunk = place // pp
        return (chunk if forward else virtual - 1 - chunk), group * pp + place % pp

    for number in range(total):
        kept.append(turn(number, forward=True))
        most = max(most, sum(chunks[chunk] for chunk, _ in kept))
        if number >= warmup:
            kept.remove(turn(number - warmup, forward=False))
    return Fraction(most, sum(chunks))


SHAPES = st.integers(2, 6).flatmap(
    lambda pp: st.tuples(
        st.lists(st.integers(0, 4), min_size=2, max_size=5).filter(any),
        st.just(pp),
        st.integers(0, pp - 1),
        st.integers(1, 6).map(lambda groups: groups * pp),
    )
)


@given(SHAPES)
@example(([1, 0], 4, 3, 8))  # six layers, and a share of the last stage for the loss
@example(([0, 1], 4, 0, 8))
def test_unequal_chunks_are_counted_turn_by_turn(shape: tuple[list[int], int, int, int]) -> None:
    """As the schedule keeps them: after each forward one chunk is freed by its backward."""
    chunks, pp, rank, micro_batches = shape

    found = interleaved(tuple(chunks), pp, pp - 1 - rank, micro_batches)

    assert found == pytest.approx(float(walked(chunks, pp, rank, micro_batches)))


@given(st.integers(1, 4), st.integers(2, 6), st.integers(2, 6), st.data())
def test_equal_chunks_follow_the_formula(
    layers: int, virtual: int, pp: int, data: st.DataObject
) -> None:
    """2 (pp - r - 1) + (v - 1) pp chunks, and the one at work (Narayanan et al. 2021)."""
    later = data.draw(st.integers(0, pp - 1))

    found = interleaved((layers,) * virtual, pp, later, 4 * pp)

    assert found == pytest.approx((2 * later + (virtual - 1) * pp + 1) / virtual)
