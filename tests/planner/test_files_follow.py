"""Files follow the choice: what is launched is what was chosen, and every file says the same.

Random requests and random strategies; the slow suite of `test_hardware.py` asks thousands.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from drawing import draw_request, draw_strategy
from follows import strategy_of, unlike
from planning import DISK, ask, cluster, lora_workload, workload

from dsforge.constraints import check
from dsforge.errors import DsforgeError, RenderError
from dsforge.estimate.params import parameters
from dsforge.plan import Plan, Request
from dsforge.planner import choose, price
from dsforge.render import render
from dsforge.specs import ClusterSpec, Host, LoraSpec
from dsforge.strategy import FULLY_SHARDED, Offload

SEED = int(os.environ.get("DSFORGE_SEED", "17"))
CHOSEN, DRAWN = 12, 400


def draw_changed(draw: Random) -> Request:
    """A random request with a random precision, optimizer, budget, adapters and disk."""
    request = draw_request(draw)
    lora = draw.choice((None, None, LoraSpec(), LoraSpec(rank=8, bits=4)))
    changed: dict[str, Any] = {
        "precision": draw.choice(("bf16", "bf16", "fp16", "fp32")),
        "optimizer": draw.choice(("adamw", "adamw", "lion", "sgd", "adafactor", "muon")),
        "learning_rate": draw.choice((1e-5, 3e-4, 0.00012345)),
        "weight_decay": draw.choice((0.0, 0.1)),
        "gradient_clipping": draw.choice((0.0, 0.5, 1.0)),
        "tokens": draw.choice((None, 10**9)),
        "seed": draw.choice((42, 7)),
        "method": "lora" if lora else "full",
        "lora": lora,
    }
    on = request.cluster.model_copy(update={"nvme": draw.choice((None, DISK))})
    work = request.workload.model_copy(update=changed)
    return request.model_copy(update={"workload": work, "cluster": on})


def draw_plan(draw: Random) -> Plan | None:
    """A plan of a random legal strategy, whether a planner would choose it or not."""
    request = draw_changed(draw)
    strategy = draw_strategy(draw, request)
    if strategy is None or (strategy.back_end == "megatron" and request.workload.lora is not None):
        return None  # adapters on Megatron-LM are priced, without files
    model, on, work = request.model, request.cluster, request.workload
    devices: tuple[Offload, ...] = ("none", "cpu", "nvme")
    moved = strategy.model_copy(
        update={
            "offload_optimizer": draw.choice(devices),
            "offload_parameters": draw.choice(devices),
        }
    )
    strategy = strategy if check(model, on, work, moved) else moved
    whole = strategy.model_copy(update={"zero_stage": 0})  # Megatron without its own sharding
    if strategy.back_end == "megatron" and draw.random() < 0.3:
        strategy = strategy if check(model, on, work, whole) else whole
    if strategy.zero_stage == FULLY_SHARDED and draw.random() < 0.3:
        few = strategy.runs_as.model_copy(
            update={"quantized_weights": True, "quantized_gradients": draw.random() < 0.5}
        )
        size = draw.choice((1, on.gpus_per_node))
        plus = strategy.model_copy(update={"execution": few, "hpz_partition_size": size})
        strategy = strategy if check(model, on, work, plus) else plus
    priced = price(model, on, work, strategy)
    return Plan(model=model, parameters=parameters(model), cluster=on, workload=work, choice=priced)


def test_every_file_agrees_with_any_strategy() -> None:
    """Read back, each file has the strategy's and the workload's values."""
    draw = Random(SEED)  # noqa: S311 - which requests, not which key
    plans = [plan for _ in range(DRAWN) if (plan := draw_plan(draw)) is not None]
    broken = [f"{plan.strategy.label()}: {said}" for plan in plans for said in unlike(plan)]

    assert broken == []
    assert {"deepspeed", "megatron"} == {plan.strategy.back_end for plan in plans}
    assert {"cpu", "nvme"} <= {plan.strategy.offload_optimizer for plan in plans}
    assert any(plan.workload.is_quantised for plan in plans)
    assert any(plan.strategy.runs_as.quantized_weights for plan in plans)


def test_adapters_on_megatron_have_a_price_and_no_files() -> None:
    """What prices them says so where files are asked for."""
    fixed = {"back_end": "megatron", "tensor_parallel_size": 2}
    plan = choose(ask("llama-2-7b", cluster(1, 8), lora_workload(), **fixed))

    assert plan.choice.fits
    with pytest.raises(RenderError, match="has no LoRA"):
        render(plan)


def test_launchers_follow_the_choice_of_random_requests() -> None:
    """Both back ends are chosen, each with its alternative where one fits."""
    draw = Random(SEED)  # noqa: S311
    plans: list[Plan] = []
    while len(plans) < CHOSEN:
        try:
            plans.append(choose(draw_changed(draw)))
        except DsforgeError:  # nothing fits
            continue
    broken = [f"{plan.strategy.label()}: {said}" for plan in plans for said in unlike(plan)]

    assert broken == []


H100 = cluster(4, gpu="h100-80gb", intra="nvlink-4", inter="infiniband-400")
NAMED: dict[str, tuple[str, ClusterSpec, int, int]] = {
    "mixtral": ("mixtral-8x7b", H100, 4096, 64),
    "deepseek-v3": (
        "deepseek-v3",
        cluster(32, gpu="h800-80gb", intra="nvlink-4-h800", inter="infiniband-400"),
        4096,
        3840,
    ),
    "70b": ("llama-3.1-70b", H100, 4096, 64),
    "13b": ("llama-2-13b", cluster(64, 4, "h100-80gb", inter="100gbe"), 4096, 2048),
}


@pytest.mark.parametrize("back_end", [None, "megatron", "deepspeed"])
@pytest.mark.parametrize("name", NAMED)
def test_named_jobs_start_what_was_chosen(name: str, back_end: str | None) -> None:
    """Jobs whose launchers once started the DeepSpeed runner-up, one that did not even fit."""
    model, on, length, batch = NAMED[name]
    request = ask(model, on, workload(length, batch), back_end=back_end)
    try:
        plan = choose(request)
    except DsforgeError:
        assert (name, back_end) == ("deepseek-v3", "deepspeed")
        return
    files = {artifact.path: artifact.text for artifact in render(plan)}

    assert list(unlike(plan)) == []
    assert back_end in (None, plan.strategy.back_end)
    if plan.strategy.back_end == "megatron":
        assert {p for p in files if p.startswith("launch/")} == {"launch/slurm.sbatch"}
        assert not any("dsforge.train" in files[p] for p in files if p.startswith("launch/"))
        assert "train.yaml" not in files


EASIER: dict[str, tuple[str, ClusterSpec, int, int]] = {
    "phi-4": ("phi-4", cluster(1, 12, "a100-80gb"), 4096, 72),
    "llama-128k": ("llama-3.1-8b", cluster(1, 8, "h100-80gb", intra="nvlink-4"), 131072, 8),
}


@pytest.mark.parametrize("name", EASIER)
def test_the_file_of_megatron_has_one_owner(name: str) -> None:
    """An easier Megatron plan than the fastest is chosen: `args.txt` has its speed, no other."""
    model, on, length, batch = EASIER[name]
    plan = choose(ask(model, on, workload(length, batch)))
    fastest = {reason.rule for reason in plan.choice.reasons} & {"easier-than-the-fastest"}
    page = next(file.text for file in render(plan) if file.path == "PLAN.md")

    assert plan.strategy.back_end == "megatron"
    assert fastest
    assert list(unlike(plan)) == []
    assert plan.variant("megatron").priced == plan.choice.model_copy(update={"reasons": ()})
    assert "given constraints" not in page


@pytest.mark.parametrize("name", ["mixtral", "13b"])
def test_recomputation_of_the_runner_up_stands_in_its_own_job(name: str) -> None:
    """ZeRO-3 with recomputation, beside Megatron without: once its job ran out of memory."""
    model, on, length, batch = NAMED[name]
    plan = choose(ask(model, on, workload(length, batch), back_end="megatron"))
    other = strategy_of(plan, "deepspeed")
    files = {artifact.path: artifact.text for artifact in render(plan)}

    assert other is not None
    assert (plan.strategy.recompute, other.strategy.recompute) == ("none", "full")
    assert "gradient_checkpointing: true" in files["train-deepspeed.yaml"]


def test_what_does_not_fit_is_not_launched() -> None:
    """DeepSeek-V3 on 256 cards: no DeepSpeed strategy fits, so none can be started."""
    model, on, length, batch = NAMED["deepseek-v3"]
    tight = on.model_copy(update={"host_memory_bytes": 256 << 30})
    plan = choose(ask(model, tight, workload(length, batch)))
    written = {artifact.path for artifact in render(plan)}

    assert not any(path.startswith("train") or path.endswith("ds_config.json") for path in written)
    assert not any(path.startswith("deepspeed/") and path.endswith("sh") for path in written)


def test_selected_devices_reach_plan_and_hostfile() -> None:
    """Two hosts, of each two devices that are not the first."""
    hosts = (
        Host(address="10.0.0.1", slots=2, devices=(2, 3)),
        Host(address="10.0.0.2", slots=2, devices=(1, 5)),
    )
    on = cluster(2, 2, inter="100gbe", hosts=hosts)
    plan = choose(ask("llama-2-7b", on, workload(512, 16), back_end="deepspeed"))

    assert list(unlike(plan)) == []
    assert plan.cluster.gpus == 4


def test_attention_that_keeps_scores_is_priced_and_written() -> None:
    """Scores cost memory and time; the file for the trainer says so."""
    on, work = cluster(1, 8, "v100-32gb"), workload(1024, precision="fp16")
    fixed: dict[str, Any] = {"zero_stage": 2, "micro_batch_size": 1, "recompute": "none"}
    flash, eager = (
        choose(ask("llama-3.2-1b", on, work, attention=kind, **fixed)) for kind in (None, "eager")
    )
    files = {file.path: file.text for file in render(eager)}

    assert eager.choice.time.step_s.likely > flash.choice.time.step_s.likely
    assert eager.choice.memory.device_bytes.likely > flash.choice.memory.device_bytes.likely
    assert 'attention: "eager"' in files["train.yaml"]
