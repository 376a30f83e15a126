"""Models that `pretrain_gpt.py` cannot build: what Megatron's layers would give is said."""

from __future__ import annotations

import pytest
from planning import ask, cluster, workload

from dsforge import catalog
from dsforge.constraints.megatron import forward_gaps
from dsforge.planner import choose
from dsforge.planner.rivals import builder
from dsforge.units import seconds

MANY = cluster(8, 8, "h100-80gb", intra="nvlink-4", inter="infiniband-400")
RULE = "megatron-cannot-build"


def test_a_layout_that_is_clearly_faster_is_the_first_reason() -> None:
    """GPT-OSS 120B: the program that builds it, its layout, and the step that its plan has."""
    plan = choose(ask("gpt-oss-120b", MANY, workload(4096, 64)))
    named = {"program": "megatron-bridge", "context_parallel_size": 1}
    asked = ask("gpt-oss-120b", MANY, workload(4096, 64), **named)
    other = choose(asked.model_copy(update={"prefer": 1.0}))
    first = next(r for r in plan.choice.reasons if r.kind == "choice")

    assert plan.strategy.back_end == "deepspeed"
    assert first.rule == RULE
    assert "pretrain_gpt.py cannot build gpt-oss-120b: a clamped SwiGLU" in first.message
    assert "`--for megatron-bridge` selects it" in first.message
    assert other.strategy.label() in first.message
    assert seconds(other.choice.time.step_s.likely) in first.message


def test_scripts_of_ones_own_stand_where_no_program_builds_it() -> None:
    """BLOOM has no bridge: what was trained on Megatron's layers is priced, not written."""
    plan = choose(ask("bloom-176b", cluster(48, 8), workload(2048, 2048)))
    said = {reason.rule: reason.message for reason in plan.choice.reasons}[RULE]

    assert builder("bloom") == {"back_end": "megatron", "software": "others"}
    assert "`--for megatron --software others` prices it" in said


@pytest.mark.parametrize("fixed", [{"zero_stage": 3}, {"back_end": "deepspeed"}])
def test_nothing_is_said_to_who_has_chosen(fixed: dict[str, object]) -> None:
    """A ZeRO stage or an engine was asked for."""
    plan = choose(ask("gpt-oss-120b", MANY, workload(4096, 64), **fixed))

    assert RULE not in {reason.rule for reason in plan.choice.reasons}


def test_a_buildable_model_has_no_such_reason() -> None:
    """Llama is searched on both engines."""
    plan = choose(ask("llama-3.1-8b", MANY, workload()))

    assert RULE not in {reason.rule for reason in plan.choice.reasons}


def test_a_rope_scaling_is_told_by_what_differs() -> None:
    """Kimi K2 has yarn, as latent attention assumes it, but for its betas."""
    kimi, scout = catalog.model("kimi-k2"), catalog.model("llama-3.1-8b")
    assert kimi.rope_scaling is not None
    assert scout.rope_scaling is not None
    longer = scout.rope_scaling.model_copy(update={"original_max_position_embeddings": 32768})
    linear = scout.rope_scaling.model_copy(update={"kind": "linear"})

    assert forward_gaps(kimi) == ["rope scaling with betas 1 and 1 instead of 32 and 1"]
    assert forward_gaps(scout) == []
    assert forward_gaps(scout.model_copy(update={"rope_scaling": longer})) == [
        "rope scaling with an original length of 32768 instead of 8192"
    ]
    assert forward_gaps(scout.model_copy(update={"rope_scaling": linear})) == [
        "rope scaling linear instead of llama3"
    ]
