"""No word of `strategy` is dropped in silence: each engine runs it, or it is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import dsforge
from dsforge.engines import BY_NAME, ENGINES
from dsforge.errors import DsforgeError, LayoutError
from dsforge.strategy import Buckets, Constraints

SIZES = {name: 10**6 for name in Buckets.model_fields if name != "overlap_comm"}
BUCKETS = Buckets(**SIZES, overlap_comm=True)
# Every word with a value that is nobody's default.
SAID: dict[str, Any] = {
    "micro_batch_size": 2,
    "zero_stage": 1,
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "context_parallel_size": 2,
    "expert_parallel_size": 2,
    "hpz_partition_size": 2,
    "quantized_weights": True,
    "quantized_gradients": True,
    "gradient_type": "fp32",
    "communication_type": "fp32",
    "offload_optimizer": "cpu",
    "offload_parameters": "cpu",
    "offload_ratio": 0.5,
    "recompute": "full",
    "offload_activations": True,
    "tiled_mlp": True,
    "loss": "chunked",
    "attention": "masked",
    "dropout": True,
    "bf16_states": True,
    "optimizer_in_backward": True,
    "loads_whole": True,
    "no_sync": True,
    "kernels": "compiled",
    "expert_dispatch": "flex",
    "overlaps_experts": True,
    "overlaps_tensor": True,
    "expert_modules": True,
    "virtual_stages": 2,
    "buckets": BUCKETS.model_dump(),
}
VALUES = {"buckets": BUCKETS}
NEEDED = {  # what a word is said with, where it means something
    "bf16_states": {"zero_stage": 1},
    "offload_parameters": {"zero_stage": 3},
    "hpz_partition_size": {"zero_stage": 3},
    "offload_activations": {"recompute": "full"},
    "tiled_mlp": {"recompute": "full"},
    "optimizer_in_backward": {"micro_batch_size": 2},
    "virtual_stages": {"pipeline_parallel_size": 2},
}
ENGINES_ASKED: dict[str, dict[str, Any]] = {
    name: {"back_end": name} if engine.back_end == name != "deepspeed" else {"trainer": name}
    for name, engine in BY_NAME.items()
    if name != "nanotron"  # known by published runs alone
}
WHO = ("back_end", "trainer", "program", "software")


def appraised(engine: str, model: str = "llama-3.2-1b", **said: Any) -> Any:
    """The strategy of scripts of others on an engine."""
    asked = {"software": "others", **ENGINES_ASKED[engine], **said}
    work = {"global_batch_size": 32, "sequence_length": 2048}
    cluster = {"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 2}
    return dsforge.estimate(model, cluster, work, strategy=asked).plan.strategy


def carried(strategy: Any, word: str) -> object:
    """What a strategy has of a word."""
    run = strategy.runs_as
    if word == "bf16_states":
        return not run.master_weights
    name = {
        "gradient_type": "gradients",
        "communication_type": "reduced",
        "optimizer_in_backward": "fused_backward",
    }.get(word, word)
    place = next(part for part in (strategy, strategy.layout, run) if hasattr(part, name))
    return getattr(place, name)


def test_every_word_is_asked() -> None:
    """A new word of `strategy` gets its line above, and its engines."""
    assert {*SAID, *WHO} == set(Constraints.model_fields)
    assert frozenset[str]().union(*(engine.words for engine in ENGINES)) <= {*SAID, "trainer"}


@pytest.mark.parametrize("engine", ENGINES_ASKED)
@pytest.mark.parametrize("word", SAID)
def test_a_word_is_run_or_refused(word: str, engine: str) -> None:
    """By each engine; a refusal names the word or what it stands for."""
    said, rest = SAID[word], NEEDED.get(word, {})
    try:
        found = appraised(engine, **{**rest, word: said})
    except DsforgeError as error:
        rules = [problem.rule for problem in getattr(error, "problems", ())]
    else:
        rules = ["run"] * (carried(found, word) == VALUES.get(word, SAID[word]))
    assert rules


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        (name, word)
        for name in ENGINES_ASKED
        for word in SAID
        if any(word in one.words for one in ENGINES) and word not in BY_NAME[name].words
    ],
)
def test_a_word_of_other_engines_is_one_problem(engine: str, word: str) -> None:
    """Thing, value, rule and a way out, once, whatever it is said with."""
    if (engine, word) == ("ddp", "gradient_type"):
        assert carried(appraised("ddp", gradient_type="fp32"), word) == "fp32"  # as it does
        return
    with pytest.raises(LayoutError) as refused:
        appraised(engine, **{word: SAID[word]})

    (problem,) = [one for one in refused.value.problems if one.rule == "engine-words"]
    assert f"{word} (=" in problem.message
    assert f"no meaning for {BY_NAME[engine].label}" in problem.message
    assert "requires" in problem.hint


@pytest.mark.parametrize("trainer", ["ddp", "deepspeed", "fsdp", "megatron-fsdp", "torchtune"])
def test_a_trainer_of_other_files_contradicts_megatron(trainer: str) -> None:
    """It is one message, with all words that the back end has not."""
    with pytest.raises(LayoutError) as refused:
        appraised("megatron", trainer=trainer, bf16_states=True)

    (problem,) = refused.value.problems
    assert problem.message == (
        f"bf16_states (=true), trainer (={trainer}) have no meaning for Megatron-LM"
    )
    assert "bf16_states requires trainer ddp, deepspeed, fsdp or torchtune" in problem.hint
    assert "trainer requires back_end deepspeed" in problem.hint


@pytest.mark.parametrize("engine", ENGINES_ASKED)
def test_what_an_engine_does_anyway_may_be_said(engine: str) -> None:
    """`no`, 1, and its own kernels ask for nothing."""
    usual = BY_NAME[engine].execution
    found = appraised(
        engine,
        no_sync=False,
        bf16_states=False,
        hpz_partition_size=1,
        virtual_stages=1,
        expert_dispatch="alltoall",
        attention=usual.attention,
        kernels=usual.kernels,
        gradient_type=usual.gradients,
    )

    assert found.runs_as.kernels == usual.kernels
    assert found.runs_as.trainer == engine
