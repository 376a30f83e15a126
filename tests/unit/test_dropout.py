"""Dropout of hidden states and attention: what its masks take, and which kinds have it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsforge
from dsforge import catalog
from dsforge.errors import SpecError
from dsforge.estimate.dropout import dropped, drops
from dsforge.execution import AttentionKind, Execution
from dsforge.huggingface import config_from_model, model_from_config
from dsforge.huggingface.architecture import ARCHITECTURES
from dsforge.reading.model import read_model
from dsforge.specs import DropoutSpec

DROPPING = ("bert-base", "roberta-large", "distilbert-base", "gpt2-medium", "t5-base", "opt-1.3b")
RATES = st.sampled_from([0.0, 0.1, 0.5])
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
    """Whoever runs transformers' modules in training mode, `dsforge train` too; not Megatron."""
    assert priced(model).time == priced(model, dropout=drops).time
    if model in ("gpt2-medium", "qwen2.5-0.5b"):
        assert priced(model, software="dsforge").strategy.runs_as.dropout is drops
        megatron = {"back_end": "megatron", "zero_stage": 1, "attention": "flash"}
        of_megatron = priced(model, software="dsforge", **megatron)
        assert not of_megatron.strategy.runs_as.dropout


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["bert-large", "gpt2-medium", "opt-1.3b", "t5-base", "starcoder2-3b"]),
    st.fixed_dictionaries({}, optional=dict.fromkeys(DropoutSpec.model_fields, RATES)),
    st.sampled_from(["eager", "flash"]),
)
def test_a_config_that_states_its_dropouts_decides(
    name: str, rates: dict[str, float], attention: AttentionKind
) -> None:
    """A place costs a mask where its probability is above 0, whatever it is above 0."""
    model = catalog.model(name)
    table = ARCHITECTURES[model.model_type or ""]
    stated = {place: rate for place, rate in rates.items() if place in table.dropout_keys}
    config = config_from_model(model)
    for place, rate in stated.items():
        config[table.dropout_keys[place][0]] = rate
    read = model_from_config(config, name)
    keys = {place: key for place, (key,) in table.dropout_keys.items()}
    of_key = {keys[place]: rate for place, rate in stated.items()}  # T5 has one key
    expected = {
        place: of_key.get(key, table.dropout_defaults.get(place, 0)) for place, key in keys.items()
    }

    assert {place: getattr(read.dropout, place) for place in keys} == expected
    run = Execution(trainer="deepspeed", dropout=drops(read), attention=attention)
    assert dropped(read, run)._asdict() == {
        place: expected.get(place, 0) > 0 for place in DropoutSpec.model_fields
    }
    assert model_from_config(config_from_model(read), name).dropout == read.dropout


@pytest.mark.parametrize("wrong", [-0.1, 1.5, "a tenth", True, [0.1]])
def test_a_dropout_that_is_no_probability_is_a_problem(wrong: object) -> None:
    """Of its own key."""
    config = {**config_from_model(catalog.model("gpt2-small")), "attn_pdrop": wrong}
    with pytest.raises(SpecError) as refused:
        model_from_config(config, "x")

    assert [problem.place for problem in refused.value.problems] == ["attn_pdrop"]


@pytest.mark.parametrize(
    "row", [r for r in catalog.rows("model") if r["model_type"] in ARCHITECTURES]
)
def test_a_row_of_the_catalog_has_the_facts_of_its_architecture(row: dict[str, Any]) -> None:
    """Dropouts of the config class, and the type of the softmax."""
    table, model = ARCHITECTURES[row["model_type"]], catalog.model(row["name"])

    assert model.dropout == DropoutSpec(**table.dropout_defaults)
    assert model.narrow_softmax == table.facts.get("narrow_softmax", False)


def test_a_size_of_a_gpt_is_a_gpt2() -> None:
    """Its facts are those of the architecture that it is built as."""
    model, _ = read_model("gpt-1.3b")
    table = ARCHITECTURES["gpt2"]

    assert model.dropout == DropoutSpec(**table.dropout_defaults)
    assert model.narrow_softmax == table.facts["narrow_softmax"]


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
    megatron = {"back_end": "megatron", "zero_stage": 1, "attention": "flash"}
    on, off = (priced("gpt2-medium", dropout=said, **megatron) for said in (True, False))

    assert (on.strategy.runs_as.dropout, off.strategy.runs_as.dropout) == (True, False)
    assert on.memory.terms.activations != off.memory.terms.activations
