"""What a plan on Megatron-LM says of the weights: a converter that exists, or that none does."""

from __future__ import annotations

import pytest
from planning import ask, cluster, strategy, workload
from sampled import each

from dsforge import catalog
from dsforge.constraints import broken, case_of
from dsforge.constraints.megatron import pretrain_gpt
from dsforge.huggingface.architecture import ARCHITECTURES
from dsforge.plan import Plan, Reason
from dsforge.planner import choose, price
from dsforge.planner.megatron_advice import conversion_reason
from dsforge.programs.converters import BRIDGE, CONVERTERS, MEGATRON_LM, converter_of
from dsforge.render import render

ON = cluster(1, 8, "h100-80gb", intra="nvlink-4")
CONVERT = "tools/checkpoint/convert.py"


def _said(name: str) -> Reason | None:
    """The reason of a fine-tuning on Megatron-LM, whether it fits or not."""
    request = ask(name, ON, workload(epochs=1.0), back_end="megatron")
    on_megatron = strategy(4, 2, back_end="megatron")
    priced = price(request.model, ON, request.workload, on_megatron)
    found = conversion_reason(request, priced)
    return None if found is None else found.reason


def test_every_model_is_told_of_its_own_converter() -> None:
    """Of all models of the catalog: no other tool, none that does not read their weights."""
    seen = set()
    for name in catalog.model_names():
        if catalog.model(name).kind != "decoder":
            continue
        model, said = catalog.model(name), _said(name)
        if pretrain_gpt(case_of(model, ON, workload(), strategy(4, 2, back_end="megatron"))):
            assert said is None, name
            continue
        assert said is not None, name
        tool = converter_of(model.model_type)
        seen.add(tool)
        assert (CONVERT in said.message) == (model.model_type == "mixtral"), name
        assert (tool.tool if tool else "nothing converts the weights") in said.message, name
        assert ("--for megatron-bridge" in said.message) == (tool is BRIDGE), name

    assert seen == {None, *CONVERTERS}


def test_each_kind_has_one_converter_and_can_be_read() -> None:
    """The table names `model_type`s that dsforge knows, each once."""
    kinds = [kind for one in CONVERTERS for kind in one.kinds]

    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= set(ARCHITECTURES)
    assert all(one.source for one in CONVERTERS)


@pytest.mark.parametrize("name", each(8, catalog.model_names()))
def test_megatron_bridge_builds_what_it_has_a_bridge_for(name: str) -> None:
    """Its script loads a model by its bridge: without one there is nothing to write."""
    model = catalog.model(name)
    case = case_of(model, ON, workload(), strategy(8))
    case = case._replace(program="megatron-bridge", trainer="megatron", back_end="megatron")
    said = {problem.rule for problem in broken(case)}

    has = model.model_type is None or model.model_type in BRIDGE.kinds
    assert ("program-model" not in said) == has


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("phi-4", "nothing converts those of phi-4"),
        ("llama-3.1-8b", "AutoBridge.import_ckpt"),
        ("mixtral-8x7b", MEGATRON_LM.tool),
    ],
)
def test_plan_and_script_name_what_starts_from_trained_weights(name: str, told: str) -> None:
    """PLAN.md says what writes the checkpoint, and the script takes it."""
    plan: Plan = choose(ask(name, cluster(2, 8, "h100-80gb"), workload(), back_end="megatron"))
    files = {file.path: file.text for file in render(plan)}

    assert told in files["PLAN.md"]
    assert (CONVERT in files["PLAN.md"]) == (name == "mixtral-8x7b")
    assert "--pretrained-checkpoint" in files["megatron/pretrain.sh"]
