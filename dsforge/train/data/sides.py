"""Samples of encoder-decoder models: the encoder reads a prompt, the decoder writes its answer.

Both sides end with the end mark, as T5 was trained. In a sample they stand one after the other, and
its labels are the tokens of the answer. Chat templates are of decoders and are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsforge.errors import DsforgeError, Problem
from dsforge.train.data.conversations import Row
from dsforge.train.data.rows import BadRows, stop
from dsforge.train.data.samples import IGNORED, MULTIPLE, Sample
from dsforge.train.data.tokenization import BATCH, Counts

TURNS = ["user", "assistant"]


class SideBatch(NamedTuple):
    """Both sides of samples, padded on the right: arrays of (samples, length)."""

    prompts: NDArray[np.int64]
    mask: NDArray[np.int64]  # 1 where a prompt has a token
    given: NDArray[np.int64]  # what the decoder reads: the answers, one place to the right
    labels: NDArray[np.int64]


def tokenize_sides(
    rows: Iterable[Row],
    tokenizer: Any,
    sequence_length: int,
    *,
    take: Callable[[Sample], None],
    on_row: Callable[[], None] = lambda: None,
    on_bad: Callable[[BadRows], None] = stop,
) -> Counts:
    """Counts of the samples that `take` was given; each side is truncated at `sequence_length`.

    Rows that are no prompt with an answer go to `on_bad`. Raises DsforgeError where none is left.
    """
    kept, cut, refused, several = 0, list[str](), BadRows(), iter(rows)
    while batch := list(islice(several, BATCH)):
        good = []
        for row in batch:
            on_row()
            if [message["role"] for message in row.messages] == TURNS:
                good.append(row)
            else:
                text = "must be a prompt with one answer: the model has an encoder and a decoder"
                refused.add(Problem("row-sides", text, "use `prompt`, `completion`", row.place))
        for row, prompt, answer in zip(good, *_encoded(good, tokenizer), strict=True):
            kept += 1
            if max(len(prompt), len(answer)) > sequence_length:
                cut.append(row.place)
            take(_sample(prompt[:sequence_length], answer[:sequence_length]))
    if refused.count:
        on_bad(refused)
    if not kept:
        raise DsforgeError("the data has no prompt with one answer", "use `prompt`, `completion`")
    return Counts(kept, tuple(cut), ())


def _encoded(rows: Sequence[Row], tokenizer: Any) -> tuple[list[list[int]], list[list[int]]]:
    """The tokens of the prompts and of the answers, each with the end mark."""
    end = tokenizer.eos_token_id
    sides: list[list[list[int]]] = []
    for side in range(len(TURNS)):
        texts = [row.messages[side]["content"] for row in rows]
        found = tokenizer(texts)["input_ids"] if texts else []
        sides.append([ids if end is None or ids[-1:] == [end] else [*ids, end] for ids in found])
    return sides[0], sides[1]


def _sample(prompt: Sequence[int], answer: Sequence[int]) -> Sample:
    labels = [*([IGNORED] * len(prompt)), *answer]
    return Sample(np.array([*prompt, *answer], dtype=np.int64), np.array(labels, dtype=np.int64))


def collate_sides(samples: Sequence[Sample], pad_token: int, start_token: int) -> SideBatch:
    """A batch; samples without an answer have decoder inputs and no labels."""
    borders = [_border(sample) for sample in samples]
    answers = [len(s.tokens) - at for s, at in zip(samples, borders, strict=True)]
    rows = len(samples)
    width, depth = (-(-max(n, 1) // MULTIPLE) * MULTIPLE for n in (max(borders), max(answers)))
    batch = SideBatch(
        np.full((rows, width), pad_token, dtype=np.int64),
        np.zeros((rows, width), dtype=np.int64),
        np.full((rows, depth), pad_token, dtype=np.int64),
        np.full((rows, depth), IGNORED, dtype=np.int64),
    )
    batch.given[:, 0] = start_token
    for row, (sample, at) in enumerate(zip(samples, borders, strict=True)):
        answer = sample.tokens[at:]
        batch.prompts[row, :at], batch.mask[row, :at] = sample.tokens[:at], 1
        batch.given[row, 1 : len(answer)] = answer[:-1]
        batch.labels[row, : len(answer)] = sample.labels[at:]
    return batch


def _border(sample: Sample) -> int:
    """Where the answer begins: all of its tokens, and no others, are labels."""
    counted = sample.labels != IGNORED
    return int(counted.argmax()) if counted.any() else len(sample.tokens)
