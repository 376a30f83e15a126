"""QLoRA of a mixture of experts: what stays in 16 bits is said, with its size."""

from __future__ import annotations

import pytest
from planning import ask, cluster, lora_workload, qlora_workload
from sampled import each

from dsforge import catalog
from dsforge.errors import DoesNotFitError
from dsforge.estimate.params import parameters
from dsforge.estimate.quantised import quantised_elements
from dsforge.plan import Plan
from dsforge.planner import appraise, choose
from dsforge.units import count

RULE = "experts-not-quantised"
DECODERS = [name for name in catalog.model_names() if catalog.model(name).kind == "decoder"]


def _rules(plan: Plan) -> dict[str, str]:
    return {reason.rule: reason.message for reason in plan.choice.reasons}


@pytest.mark.parametrize("name", each(6, DECODERS))
def test_every_mixture_of_experts_says_what_stays(name: str) -> None:
    """Of all models, those with routed experts: how many of how many parameters."""
    model = catalog.model(name)
    said = _rules(appraise(ask(name, cluster(), qlora_workload(), software="others")))

    assert (RULE in said) == (model.moe is not None)
    if model.moe is not None:
        stacked = quantised_elements(model, expert_modules=True) - quantised_elements(model)
        assert f"({count(stacked)} of {count(parameters(model))} parameters)" in said[RULE]
        assert "stay in 16 bits" in said[RULE]


def test_modules_and_adapters_on_whole_weights_have_none() -> None:
    """Experts that are modules are quantised, and LoRA quantises nothing."""
    on, name = cluster(), "mixtral-8x7b"
    apart = appraise(ask(name, on, qlora_workload(), software="others", expert_modules=True))

    assert RULE not in _rules(apart)
    assert RULE not in _rules(choose(ask(name, on, lora_workload())))


def test_who_has_too_little_memory_learns_it_too() -> None:
    """Mixtral on one card of 40 GB: an expert expects 24 GiB of weights, and 85 are needed."""
    one = cluster(1, 1, "a100-40gb", host_memory_bytes=79 << 30)
    with pytest.raises(DoesNotFitError) as found:
        choose(ask("mixtral-8x7b", one, qlora_workload(4096, 64)))

    assert "routed experts (45.1 B of 46.7 B parameters) stay in 16 bits" in str(found.value.hint)
