"""Experts that are modules of their own, as in transformers 4, or parts of one stack."""

from __future__ import annotations

from typing import Any

import pytest

import dsforge
from dsforge.engines.deepspeed import EXPERT_MODULES, HOOK_S, LAUNCH_S
from dsforge.errors import DsforgeError
from dsforge.estimate.compute import EXPERT_LAUNCHES
from dsforge.estimate.quantised import NF4_BYTES

LAYERS, EXPERTS = 48, 128  # of Qwen3-30B-A3B
IN_EXPERTS = LAYERS * EXPERTS * 3 * 2048 * 768
PASSES = 4  # forward twice, backward as two


def priced(apart: bool, **asked: Any) -> Any:
    """Qwen3-30B-A3B on 16 cards, as scripts of others run it."""
    work = {"global_batch_size": 16, "sequence_length": 8192, **asked.pop("work", {})}
    cluster = {"gpu": "a800-80gb", "nodes": asked.pop("nodes", 2)}
    cluster |= {"gpus_per_node": asked.pop("cards", 8), "inter_node": "infiniband-200"}
    strategy = {"software": "others", "micro_batch_size": 1, "recompute": "full", **asked}
    strategy |= {"expert_modules": apart}
    return dsforge.estimate("qwen3-30b-a3b", cluster, work, strategy=strategy).plan.choice


@pytest.mark.parametrize(("stage", "hooks"), [(2, 0), (3, EXPERT_MODULES)])
def test_the_host_goes_through_all_experts(stage: int, hooks: int) -> None:
    """Under stage 3 it fetches each module of each expert; ms-swift reports 91 s a step."""
    each_s = EXPERT_LAUNCHES * LAUNCH_S + hooks * HOOK_S
    loop_s = LAYERS * EXPERTS * PASSES * each_s
    found = priced(True, zero_stage=stage).time.step_s.likely

    assert loop_s < found < 1.4 * loop_s + priced(False, zero_stage=stage).time.step_s.likely


def test_linear_experts_are_quantised_and_stacks_are_not() -> None:
    """Bitsandbytes replaces linear modules: 29 of 30.5 billion weights are in experts."""
    alone = {"nodes": 1, "cards": 1, "zero_stage": 0, "work": {"method": "qlora"}}
    apart, stacked = (priced(x, **alone).memory.terms.weights for x in (True, False))

    assert stacked - apart == pytest.approx((2 - float(NF4_BYTES)) * IN_EXPERTS, rel=1e-6)


def test_megatron_has_one_stack() -> None:
    """Its grouped products are no modules, so the word is refused."""
    with pytest.raises(DsforgeError) as refused:
        priced(True, back_end="megatron", pipeline_parallel_size=2, expert_parallel_size=8)

    assert "expert_modules (=true) has no meaning" in str(getattr(refused.value, "problems", ""))
