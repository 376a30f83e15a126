"""Samples: tokens and labels, and the one order in which they are seen.

The order depends on seed and step only, so any number of ranks sees the same global batches.
Every rank can read all samples: it knows the answer tokens of a global batch without asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsforge.errors import DsforgeError

IGNORED = -100  # the label that cross-entropy leaves out
MULTIPLE = 8  # tensor cores want lengths that are multiples of 8
POOL = 50  # batches that are sorted together: enough to be alike, few enough to stay random


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids and, for each, the label: the id itself in an answer, IGNORED elsewhere.

    `parts` are the lengths of the samples that are packed into it; a single one has none.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    parts: tuple[int, ...] = ()

    @property
    def targets(self) -> int:
        """Tokens that the loss counts: the first token is never predicted."""
        return int((self.labels[1:] != IGNORED).sum())


class Subset(Sequence[Sample]):
    """Some of the samples of a sequence, in an order of their own; nothing is copied."""

    def __init__(self, samples: Sequence[Sample], indices: NDArray[np.int64]) -> None:
        self.samples, self.indices = samples, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        chosen = self.indices[index]
        if isinstance(index, slice):
            return Subset(self.samples, chosen)
        return self.samples[int(chosen)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample."""
        return lengths_of(self.samples)[self.indices]


def lengths_of(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """Tokens of each sample; sequences that know them are not read."""
    known: NDArray[np.int64] | None = getattr(samples, "lengths", None)
    if known is not None:
        return known
    return np.array([len(sample.tokens) for sample in samples], dtype=np.int64)


def split(
    samples: Sequence[Sample], fraction: float, seed: int
) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Training and validation samples; each keeps at least one where `fraction` > 0."""
    if fraction == 0:
        return samples, ()
    if len(samples) == 1:
        raise DsforgeError("`validation_fraction` needs at least two samples")
    order = np.random.default_rng([seed, 0x5EED]).permutation(len(samples))
    held = min(len(samples) - 1, max(1, round(fraction * len(samples))))
    return Subset(samples, np.sort(order[held:])), Subset(samples, np.sort(order[:held]))


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def indices_of_step(seed: int, step: int, *, count: int, global_batch_size: int) -> list[int]:
    """Indices of the samples of one step, counted from 0; each epoch is a new permutation."""
    first = step * global_batch_size
    positions = range(first, first + global_batch_size)
    return [int(_permutation(seed, p // count, count)[p % count]) for p in positions]


class Order:
    """The samples of each step: a function of seed and step, whatever the number of ranks.

    In a global batch they stand by length, so that the micro batches that ranks take at the same
    time are alike and hold little padding; the sum over the batch is the same. `by_length` also
    draws whole batches of samples of like length: each epoch sorts random pools of POOL batches
    and takes the batches of all pools in random order.
    """

    def __init__(
        self, samples: Sequence[Sample], seed: int, global_batch_size: int, *, by_length: bool
    ) -> None:
        self.lengths = lengths_of(samples)
        self.seed, self.size, self.by_length = seed, global_batch_size, by_length
        self._epochs: dict[int, NDArray[np.int64]] = {}

    def indices(self, step: int) -> list[int]:
        """Indices of the global batch of a step, counted from 0."""
        count = len(self.lengths)
        if self.by_length:
            places = range(step * self.size, (step + 1) * self.size)
            drawn = [int(self._epoch(p // count)[p % count]) for p in places]
        else:
            drawn = indices_of_step(self.seed, step, count=count, global_batch_size=self.size)
        return sorted(drawn, key=lambda index: int(self.lengths[index]))

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        """All indices in the order of an epoch of batches by length."""
        if epoch not in self._epochs:
            random = np.random.default_rng([self.seed, epoch, 0x1E46])
            order = random.permutation(len(self.lengths))
            pools = [
                order[i : i + POOL * self.size] for i in range(0, len(order), POOL * self.size)
            ]
            by_length = np.concatenate(
                [p[np.argsort(self.lengths[p], kind="stable")] for p in pools]
            )
            whole = len(order) // self.size
            batches = by_length[: whole * self.size].reshape(whole, self.size)
            rest = by_length[whole * self.size :]
            mixed = np.concatenate([batches[random.permutation(whole)].reshape(-1), rest])
            self._epochs = {e: kept for e, kept in self._epochs.items() if e == epoch - 1}
            self._epochs[epoch] = mixed
        return self._epochs[epoch]


def share_of_rank(
    indices: Sequence[int], *, rank: int, ranks: int, micro_batch_size: int
) -> list[list[int]]:
    """The micro batches of one rank: micro step after micro step, rank after rank."""
    stride = ranks * micro_batch_size
    starts = range(rank * micro_batch_size, len(indices), stride)
    return [list(indices[start : start + micro_batch_size]) for start in starts]


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples side by side, padded on the right: arrays of (samples, length).

    There is no attention mask: attention looks to the left, where no sample has padding.
    `positions` count from 0 in each packed sample, and in the padding behind them.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    positions: NDArray[np.int64]


def collate(samples: Iterable[Sample], pad_token: int, *, least: int = 0) -> Batch:
    """A batch, padded to the longest sample, rounded up to a multiple of 8; `least` tokens long."""
    rows = list(samples)
    longest = max(least, *(len(sample.tokens) for sample in rows))
    shape = (len(rows), -(-longest // MULTIPLE) * MULTIPLE)
    batch = Batch(
        np.full(shape, pad_token, dtype=np.int64),
        np.full(shape, IGNORED, dtype=np.int64),
        np.zeros(shape, dtype=np.int64),
    )
    for row, sample in enumerate(rows):
        length = len(sample.tokens)
        batch.tokens[row, :length] = sample.tokens
        batch.labels[row, :length] = sample.labels
        ends = np.cumsum((0, *(sample.parts or (length,)), shape[1] - length))
        for begin, end in pairwise(ends):
            batch.positions[row, begin:end] = np.arange(end - begin)
    return batch
