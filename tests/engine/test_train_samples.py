"""Rows -> tokens and labels with a real tokenizer and chat template; Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import DsforgeError, SpecError
from dsforge.train.data.rows import Row, read_rows
from dsforge.train.data.samples import IGNORED, Sample
from dsforge.train.data.tokenization import Counts, tokenize

pytestmark = pytest.mark.engine

PROMPT_ONLY_MARK = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}"
    "<think></think>{% endif %}{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"


@pytest.fixture
def tokenizer(tiny_llama: Path) -> Any:
    """The tokenizer of the tiny model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_llama)


def chat(*turns: str, first: str = "user") -> Row:
    """A conversation of alternating turns."""
    roles = ("user", "assistant") if first == "user" else ("system", "user", "assistant")
    return Row(
        "here",
        messages=tuple(
            {"role": roles[i % len(roles)], "content": text} for i, text in enumerate(turns)
        ),
    )


def taken(rows: list[Row], tokenizer: Any, sequence_length: int) -> tuple[list[Sample], Counts]:
    """The samples of rows, and their counts."""
    samples: list[Sample] = []
    counts = tokenize(rows, tokenizer, sequence_length, take=samples.append)
    return samples, counts


def counted(sample: Sample, tokenizer: Any) -> str:
    """The text of the tokens that the loss counts."""
    return str(tokenizer.decode(sample.labels[sample.labels != IGNORED]))


def test_the_loss_counts_the_answer_and_its_end_mark(tokenizer: Any) -> None:
    """Question and role marks are read, not learnt; the end mark is learnt."""
    (sample,), _ = taken([chat("What is it?", "A thing.")], tokenizer, 96)

    assert counted(sample, tokenizer) == "A thing.</s>"
    assert tokenizer.decode(sample.tokens) == "<|user|>What is it?</s><|assistant|>A thing.</s>"


def test_every_answer_of_a_conversation_counts(tokenizer: Any) -> None:
    """All assistant turns are learnt, no user turn is."""
    (sample,), _ = taken([chat("a?", "one.", "b?", "two.")], tokenizer, 96)

    assert counted(sample, tokenizer) == "one.</s>two.</s>"


def test_marks_of_the_last_turn_do_not_hide_the_answer(tokenizer: Any) -> None:
    """Templates that treat the last turn differently still give the whole answer."""
    tokenizer.chat_template = PROMPT_ONLY_MARK
    (sample,), _ = taken([chat("a?", "one.", "b?", "two.")], tokenizer, 96)

    assert counted(sample, tokenizer).endswith("two.</s>")
    assert "one.</s>" in counted(sample, tokenizer)
    assert "b?" not in counted(sample, tokenizer)


def test_plain_text_counts_as_a_whole_and_ends(tokenizer: Any) -> None:
    """All tokens are targets, one end mark follows, also where the text has one already."""
    (once, twice), _ = taken([Row("", text="abc"), Row("", text="abc</s>")], tokenizer, 96)

    assert counted(once, tokenizer) == counted(twice, tokenizer) == "abc</s>"


def test_long_rows_are_cut_and_those_without_an_answer_left_out(tokenizer: Any) -> None:
    """Both are counted, so that the user hears of them."""
    rows = [chat("a?", "b."), chat("a?", "b. " * 60), chat("why? " * 60, "b.")]
    samples, counts = taken(rows, tokenizer, 32)

    assert (len(samples), counts) == (
        2,
        Counts(kept=2, cut=("here", "here"), without_answer=("here",)),
    )
    assert max(len(sample.tokens) for sample in samples) == 32


def test_nothing_left_is_an_error(tokenizer: Any) -> None:
    """A sequence length shorter than every question is refused."""
    with pytest.raises(DsforgeError, match="no answer begins within 8 tokens"):
        taken([chat("why? " * 60, "b.")], tokenizer, 8)


def test_a_chat_needs_a_template(tokenizer: Any) -> None:
    """A base model without a chat template is refused with the way out."""
    tokenizer.chat_template = None

    with pytest.raises(DsforgeError, match="no chat template"):
        taken([chat("a?", "b.")], tokenizer, 96)


def test_rows_that_the_template_refuses_are_named_together(tokenizer: Any) -> None:
    """Some templates know no system role: each such row is a problem with its place."""
    tokenizer.chat_template = REFUSING + tokenizer.chat_template
    rows = [chat("be short", "a?", "b.", first="system"), chat("a?", "b.")] * 2
    with pytest.raises(SpecError) as raised:
        taken(rows, tokenizer, 96)

    assert [p.message for p in raised.value.problems] == ["the chat template: no system role"] * 2


def test_parquet_gives_the_rows_of_jsonl(tmp_path: Path) -> None:
    """Text, prompts and messages come through Parquet with the number of their row."""
    import pyarrow as pa
    from pyarrow import parquet

    messages = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b."}]
    path = tmp_path / "data.parquet"
    parquet.write_table(pa.Table.from_pylist([{"messages": messages}] * 3), path)
    rows = list(read_rows(path, "auto"))

    assert [row.messages for row in rows] == [tuple(messages)] * 3
    assert rows[2].place == f"{path}: row 3"


def test_bad_parquet_rows_and_files_are_named(tmp_path: Path) -> None:
    """An empty cell is a bad row; a file that is no Parquet is said to be none."""
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "data.parquet"
    parquet.write_table(pa.table({"text": ["fine", None]}), path)
    with pytest.raises(SpecError) as bad_row:
        read_rows(path, "auto")
    path.write_text("text")
    with pytest.raises(SpecError) as bad_file:
        read_rows(path, "auto")

    assert bad_row.value.problems[0].place == f"{path}: row 2"
    assert [problem.rule for problem in bad_file.value.problems] == ["data-parquet"]
