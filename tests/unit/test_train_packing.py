"""Packs: every sample once, nothing too long, borders kept."""

from __future__ import annotations

import numpy as np
import pytest

from dsforge.train.data.packing import packed
from dsforge.train.data.samples import IGNORED, Sample, collate


def samples(*lengths: int) -> list[Sample]:
    """Samples whose tokens tell which one they belong to; all tokens count."""
    return [Sample(ids, ids) for i, n in enumerate(lengths) for ids in [np.full(n, i + 1)]]


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_every_sample_is_packed_once_and_nothing_is_too_long(count: int) -> None:
    """The parts of all packs are the samples."""
    lengths = np.random.default_rng(0).integers(2, 65, count).tolist()
    packs = packed(samples(*lengths), 64, seed=1)

    assert sorted(part for pack in packs for part in pack.parts) == sorted(lengths)
    assert max(len(pack.tokens) for pack in packs) <= 64
    assert all(sum(pack.parts) == len(pack.tokens) for pack in packs)


def test_packs_leave_little_padding() -> None:
    """Of samples of many lengths, packs are nearly full."""
    lengths = np.random.default_rng(0).integers(10, 500, 2000).tolist()
    packs = packed(samples(*lengths), 1024, seed=1)

    assert sum(lengths) / (len(packs) * 1024) > 0.97


def test_packs_depend_on_the_seed_only() -> None:
    """One seed gives the same packs again, another one others."""
    parts = [
        [pack.parts for pack in packed(samples(*range(2, 60)), 64, seed)] for seed in (1, 1, 2)
    ]

    assert parts[0] == parts[1] != parts[2]


def test_no_sample_is_asked_to_predict_the_first_token_of_the_next() -> None:
    """The targets of a pack are those of its samples apart."""
    alone = samples(3, 4, 5)
    (pack,) = packed(alone, 16, seed=0)

    begins = np.cumsum((0, *pack.parts[:-1]))
    assert pack.labels[begins].tolist() == [IGNORED] * 3
    assert pack.targets == sum(sample.targets for sample in alone)


def test_positions_begin_anew_with_each_sample() -> None:
    """So do those of the padding, which no sample sees."""
    (pack,) = packed(samples(3, 2), 8, seed=0)
    batch = collate([pack], pad_token=0)

    first, second = pack.parts
    assert batch.positions[0].tolist() == [*range(first), *range(second), *range(3)]
