"""Pairs: samples of preference training, each a chosen and a rejected sequence.

A pair is one sample to all that orders, shares out and counts samples. In the cache of tokens its
two sequences stand one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsforge.errors import DsforgeError, Problem
from dsforge.train.data.conversations import Row
from dsforge.train.data.rows import BadRows, stop
from dsforge.train.data.samples import Sample, Subset
from dsforge.train.data.tokenization import Counts, samples_of

SIDES = 2
References = NDArray[np.float64]  # of (pairs, sides): summed log probabilities


@dataclass(frozen=True, slots=True)
class Pair(Sample):
    """The tokens of both sequences, the chosen one first; `parts` are their lengths.

    `reference` holds the log probabilities of both answers by the reference model, where they are
    known before the step.
    """

    reference: tuple[float, float] | None = None

    @property
    def sides(self) -> tuple[Sample, Sample]:
        """The chosen and the rejected sequence."""
        at = self.parts[0]
        return (
            Sample(self.tokens[:at], self.labels[:at]),
            Sample(self.tokens[at:], self.labels[at:]),
        )


class Pairs(Sequence[Pair]):
    """Pairs over samples that alternate between chosen and rejected sequences."""

    def __init__(self, samples: Sequence[Sample], lengths: NDArray[np.int64]) -> None:
        self.samples = samples
        self.lengths = lengths.reshape(-1, SIDES).sum(axis=1)  # tokens of both sequences
        self.references: References | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        chosen, rejected = (self.samples[SIDES * at + side] for side in range(SIDES))
        known = self.references
        return Pair(
            np.concatenate([chosen.tokens, rejected.tokens]),
            np.concatenate([chosen.labels, rejected.labels]),
            (len(chosen.tokens), len(rejected.tokens)),
            None if known is None else (float(known[at, 0]), float(known[at, 1])),
        )


def sources(*parts: Sequence[Sample]) -> list[Pairs]:
    """The Pairs that sequences of samples take theirs from, each once."""
    found: list[Pairs] = []
    for part in parts:
        whole = part.samples if isinstance(part, Subset) else part
        if isinstance(whole, Pairs) and not any(whole is other for other in found):
            found.append(whole)
    return found


@dataclass(slots=True)
class BadPairs(BadRows):
    """Bad rows, each once: a template may refuse both conversations of a pair."""

    last_place: str = ""

    def add(self, problem: Problem) -> None:
        """One more, if it is of another row."""
        if problem.place != self.last_place:
            BadRows.add(self, problem)
        self.last_place = problem.place


def tokenize_pairs(
    rows: Iterable[Row],
    tokenizer: Any,
    sequence_length: int,
    *,
    take: Callable[[Sample], None],
    on_row: Callable[[], None] = lambda: None,
    on_bad: Callable[[BadRows], None] = stop,
) -> Counts:
    """Counts of the pairs of which `take` was given both sequences, the chosen one first.

    Each is truncated at `sequence_length` tokens. Pairs are left out where nothing of an answer, or
    no difference of the two, is within the limit. Raises DsforgeError where nothing is left.
    """
    kept, cut, without_answer = 0, list[str](), list[str]()
    refused = BadPairs()
    several = samples_of(_both(rows), tokenizer, refused)
    for (row, chosen), (_, rejected) in zip(several, several, strict=True):
        on_row()
        if chosen is None or rejected is None:
            continue
        if max(len(chosen.tokens), len(rejected.tokens)) > sequence_length:
            cut.append(row.place)
        sides = [
            Sample(side.tokens[:sequence_length], side.labels[:sequence_length])
            for side in (chosen, rejected)
        ]
        same = np.array_equal(sides[0].tokens, sides[1].tokens)
        if same or not all(side.targets for side in sides):
            without_answer.append(row.place)
            continue
        kept += 1
        for side in sides:
            take(side)
    if refused.count:
        on_bad(refused)
    if not kept:
        message = f"no pair has two different answers within {sequence_length} tokens"
        raise DsforgeError(message, "raise `sequence_length`")
    return Counts(kept, tuple(cut), tuple(without_answer))


def _both(rows: Iterable[Row]) -> Iterator[Row]:
    """Each row of preferences as two conversations."""
    for row in rows:
        for messages in (row.messages, row.rejected):
            yield Row(row.place, messages=messages, given=row.given)
