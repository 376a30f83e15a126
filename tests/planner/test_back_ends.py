"""Trained weights and rows of data keep Megatron-LM out, unless it is asked for.

`pretrain_gpt.py` starts from random weights and reads token files that its own tool has written, so
a plan that continues from a checkpoint must never choose it because it is faster.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from drawing import draw_request
from planning import ask, cluster, workload
from sampled import each

from dsforge.cli.main import app
from dsforge.constraints.inputs import OPTIMIZERS
from dsforge.errors import DsforgeError, LayoutError
from dsforge.plan import Plan, Request
from dsforge.planner import choose
from dsforge.planner.back_ends import BACK_ENDS, fine_tuned, wanted
from dsforge.programs.converters import converter_of
from dsforge.render.megatron import OPTIMIZERS as MEGATRON_NAMES
from dsforge.specs import DataSpec
from dsforge.specs.workload import Optimizer
from dsforge.strategy import Constraints

SEED, ROUNDS = 5, 12


def by_data(request: Request) -> Request:
    """The request with rows of its own."""
    return _of_job(request, data=DataSpec(train="data/rows.jsonl"))


def by_epochs(request: Request) -> Request:
    """The request with a length in passes over data."""
    return _of_job(request, tokens=None, epochs=2.0)


def by_folder(request: Request) -> Request:
    """The request for weights in a folder."""
    model = request.model.model_copy(update={"path": "/models/mine"})
    return _of_job(request, tokens=None).model_copy(update={"model": model})


def by_name(request: Request) -> Request:
    """The request for weights that were tuned."""
    model = request.model.model_copy(update={"name": "someone/Model-7B-Instruct"})
    return request.model_copy(update={"model": model})


WAYS = (by_data, by_epochs, by_folder, by_name)


def _of_job(request: Request, **fields: Any) -> Request:
    work = request.workload.model_copy(update=fields)
    return request.model_copy(update={"workload": work})


def _planned(request: Request) -> Plan | None:
    """The plan; none where nothing is legal or fits."""
    try:
        return choose(request)
    except DsforgeError:
        return None


def _rules(plan: Plan) -> dict[str, str]:
    return {reason.rule: reason.message for reason in plan.choice.reasons}


@pytest.mark.parametrize("way", each(2, WAYS))
def test_no_trained_weights_are_planned_on_megatron(way: Callable[[Request], Request]) -> None:
    """Of random requests; where it is faster, a reason says so and how to ask for it."""
    draw, left_out = Random(SEED), 0  # noqa: S311 - which requests, not which key
    for _ in range(ROUNDS):
        request = way(draw_request(draw))
        if request.constraints.back_end is not None:
            continue
        plan = _planned(request)
        if plan is None:
            continue
        assert plan.strategy.back_end == "deepspeed", plan.strategy.label()
        said = _rules(plan).get("megatron-left-out", "")
        left_out += "`--for megatron`" in said

    assert left_out


@pytest.mark.parametrize("way", each(3, WAYS))
def test_who_asks_for_megatron_is_told_what_to_convert(way: Callable[[Request], Request]) -> None:
    """The plan names the converter, and the tool for data where rows are named."""
    draw, seen = Random(SEED), 0  # noqa: S311 - which requests, not which key
    for _ in range(ROUNDS):
        drawn = draw_request(draw)
        fixed = drawn.constraints.model_copy(update={"back_end": "megatron"})
        request = way(drawn.model_copy(update={"constraints": fixed}))
        plan = _planned(request)
        if plan is None:
            continue
        seen += 1
        said = _rules(plan)["megatron-needs-conversion"]
        tool = converter_of(request.model.model_type)
        assert (tool.tool if tool else "nothing converts the weights") in said
        assert ("tools/preprocess_data.py" in said) == (request.workload.data is not None)

    assert seen


def test_pretraining_searches_both() -> None:
    """A token budget without data trains from scratch, also where a folder lends the shape."""
    draw = Random(SEED)  # noqa: S311 - which requests, not which key
    for _ in range(ROUNDS):
        drawn = draw_request(draw)
        if drawn.workload.method == "lora" or drawn.constraints.back_end:
            continue
        request = _of_job(by_folder(drawn), tokens=10**9, data=None, epochs=None)
        assert not fine_tuned(request)
        assert wanted(request) in (BACK_ENDS, BACK_ENDS[:1])


def test_weights_that_were_tuned_are_not_trained_from_scratch() -> None:
    """`-Instruct` with a token budget: the rate of fine-tuning, and no random weights."""
    asked = ["plan", "--model", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "h100", "--tokens", "1b"]
    found = CliRunner().invoke(app, [*asked, "--gpus-per-node", "8", "--json"])
    plan = json.loads(found.output)["plans"][0]

    assert plan["strategy"]["back_end"] == "deepspeed"
    assert (plan["workload"]["learning_rate"], plan["workload"]["weight_decay"]) == (2e-5, 0.0)


def test_a_shape_of_the_catalog_is_no_checkpoint() -> None:
    """Mistral Large has only tuned weights; its shape can be trained from scratch all the same."""
    asked = ["plan", "--model", "mistral-large-123b", "--gpu", "b200", "--nodes", "16"]
    printed = _printed(*asked, "--gpus-per-node", "8", "--tokens", "300b", "--verbose")

    assert "is a checkpoint" not in printed
    assert "training from scratch" in printed


def test_a_small_job_with_rows_stays_on_deepspeed(tmp_path: Path) -> None:
    """The reported case: SmolLM2 on one 4090, where Megatron-LM is 1.3 times faster."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "one"}\n' * 50, encoding="utf-8")
    asked = ["plan", "--model", "smollm2-135m", "--gpu", "rtx-4090", "--gpus-per-node", "1"]
    printed = _printed(*asked, "--data", str(rows))

    assert "strategy ZeRO-0" in printed
    assert "Megatron-LM is not considered: the run reads rows of rows.jsonl" in printed


def test_a_refusal_offers_megatron_where_only_that_fits(tmp_path: Path) -> None:
    """70 B on 32 cards whose nodes have little RAM: a change of engine is among the remedies."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "one"}\n' * 50, encoding="utf-8")
    asked = ["plan", "--model", "llama-3.1-70b", "--gpu", "a100-80gb", "--nodes", "4"]
    more = ["--gpus-per-node", "8", "--host-memory", "64", "--seq-len", "2048"]
    printed = _printed(*asked, *more, "--data", str(rows))

    assert "does not fit" in printed
    assert "--for megatron (requires converted weights and data)" in printed


def _printed(*arguments: str) -> str:
    """What a command prints, its error included, in one line."""
    found = CliRunner().invoke(app, list(arguments))
    error = found.exception
    return " ".join(f"{found.output} {error or ''} {getattr(error, 'hint', '')}".split())


@pytest.mark.parametrize("optimizer", [*get_args(Optimizer)])
def test_the_planner_writes_the_optimizers_of_one_table(optimizer: str) -> None:
    """What Megatron-LM is not planned with is refused once, with a way out that can be taken."""
    request = ask("gpt2-xl", cluster(), workload(1024, optimizer=optimizer), back_end="megatron")
    if optimizer in OPTIMIZERS["megatron"]:
        assert choose(request).strategy.back_end == "megatron"
        assert optimizer in MEGATRON_NAMES
        return
    with pytest.raises(LayoutError) as caught:
        choose(request)

    (problem,) = caught.value.problems
    assert problem.rule == "optimizer"
    assert "--for deepspeed" in problem.hint
    free = request.model_copy(update={"constraints": Constraints(back_end="deepspeed")})
    assert choose(free).strategy.back_end == "deepspeed"
