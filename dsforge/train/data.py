"""Samples: rows -> tokens and labels, and the one order in which they are seen.

The order depends on seed and step only, so any number of ranks sees the same global batches.
Every rank holds all samples: it knows the answer tokens of a whole global batch without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from dsforge.errors import DsforgeError, Problem
from dsforge.train.rows import Row, stop

IGNORED = -100  # the label that cross-entropy leaves out
MULTIPLE = 8  # tensor cores want lengths that are multiples of 8


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


@dataclass(frozen=True, slots=True)
class Samples:
    """All samples of a file and how many were cut or left out."""

    samples: tuple[Sample, ...]
    cut: int = 0
    without_answer: int = 0


def tokenize(
    rows: Sequence[Row],
    tokenizer: Any,
    sequence_length: int,
    *,
    on_row: Callable[[], None] = lambda: None,
    on_bad: Callable[[Sequence[Problem]], None] = stop,
) -> Samples:
    """Samples of at most `sequence_length` tokens.

    Rows whose answer begins beyond the limit are left out and counted; those that the tokenizer's
    chat template refuses go to `on_bad`. Raises DsforgeError where nothing is left.
    """
    if any(row.messages for row in rows) and not tokenizer.chat_template:
        hint = "use data of the shape `text`, or an instruction-tuned model"
        raise DsforgeError("the tokenizer has no chat template for prompts and messages", hint)
    samples, cut, refused = [], 0, []
    for row in rows:
        on_row()
        try:
            sample = _chat_sample(row, tokenizer) if row.messages else _text_sample(row, tokenizer)
        except TemplateError as error:  # many templates want roles in a certain order
            refused.append(Problem("row-template", f"the chat template: {error}", place=row.place))
            continue
        cut += len(sample.tokens) > sequence_length
        samples.append(Sample(sample.tokens[:sequence_length], sample.labels[:sequence_length]))
    if refused:
        on_bad(refused)
    kept = tuple(sample for sample in samples if sample.targets)
    if not kept:
        hint = "raise `sequence_length`"
        raise DsforgeError(f"no answer begins within {sequence_length} tokens", hint)
    return Samples(kept, cut, len(samples) - len(kept))


def _text_sample(row: Row, tokenizer: Any) -> Sample:
    """Plain text and the end mark; the loss counts all of it."""
    ids = list(tokenizer(row.text)["input_ids"])
    if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
        ids.append(tokenizer.eos_token_id)
    tokens = np.array(ids, dtype=np.int64)
    return Sample(tokens, tokens)


def _chat_sample(row: Row, tokenizer: Any) -> Sample:
    """A conversation by the chat template; the loss counts every answer in it.

    Where an answer begins and ends is found by rendering the conversation up to it: a template
    renders a prefix of a conversation as a prefix of its text, marks of the last turn excepted.
    """
    whole = _rendered(row.messages, tokenizer, prompt=False)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    tokens = np.array(encoded["input_ids"], dtype=np.int64)
    starts = np.array([start for start, _ in encoded["offset_mapping"]], dtype=np.int64)
    labels = np.full_like(tokens, IGNORED)
    for index, message in enumerate(row.messages):
        if message["role"] != "assistant":
            continue
        begin = _common(whole, _rendered(row.messages[:index], tokenizer, prompt=True))
        alone = _rendered(row.messages[: index + 1], tokenizer, prompt=False)
        end = _end_of_answer(whole, begin, alone, message["content"].strip())
        inside = (starts >= begin) & (starts < end)
        labels[inside] = tokens[inside]
    return Sample(tokens, labels)


def _end_of_answer(whole: str, begin: int, alone: str, content: str) -> int:
    """The character after an answer and its end mark; `alone` is rendered up to that answer.

    Where the template adds marks to the last turn, `alone` differs from the conversation before the
    answer begins, and the answer is looked for by its words.
    """
    shared, found = _common(whole, alone), whole.find(content, begin)
    if shared == len(alone) or found < 0 or content not in alone:
        return shared
    after = found + len(content)
    mark = alone[alone.rindex(content) + len(content) :]
    return after + _common(whole[after:], mark)


def _rendered(messages: Sequence[dict[str, str]], tokenizer: Any, *, prompt: bool) -> str:
    if not messages:
        return ""
    text = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=prompt
    )
    return str(text)


def _common(one: str, other: str) -> int:
    """Characters that two texts share at their beginning."""
    if one.startswith(other):
        return len(other)
    differing = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, len(one))


def split(samples: Sequence[Sample], fraction: float, seed: int) -> tuple[list[Sample], ...]:
    """Training and validation samples; each keeps at least one where `fraction` > 0."""
    if fraction == 0:
        return list(samples), []
    if len(samples) == 1:
        raise DsforgeError("`validation_fraction` needs at least two samples")
    order = np.random.default_rng([seed, 0x5EED]).permutation(len(samples))
    held = min(len(samples) - 1, max(1, round(fraction * len(samples))))
    chosen = set(order[:held].tolist())
    train = [s for i, s in enumerate(samples) if i not in chosen]
    return train, [s for i, s in enumerate(samples) if i in chosen]


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def indices_of_step(seed: int, step: int, *, count: int, global_batch_size: int) -> list[int]:
    """Indices of the samples of one step, counted from 0; each epoch is a new permutation."""
    first = step * global_batch_size
    positions = range(first, first + global_batch_size)
    return [int(_permutation(seed, p // count, count)[p % count]) for p in positions]


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


def collate(samples: Iterable[Sample], pad_token: int) -> Batch:
    """A batch, padded to the longest sample, rounded up to a multiple of 8."""
    rows = list(samples)
    longest = max(len(sample.tokens) for sample in rows)
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
