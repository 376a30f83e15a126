"""Preference training: pairs of sequences, a frozen reference, a score instead of logits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import cluster, strategy, workload

import dsforge
from dsforge import catalog
from dsforge.api.inputs import load_request
from dsforge.errors import DsforgeError, SpecError
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.flops import head_flops, step_flops
from dsforge.estimate.memory import MemoryEstimate, estimate_memory
from dsforge.estimate.params import parameters
from dsforge.estimate.time import TimeEstimate, estimate_time
from dsforge.job import PreferenceSettings
from dsforge.reading.job import read_job
from dsforge.specs import LoraSpec, ModelSpec, Workload
from dsforge.strategy import EXECUTIONS, Strategy

MODEL = catalog.model("llama-3.2-1b")
LLAMA = catalog.model("llama-2-7b")
PLAIN = EXECUTIONS["deepspeed"].model_copy(update={"loss": "plain", "software": "others"})
NODE = {"gpu": "a100-80gb", "gpus_per_node": 8}
STAGES = st.sampled_from((0, 1, 2, 3))
RECOMPUTE = st.sampled_from(("none", "full"))
ADAPTERS = {"method": "lora", "lora": LoraSpec()}


def how(stage: int, *, recompute: str = "none", micro: int = 1, batch: int = 64) -> Strategy:
    """A strategy of eight ranks with whole logits."""
    change: dict[str, Any] = {"zero_stage": stage, "recompute": recompute, "execution": PLAIN}
    return strategy(8, batch=batch, micro_batch_size=micro, **change)


def memory_of(work: Workload, on: Strategy, model: ModelSpec = LLAMA) -> MemoryEstimate:
    """Memory on one node."""
    return estimate_memory(model, cluster(), work, on)


def time_of(work: Workload, on: Strategy, model: ModelSpec = LLAMA) -> TimeEstimate:
    """Time on one node."""
    return estimate_time(model, cluster(), work, on)


@given(stage=STAGES, recompute=RECOMPUTE, sequence=st.sampled_from((512, 2048)))
def test_a_pair_costs_what_two_sequences_cost(stage: int, recompute: str, sequence: int) -> None:
    """Without a reference, 32 pairs of micro batch 1 are 64 sequences of micro batch 2."""
    pairs, rows = workload(sequence, 32, preference="orpo"), workload(sequence, 64)
    one = how(stage, recompute=recompute, batch=32)
    two = how(stage, recompute=recompute, micro=2, batch=64)

    assert memory_of(pairs, one) == memory_of(rows, two)
    assert time_of(pairs, one) == time_of(rows, two)
    assert pairs.tokens_per_step == rows.tokens_per_step


@given(stage=STAGES, recompute=RECOMPUTE)
def test_a_reference_adds_its_weights_and_a_forward_pass(stage: int, recompute: str) -> None:
    """Whole on each rank below stage 3, a share of it there; precomputed it adds nothing."""
    on = how(stage, recompute=recompute)
    every = {name: workload(preference="dpo", reference=name) for name in ("model", "precomputed")}
    alone = workload(preference="orpo")
    kept = [
        family_costs(LLAMA, cluster(), work, on).fullest.kept.weights
        for work in (every["model"], alone)
    ]
    shares = 8 if stage == 3 else 1

    assert kept[0] - kept[1] == pytest.approx(2 * parameters(LLAMA) / shares, rel=1e-6)
    assert memory_of(every["precomputed"], on) == memory_of(alone, on)
    assert time_of(every["precomputed"], on) == time_of(alone, on)
    assert time_of(every["model"], on).step_s.likely > time_of(alone, on).step_s.likely


def test_a_reference_is_one_of_four_passes() -> None:
    """Forward and backward are three, so that DPO computes a third more than its policy."""
    compared, alone = workload(preference="dpo"), workload(preference="orpo")
    compute = [time_of(work, how(2)).terms.compute_s for work in (compared, alone)]

    assert step_flops(LLAMA, compared) == pytest.approx(4 / 3 * step_flops(LLAMA, alone))
    assert 1.2 < compute[0] / compute[1] < 4 / 3


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_adapters_need_no_second_model(stage: int) -> None:
    """The base is the reference with its adapters off, unless another is asked for."""
    usual, second, alone = (
        workload(**ADAPTERS, **how_compared)
        for how_compared in (
            {"preference": "dpo"},
            {"preference": "dpo", "reference": "model"},
            {"preference": "orpo"},
        )
    )
    memory = [memory_of(work, how(stage)).terms.weights for work in (usual, second, alone)]

    assert usual.compares_with == "adapters_off"
    assert memory[0] == memory[2] < memory[1]
    assert time_of(usual, how(stage)).step_s.likely > time_of(alone, how(stage)).step_s.likely


def test_a_reward_model_has_no_logits_and_no_output_head() -> None:
    """Neither memory nor time of the head; its parameters are those of the layers and words."""
    work = {"sequence_length": 2048, "global_batch_size": 64, "preference": "reward"}
    fixed = {"zero_stage": 2, "micro_batch_size": 4}
    estimate = dsforge.estimate("llama-2-7b", NODE, work, strategy=fixed)
    tuned = dsforge.estimate("llama-2-7b", NODE, {**work, "preference": "orpo"}, strategy=fixed)
    head = LLAMA.vocab_size * LLAMA.hidden_size

    assert tuned.plan.parameters - estimate.plan.parameters == head
    assert estimate.plan.choice.memory.terms.logits == 0 < tuned.plan.choice.memory.terms.logits
    assert estimate.plan.choice.time.step_s.likely < tuned.plan.choice.time.step_s.likely
    scores = workload(preference="reward")
    less = 3 * head_flops(LLAMA) * scores.tokens_per_step
    assert step_flops(LLAMA, workload(preference="orpo")) - step_flops(LLAMA, scores) == less


@pytest.mark.parametrize(
    "kind",
    [{"preference": "dpo"}, {"preference": "dpo", "reference": "model"}, {"preference": "orpo"}],
)
def test_what_is_not_trained_here_is_priced_and_not_written(
    kind: dict[str, str], tmp_path: Any
) -> None:
    """Estimates say whose trainer they are of, and `gen` refuses."""
    work = {**kind, "sequence_length": 1024, "global_batch_size": 16}
    plan = dsforge.plan("llama-3.2-1b", NODE, work).best

    assert plan.strategy.runs_as.software == "others"
    assert plan.strategy.runs_as.loss == "plain"
    assert {"preference-software", "preference-loss"} <= {r.rule for r in plan.choice.reasons}
    with pytest.raises(SpecError):
        dsforge.gen("llama-3.2-1b", NODE, work, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ({"reference": "precomputed"}, "precomputed"),
        ({"method": "lora"}, "adapters_off"),
        ({"method": "lora", "reference": "precomputed"}, "precomputed"),
    ],
)
def test_dpo_without_a_second_model_is_written(
    kind: dict[str, str], written: str, tmp_path: Any
) -> None:
    """The train.yaml asks for what was priced; rows without an answer of each kind are refused."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n', encoding="utf-8")
    work = {"preference": "dpo", "sequence_length": 1024, "global_batch_size": 16, **kind}
    work["data"] = {"train": str(rows)}
    made = dsforge.gen("llama-3.2-1b", NODE, work, out=tmp_path / "run").plan
    job = read_job(tmp_path / "run/train.yaml")

    assert made.strategy.runs_as.software == "dsforge"
    assert made.strategy.layout.model_ranks == 1
    assert job.preference == PreferenceSettings(reference=written)
    assert job.loss == "plain"
    rows.write_text('{"prompt": "a", "completion": "b"}\n', encoding="utf-8")
    with pytest.raises(SpecError) as refused:
        dsforge.gen("llama-3.2-1b", NODE, work, out=tmp_path / "other")
    assert {problem.rule for problem in refused.value.problems} == {"row-pair"}


@pytest.mark.parametrize(
    ("work", "fixed", "rule"),
    [
        ({"preference": "dpo"}, {"software": "dsforge"}, "preference-training"),
        ({"preference": "dpo"}, {"back_end": "megatron"}, "preference-engine"),
        ({"preference": "orpo"}, {"pipeline_parallel_size": 2}, "preference-engine"),
        ({"preference": "orpo", "reference": "model"}, {}, "reference-without-dpo"),
        ({"preference": "dpo", "reference": "adapters_off"}, {}, "reference-without-adapters"),
    ],
)
def test_what_no_trainer_has_is_refused(
    work: dict[str, str], fixed: dict[str, Any], rule: str
) -> None:
    """With the rule that names it."""
    with pytest.raises(DsforgeError) as refused:
        dsforge.estimate("llama-3.2-1b", NODE, work, strategy=fixed)
    assert rule in str(refused.value) or rule in {p.rule for p in refused.value.problems}


@given(
    document=st.integers(1, 8192),
    more=st.integers(0, 8192),
    attention=st.sampled_from(("flash", "masked", "eager")),
)
def test_shorter_documents_are_never_slower_and_need_the_same_memory(
    document: int, more: int, attention: str
) -> None:
    """Only variable-length kernels skip pairs of other documents."""
    run = PLAIN.model_copy(update={"attention": attention})
    on = how(2).model_copy(update={"execution": run})
    whole, short, longer = (
        workload(4096, document_length=length) for length in (None, document, document + more)
    )
    steps = [time_of(work, on, MODEL).step_s.likely for work in (short, longer, whole)]

    assert steps == sorted(steps)
    assert memory_of(short, on, MODEL) == memory_of(whole, on, MODEL)
    if attention != "flash" or document >= 4096:
        assert steps[0] == steps[2]
    else:
        assert steps[0] < steps[2]


@pytest.mark.parametrize("length", [2048, 4096, 8192, 131072])
def test_a_sequence_beyond_the_positions_of_a_model_says_what_others_change(length: int) -> None:
    """Dsforge's own scripts refuse it; software of others stretches the rotary frequencies."""
    work = {"sequence_length": length, "global_batch_size": 8}
    asked = load_request("llama-2-7b", NODE, work, strategy={"software": "others"})
    said = [r.message for r in asked.reasons if r.rule == "warning-positions"]

    assert len(said) == (length > LLAMA.max_position_embeddings)
    assert all(f"{length:,}" in text and "rope_scaling" in text for text in said)
    own = load_request("llama-2-7b", NODE, work)
    assert "warning-positions" not in {reason.rule for reason in own.reasons}
