"""Sample order, shares of ranks, the split and the batch: arithmetic without a tokenizer."""

from __future__ import annotations

import numpy as np
import pytest

from dsforge.errors import DsforgeError
from dsforge.train.data.samples import (
    IGNORED,
    Order,
    Sample,
    collate,
    indices_of_step,
    share_of_rank,
    split,
)


def sample(*tokens: int, answer_from: int = 0) -> Sample:
    """A sample whose labels begin at a position."""
    ids = np.array(tokens, dtype=np.int64)
    return Sample(ids, np.where(np.arange(len(ids)) >= answer_from, ids, IGNORED))


def test_every_epoch_sees_each_sample_once() -> None:
    """Batches that straddle the end of an epoch lose and repeat nothing."""
    seen = [
        i for step in range(10) for i in indices_of_step(3, step, count=20, global_batch_size=6)
    ]

    assert sorted(seen[:20]) == sorted(seen[20:40]) == list(range(20))
    assert seen[:20] != seen[20:40]


def test_the_order_depends_on_the_seed() -> None:
    """Two seeds give two orders, one seed always the same."""
    first, other, again = (
        indices_of_step(seed, 0, count=100, global_batch_size=50) for seed in (1, 2, 1)
    )

    assert first == again != other


@pytest.mark.parametrize(("ranks", "micro"), [(1, 2), (2, 2), (4, 2), (2, 4), (8, 1)])
def test_any_number_of_ranks_shares_the_same_batch(ranks: int, micro: int) -> None:
    """The shares of all ranks are the global batch, each sample once, in full micro batches."""
    batch = indices_of_step(7, 3, count=30, global_batch_size=16)
    shares = [
        share_of_rank(batch, rank=rank, ranks=ranks, micro_batch_size=micro)
        for rank in range(ranks)
    ]

    assert sorted(i for share in shares for part in share for i in part) == sorted(batch)
    assert {len(part) for share in shares for part in share} == {micro}
    assert len({len(share) for share in shares}) == 1


def drawn(ranks: int, *, by_length: bool) -> list[list[int]]:
    """The samples that all ranks together take in each of seven steps, by step."""
    lengths = np.random.default_rng(8).integers(1, 60, 100)
    order = Order([sample(*range(n)) for n in lengths], 5, 12, by_length=by_length)
    return [
        sorted(
            index
            for rank in range(ranks)
            for share in share_of_rank(
                order.indices(step), rank=rank, ranks=ranks, micro_batch_size=2
            )
            for index in share
        )
        for step in (6, 0, 1, 2, 3, 4, 5)
    ]


@pytest.mark.parametrize("by_length", [False, True], ids=["random", "by-length"])
def test_one_two_and_three_ranks_take_the_same_samples(by_length: bool) -> None:
    """Step by step, also where a run begins in the middle; the order knows no ranks."""
    one = drawn(1, by_length=by_length)

    assert drawn(2, by_length=by_length) == drawn(3, by_length=by_length) == one


@pytest.mark.parametrize("by_length", [False, True], ids=["random", "by-length"])
def test_an_epoch_of_either_order_sees_each_sample_once(by_length: bool) -> None:
    """Batches of two epochs, the second in another order; 100 is no multiple of 8."""
    order = Order([sample(*range(1 + i % 30)) for i in range(100)], 5, 8, by_length=by_length)
    seen = [index for step in range(25) for index in order.indices(step)]

    assert sorted(seen) == sorted(list(range(100)) * 2)
    assert [order.indices(step) for step in range(12)] != [order.indices(s) for s in range(13, 25)]


def test_batches_by_length_hold_little_padding() -> None:
    """Alike samples stand together; the batches themselves come in random order of length."""
    lengths = np.random.default_rng(8).integers(1, 400, 2000)
    samples = [sample(*range(n)) for n in lengths]

    def filled(by_length: bool) -> float:
        order = Order(samples, 5, 16, by_length=by_length)
        batches = [lengths[order.indices(step)] for step in range(100)]
        return float(sum(b.sum() for b in batches) / sum(16 * b.max() for b in batches))

    assert filled(False) < 0.6
    assert filled(True) > 0.95


def test_ranks_take_like_samples_at_the_same_time() -> None:
    """In a batch samples stand by length: a micro step pads all ranks to about one length."""
    order = Order([sample(*range(n)) for n in range(1, 65)], 5, 16, by_length=False)
    indices = order.indices(0)

    assert indices == sorted(indices)


def test_a_batch_is_padded_on_the_right_to_a_multiple_of_8() -> None:
    """Padding stands behind the samples and is not counted."""
    batch = collate([sample(5, 6, 7, answer_from=2), sample(*range(10, 19))], pad_token=1)

    assert batch.tokens.shape == (2, 16)
    assert batch.tokens[0].tolist() == [5, 6, 7] + [1] * 13
    assert batch.positions[1].tolist() == [*range(9), *range(7)]
    assert batch.labels[0].tolist() == [IGNORED, IGNORED, 7] + [IGNORED] * 13


def test_the_first_token_is_no_target() -> None:
    """Nothing predicts the first token, so a sample of one token has no target."""
    assert [sample(5).targets, sample(5, 6).targets, sample(5, 6, 7, answer_from=2).targets] == [
        0,
        1,
        1,
    ]


def test_the_split_holds_out_a_share_once() -> None:
    """Training and validation samples are disjoint, complete, and the same for one seed."""
    samples = [sample(i, i) for i in range(50)]
    train, held = split(samples, 0.1, seed=4)
    again, _ = split(samples, 0.1, seed=4)

    assert (len(train), len(held)) == (45, 5)
    assert sorted(int(s.tokens[0]) for s in (*train, *held)) == list(range(50))
    assert [id(s) for s in train] == [id(s) for s in again]


@pytest.mark.parametrize(("fraction", "sizes"), [(0.01, (2, 1)), (0.99, (1, 2))])
def test_both_sides_of_a_split_keep_a_sample(fraction: float, sizes: tuple[int, int]) -> None:
    """However uneven the share, neither training nor validation is empty."""
    train, held = split([sample(i, i) for i in range(3)], fraction, seed=0)

    assert (len(train), len(held)) == sizes


def test_one_sample_cannot_be_split() -> None:
    """A split of one sample is refused."""
    with pytest.raises(DsforgeError, match="at least two samples"):
        split([sample(1, 2)], 0.5, seed=0)
