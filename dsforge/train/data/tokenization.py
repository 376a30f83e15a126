"""Tokenization of rows into samples: templates are rendered and texts encoded in batches.

Samples are handed to the caller one after another; no more than a batch is held here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from jinja2 import TemplateError

from dsforge.errors import DsforgeError, Problem
from dsforge.train.data.conversations import Row
from dsforge.train.data.rows import BadRows, stop
from dsforge.train.data.samples import IGNORED, Sample

BATCH = 256  # rows that are rendered and encoded together


@dataclass(frozen=True, slots=True)
class Counts:
    """Samples of a file: kept; and where those are that were cut at the limit, or left out.

    Left out are those whose answer begins beyond the limit.
    """

    kept: int
    cut: tuple[str, ...]
    without_answer: tuple[str, ...]


def tokenize(
    rows: Iterable[Row],
    tokenizer: Any,
    sequence_length: int,
    *,
    take: Callable[[Sample], None],
    on_row: Callable[[], None] = lambda: None,
    on_bad: Callable[[BadRows], None] = stop,
) -> Counts:
    """Counts of the samples, of at most `sequence_length` tokens, that `take` was given.

    Rows whose answer begins beyond the limit are left out; those that the tokenizer's
    chat template refuses go to `on_bad`. Raises DsforgeError where nothing is left.
    """
    kept = 0
    cut: list[str] = []
    without_answer: list[str] = []
    refused = BadRows()
    for row, sample in samples_of(rows, tokenizer, refused):
        on_row()
        if sample is None:
            continue
        if len(sample.tokens) > sequence_length:
            cut.append(row.place)
        short = Sample(sample.tokens[:sequence_length], sample.labels[:sequence_length])
        if short.targets:
            kept += 1
            take(short)
        else:
            without_answer.append(row.place)
    if refused.count:
        on_bad(refused)
    if not kept:
        hint = "raise `sequence_length`"
        raise DsforgeError(f"no answer begins within {sequence_length} tokens", hint)
    return Counts(kept, tuple(cut), tuple(without_answer))


def samples_of(
    rows: Iterable[Row], tokenizer: Any, refused: BadRows
) -> Iterator[tuple[Row, Sample | None]]:
    """Each row with its whole sample; none where the template refuses it."""
    several = iter(rows)
    while batch := list(islice(several, BATCH)):
        chats = [row for row in batch if row.messages]
        if chats and not tokenizer.chat_template:
            hint = "use data of shape `text`, or an instruction-tuned model"
            raise DsforgeError("the tokenizer has no chat template for prompts and messages", hint)
        drafts = [_draft(row, tokenizer, refused) for row in batch]
        texts = [draft for draft in drafts if draft is not None]
        encoded = iter(_encoded(texts, tokenizer))
        for row, draft in zip(batch, drafts, strict=True):
            yield row, None if draft is None else next(encoded)


@dataclass(frozen=True, slots=True)
class _Draft:
    """The text of a row, and the ranges of characters that its answers take; none: all of it."""

    text: str
    answers: tuple[tuple[int, int], ...] | None


def _draft(row: Row, tokenizer: Any, refused: BadRows) -> _Draft | None:
    """The draft of a row; none where the template refuses it, which is then among `refused`."""
    if not row.messages:
        return _Draft(row.text, None)
    try:
        return _chat_draft(row, tokenizer)
    except TemplateError as error:  # many templates want roles in a certain order
        refused.add(Problem("row-template", f"the chat template: {error!s:.300}", place=row.place))
        return None


def _encoded(drafts: Sequence[_Draft], tokenizer: Any) -> Iterator[Sample]:
    """The sample of each draft; those of one kind are encoded together."""
    texts = [draft.text for draft in drafts if draft.answers is None]
    chats = [draft.text for draft in drafts if draft.answers is not None]
    plain = iter(tokenizer(texts)["input_ids"] if texts else ())
    found = tokenizer(chats, add_special_tokens=False, return_offsets_mapping=True) if chats else {}
    pairs = zip(found.get("input_ids", ()), found.get("offset_mapping", ()), strict=True)
    for draft in drafts:
        if draft.answers is None:
            yield _text_sample(next(plain), tokenizer.eos_token_id)
        else:
            ids, offsets = next(pairs)
            yield _chat_sample(ids, offsets, draft.answers)


def _text_sample(ids: Sequence[int], end: int | None) -> Sample:
    """Plain text and the end mark; the loss counts all of it."""
    ended = end is None or list(ids[-1:]) == [end]
    tokens = np.array(ids if ended else [*ids, end], dtype=np.int64)
    return Sample(tokens, tokens)


def _chat_sample(
    ids: Sequence[int], offsets: Sequence[tuple[int, int]], answers: Iterable[tuple[int, int]]
) -> Sample:
    """A conversation; the loss counts the tokens that begin within an answer."""
    tokens = np.array(ids, dtype=np.int64)
    starts = np.array([start for start, _ in offsets], dtype=np.int64)
    labels = np.full_like(tokens, IGNORED)
    for begin, end in answers:
        inside = (starts >= begin) & (starts < end)
        labels[inside] = tokens[inside]
    return Sample(tokens, labels)


def _chat_draft(row: Row, tokenizer: Any) -> _Draft:
    """A conversation by the chat template; the loss counts every answer in it.

    Where an answer begins and ends is found by rendering the conversation up to it: a template
    renders a prefix of a conversation as a prefix of its text, marks of the last turn excepted.
    """
    whole = _rendered(row.messages, tokenizer, prompt=False)
    answers = []
    for index, message in enumerate(row.messages):
        if message["role"] != "assistant" or index < row.given:
            continue
        begin = _common(whole, _rendered(row.messages[:index], tokenizer, prompt=True))
        last = index + 1 == len(row.messages)
        alone = whole if last else _rendered(row.messages[: index + 1], tokenizer, prompt=False)
        answers.append((begin, _end_of_answer(whole, begin, alone, message["content"].strip())))
    return _Draft(whole, tuple(answers))


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
