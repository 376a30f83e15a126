"""Packing: several short samples in one sequence, so that no time is spent on padding.

Samples of a pack never see each other: positions begin anew with each of them, and attention is
blocked between them (transformers reads the borders from the positions). The first token of each
is no target, as nothing before it belongs to it. So a pack gives the loss of its samples apart.
Packs are made once, from the seed alone; batches of packs are drawn as batches of samples are.
"""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsforge.errors import DsforgeError
from dsforge.train.data.samples import IGNORED, Sample, lengths_of

OPEN_PACKS = 64  # packs that still take samples: more of them leave less padding, but take longer


class Packs(Sequence[Sample]):
    """Sequences of several samples each, joined when they are asked for."""

    def __init__(self, samples: Sequence[Sample], groups: Sequence[Sequence[int]]) -> None:
        self.samples, self.groups = samples, groups
        known = lengths_of(samples)
        self.lengths = np.array([int(known[list(g)].sum()) for g in groups], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Packs(self.samples, self.groups[index])
        return _joined([self.samples[i] for i in self.groups[index]])


def packed(samples: Sequence[Sample], sequence_length: int, seed: int) -> Packs:
    """Packs of at most `sequence_length` tokens that hold every sample once."""
    order = np.random.default_rng([seed, 0xBACC]).permutation(len(samples))
    known = lengths_of(samples)
    whole: list[list[int]] = []
    lengths: list[int] = []  # of the open packs, ascending
    still_open: list[list[int]] = []
    for index in order.tolist():
        size, pack = int(known[index]), []
        best = bisect_right(lengths, sequence_length - size) - 1  # the fullest that has room
        if best >= 0:
            size, pack = size + lengths.pop(best), still_open.pop(best)
        elif len(still_open) == OPEN_PACKS:
            lengths.pop()
            whole.append(still_open.pop())
        at = bisect_right(lengths, size)
        lengths.insert(at, size)
        still_open.insert(at, [*pack, index])
    return Packs(samples, whole + still_open)


def _joined(pack: list[Sample]) -> Sample:
    """The samples of a pack as one, which remembers where each begins."""
    labels = [sample.labels.copy() for sample in pack]
    for part in labels:
        part[0] = IGNORED
    return Sample(
        np.concatenate([sample.tokens for sample in pack]),
        np.concatenate(labels),
        tuple(len(sample.tokens) for sample in pack),
    )


def check_takes_positions(model_class: Any) -> None:
    """Raise DsforgeError where a model cannot be told where the samples of a pack begin."""
    if "position_ids" in inspect.signature(model_class.forward).parameters:
        return
    message = (
        f"`packing` requires a model that accepts position ids; {model_class.__name__} does not"
    )
    raise DsforgeError(message, "set `packing: false`")
