"""Runs of other people's scripts: priced where dsforge's own limits end, with wider intervals."""

from __future__ import annotations

from typing import Any

import pytest

import dsforge
from dsforge.errors import LayoutError, SpecError
from dsforge.units import Interval

NODE = {"gpu": "a100-80gb", "gpus_per_node": 8, "host_memory_gib": 1024, "cpu_cores": 96}
V100S = {"gpu": "v100-32gb", "gpus_per_node": 16, "nodes": 4, "host_memory_gib": 1500}
LORA = {"method": "lora", "lora": {"rank": 8, "alpha": 16}}

# Name: model, cluster, workload, strategy, and the limit of dsforge that the run is beyond.
BEYOND: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "adapters on an encoder-decoder": (
        *("flan-t5-xl", NODE, LORA),
        *({"zero_stage": 2}, "encoder-decoder"),
    ),
    "an indexer": (
        "deepseek-v3.2",
        {**NODE, "nodes": 64},
        {},
        {"zero_stage": 3},
        "indexed-attention",
    ),
    "encoder": ("bert-large", NODE, {"sequence_length": 512}, {"zero_stage": 1}, "decoder-only"),
    "adapters with tensor parallelism": (
        *("llama-2-7b", NODE, LORA),
        *({"tensor_parallel_size": 2, "zero_stage": 0}, "lora-tensor"),
    ),
    "Ulysses on GPT-2": (
        *("gpt2-xl", NODE, {"sequence_length": 1024}),
        *({"zero_stage": 3, "context_parallel_size": 5}, "sequence-model"),
    ),
    "hpZ with parameters in RAM": (
        *("llama-2-7b", NODE, {}),
        *(
            {"zero_stage": 3, "hpz_partition_size": 8, "offload_parameters": "cpu"},
            "hpz-with-offload",
        ),
    ),
    "tensor parallelism over nodes": (
        *("llama-2-70b", {**NODE, "nodes": 2}, {"global_batch_size": 16}),
        *({"zero_stage": 0, "tensor_parallel_size": 16, "micro_batch_size": 1}, "tensor-in-node"),
    ),
    "a sequence beyond the positions": (
        *("llama-2-7b", NODE, {"sequence_length": 16384}),
        *({"zero_stage": 3, "micro_batch_size": 1}, "sequence-length"),
    ),
}


def asked(name: str, **more: str) -> dsforge.EstimateResult:
    """The estimate of a case."""
    model, cluster, workload, strategy, _ = BEYOND[name]
    if name == "Ulysses on GPT-2":
        cluster = {**cluster, "gpus_per_node": 5}
    return dsforge.estimate(model, cluster, workload, strategy={**strategy, **more})


@pytest.mark.parametrize("name", BEYOND)
def test_limits_of_dsforge_do_not_count_for_others(name: str) -> None:
    """Refused as a run of dsforge by a limit of its own, and priced as one of others."""
    with pytest.raises(LayoutError) as refused:
        asked(name, software="dsforge")
    found = asked(name, software="others").plan.choice

    assert BEYOND[name][-1] in [problem.rule for problem in refused.value.problems]
    assert found.time.step_s.low > 0
    assert found.memory.device_bytes.low > 0


@pytest.mark.parametrize("name", BEYOND)
def test_whose_scripts_it_takes_is_said(name: str) -> None:
    """Where nobody said whose they are, the estimate is of others, and names what ours refuse."""
    with pytest.raises(LayoutError) as refused:
        asked(name, software="dsforge")
    found = asked(name).plan
    (said,) = (r.message for r in found.choice.reasons if r.rule == "estimate-others")

    assert found.choice == asked(name, software="others").plan.choice.model_copy(
        update={"reasons": found.choice.reasons}
    )
    assert refused.value.problems[0].message in said


DESCRIBED: list[dict[str, Any]] = [
    {"zero_stage": 3},
    {"offload_optimizer": "cpu"},
    {"zero_stage": 2, "micro_batch_size": 1, "loss": "chunked"},
    {"back_end": "megatron", "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
]


@pytest.mark.parametrize("strategy", DESCRIBED, ids=",".join)
def test_a_run_that_is_described_is_anybodys(strategy: dict[str, Any]) -> None:
    """Who says how a run is sharded or split, but not whose it is, may have own scripts."""
    found = dsforge.estimate("llama-2-7b", NODE, strategy=strategy).plan.choice
    theirs = dsforge.estimate(
        "llama-2-7b", NODE, strategy={**strategy, "software": "others"}
    ).plan.choice
    (said,) = (r.message for r in found.reasons if r.rule == "default-software")

    assert found.model_copy(update={"reasons": theirs.reasons}) == theirs
    assert "--software dsforge" in said


@pytest.mark.parametrize("strategy", [{}, {"micro_batch_size": 2}, {"recompute": "full"}])
def test_a_run_that_is_left_to_dsforge_is_of_dsforge(strategy: dict[str, Any]) -> None:
    """The estimate without a strategy is that of the plan."""
    found = dsforge.estimate("llama-2-7b", NODE, strategy=strategy).plan.choice
    plan = dsforge.plan("llama-2-7b", NODE, strategy=strategy).best.choice

    assert found.strategy.runs_as.software == "dsforge"
    assert found.memory == plan.memory
    assert found.time == plan.time


@pytest.mark.parametrize("question", ["micro-batch", "model"])
def test_the_most_of_a_described_run_is_anybodys(question: Any) -> None:
    """An answer holds for the same scripts as the estimate of its value."""
    job = (None, NODE) if question == "model" else ("llama-2-7b", NODE)
    fixed = {"zero_stage": 3, "recompute": "full"}
    found = dsforge.find(question, *job, strategy=fixed)
    theirs = dsforge.find(question, *job, strategy={**fixed, "software": "others"})

    assert found.answer.value == theirs.answer.value
    assert found.plan.choice.strategy.runs_as.software == "others"


@pytest.mark.parametrize(
    "strategy",
    [
        {"zero_stage": 2, "micro_batch_size": 1},
        {"zero_stage": 3, "offload_optimizer": "cpu"},
        {"back_end": "megatron", "tensor_parallel_size": 2},
    ],
    ids=["zero", "offload", "megatron"],
)
def test_what_is_not_known_widens_and_moves_nothing(strategy: dict[str, Any]) -> None:
    """Intervals of others hold those of dsforge, around the same likely value."""
    same = {"loss": "plain", "recompute": "full", "micro_batch_size": 1}
    fixed = {**same, **strategy} | ({} if "back_end" in strategy else {"buckets": "engine"})
    own, other = (
        dsforge.estimate(
            "llama-2-7b", NODE, {"global_batch_size": 8}, strategy={**fixed, "software": who}
        ).plan.choice
        for who in ("dsforge", "others")
    )

    def inside(narrow: Interval, wide: Interval) -> bool:
        return wide.low < narrow.low and wide.likely == narrow.likely and narrow.high < wide.high

    assert inside(own.time.step_s, other.time.step_s)
    assert inside(own.memory.allocated_bytes, other.memory.allocated_bytes)


def test_engines_keep_their_own_limits() -> None:
    """What DeepSpeed itself refuses is refused for everybody."""
    with pytest.raises(LayoutError) as refused:
        dsforge.estimate(
            "llama-2-7b",
            NODE,
            strategy={"zero_stage": 3, "pipeline_parallel_size": 2, "software": "others"},
        )

    assert [problem.rule for problem in refused.value.problems] == ["zero-pipeline"]


def test_files_are_not_written_for_others(tmp_path: Any) -> None:
    """`gen` says why not."""
    with pytest.raises(SpecError) as refused:
        dsforge.gen("llama-2-7b", NODE, out=tmp_path / "run", strategy={"software": "others"})

    assert [problem.rule for problem in refused.value.problems] == ["software-files"]
    assert not (tmp_path / "run").exists()


def test_checkpoints_in_ram_leave_the_card_and_reach_the_node() -> None:
    """A layer's input of each token, in 16 bits, on all ranks; copied there and back."""
    fixed = {"zero_stage": 3, "micro_batch_size": 4, "recompute": "full", "software": "others"}
    on, off = (
        dsforge.estimate(
            "llama-2-7b",
            NODE,
            {"global_batch_size": 32, "sequence_length": 4096},
            strategy={**fixed, "loss": "chunked", "offload_activations": moved},
        ).plan.choice
        for moved in (False, True)
    )
    checkpoints = 32 * 4096 * 2 * 4 * 4096  # layers, hidden size, bytes, samples, tokens

    assert on.memory.terms.activations - off.memory.terms.activations == checkpoints
    assert off.memory.host_bytes.step - on.memory.host_bytes.step == 8 * checkpoints
    assert off.time.terms.offload_s > on.time.terms.offload_s
    assert (
        dsforge.explain(
            dsforge.estimate(
                "llama-2-7b", NODE, strategy={**fixed, "offload_activations": True}
            ).plan
        ).disagreements
        == ()
    )


@pytest.mark.parametrize("who", ["dsforge", "others"])
@pytest.mark.parametrize("word", ["offload_activations", "tiled_mlp"])
def test_what_checkpoints_need_is_refused_without_them(word: str, who: str) -> None:
    """Whoever runs it; where nothing is said of recomputation, it follows."""
    fixed = {"zero_stage": 3, word: True}
    follows = dsforge.estimate("llama-2-7b", NODE, strategy={**fixed, "software": who})
    assert follows.plan.strategy.recompute == "full"
    fixed["recompute"] = "none"
    with pytest.raises(LayoutError) as refused:
        dsforge.estimate("llama-2-7b", NODE, strategy={**fixed, "software": who})
    (problem,) = refused.value.problems

    assert problem.rule == f"{word.replace('_', '-')}-recompute"


def test_cards_before_ampere_keep_scores_unless_somebody_says_otherwise() -> None:
    """FlashAttention has no kernel for them; `dsforge train` has torch's."""
    asked = {"zero_stage": 2, "micro_batch_size": 1}
    kinds = [
        dsforge.estimate(
            "gpt2-xl",
            {**NODE, "gpu": gpu},
            {"precision": "fp16", "sequence_length": 1024},
            strategy={**asked, "software": who, **more},
        ).plan.strategy.runs_as.attention
        for gpu, who, more in (
            ("v100-32gb", "others", {}),
            ("v100-32gb", "dsforge", {}),
            ("v100-32gb", "others", {"attention": "flash"}),
            ("a100-80gb", "others", {}),
        )
    ]

    assert kinds == ["eager", "flash", "flash", "flash"]
