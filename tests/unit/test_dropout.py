"""Dropout of hidden states and attention: what its masks take, and which kinds have it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsforge

DROPPING = ("bert-base", "roberta-large", "distilbert-base", "gpt2-medium", "t5-base")
PLAIN = ("modernbert-base", "pythia-160m", "bloom-560m", "qwen2.5-0.5b")


def priced(model: str, precision: str = "fp16", micro: int = 2, **fixed: Any) -> Any:
    """The choice of one way to run a model on one card, in scripts of others."""
    asked = {
        "software": "others",
        "zero_stage": 0,
        "recompute": "none",
        "attention": "eager",
        "micro_batch_size": micro,
        **fixed,
    }
    work = {"global_batch_size": micro, "sequence_length": 512, "precision": precision}
    return dsforge.estimate(model, {"gpu": "a100-80gb"}, work, strategy=asked).plan.choice


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(DROPPING + PLAIN),
    st.sampled_from(["fp32", "fp16"]),
    st.sampled_from([1, 4]),
    st.sampled_from(["ddp", "deepspeed", "fsdp"]),
    st.sampled_from(["eager", "flash"]),
)
def test_it_takes_time_and_memory_and_states_stay(
    model: str, precision: str, micro: int, trainer: str, attention: str
) -> None:
    """At any size and type, whoever trains."""
    fixed = {"trainer": trainer, "attention": attention}
    on, off = (priced(model, precision, micro, dropout=said, **fixed) for said in (True, False))

    assert on.time.step_s.likely >= off.time.step_s.likely
    assert on.memory.terms.activations >= off.memory.terms.activations
    assert on.memory.terms.weights == off.memory.terms.weights


@pytest.mark.parametrize(
    ("model", "drops"), [*((m, True) for m in DROPPING), *((m, False) for m in PLAIN)]
)
def test_what_nobody_says_is_the_default_of_the_kind(model: str, drops: bool) -> None:
    """Config classes of transformers; `dsforge train` is as it was."""
    assert priced(model).time == priced(model, dropout=drops).time
    ours = priced(model, software="dsforge") if model in ("gpt2-medium", "qwen2.5-0.5b") else None
    assert ours is None or not ours.strategy.runs_as.dropout


def test_masks_of_bert_in_float32() -> None:
    """24 layers: a mask of 1 byte and a copy of 4 for 16 x 512 scores, and two masks of 1,024."""
    micro = 8
    on, off = (priced("bert-large", "fp32", micro, dropout=said) for said in (True, False))
    added = 24 * micro * 512 * (16 * 512 * 5 + 2 * 1024)

    assert on.memory.terms.activations - off.memory.terms.activations == pytest.approx(
        added, rel=0.02
    )


def test_megatron_has_the_dropout_that_is_said() -> None:
    """Its rows with unfused attention have it; nobody's word is lost."""
    megatron = {"back_end": "megatron", "zero_stage": 1}
    on, off = (priced("gpt2-medium", dropout=said, **megatron) for said in (True, False))

    assert (on.strategy.runs_as.dropout, off.strategy.runs_as.dropout) == (True, False)
    assert on.memory.terms.activations != off.memory.terms.activations
