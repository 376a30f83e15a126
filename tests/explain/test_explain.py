"""Every figure of a plan can be redone from what is printed beside it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from formulas import is_redone
from planning import DISK, ask, cluster, lora_workload, qlora_workload, strategy, workload

from dsforge.cli.main import app
from dsforge.engines import ENGINES, Engine
from dsforge.errors import DsforgeError
from dsforge.explain.explanation import ENDS, explanation
from dsforge.explain.inputs import MEASURED
from dsforge.plan import Plan
from dsforge.planner.pricing import price
from dsforge.specs import ClusterSpec, LoraSpec, MeasuredGpu, MeasuredLink, Pace, Workload
from dsforge.strategy import EXECUTIONS

KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
TWO = cluster(2, inter="10gbe", nvme=DISK)
MEGATRON = {"back_end": "megatron", "zero_stage": 1}
SPLIT = {**MEGATRON, "sequence_parallel": True}
ON_DISK = {"offload_optimizer": "nvme", "offload_parameters": "nvme"}
H100 = cluster(4, gpu="h100-80gb", intra="nvlink-4", gpu_hour_price=2.5)
RACKS = cluster(32, 4, "gb200", intra="nvlink-5", nvlink_domain_nodes=18)
FEWER_BITS = EXECUTIONS["deepspeed"].model_copy(
    update={"quantized_weights": True, "quantized_gradients": True}
)
LARGE = workload(batch=128)


def based(**lora: Any) -> Workload:
    """Adapters on a quantised base."""
    return workload(method="lora", lora=LoraSpec(**lora))


GATHERING = EXECUTIONS["deepspeed"].model_copy(update={"loads_whole": True})
PLAIN = EXECUTIONS["deepspeed"].model_copy(update={"loss": "plain"})
CASES: dict[str, dict[str, Any]] = {
    "zero0": {},
    "zero1": {"zero_stage": 1},
    "zero2-accumulating": {"zero_stage": 2},
    "zero3-recomputing": {"zero_stage": 3, "recompute": "full"},
    "zero3-hpz": {"zero_stage": 3, "dp": 16, "hpz_partition_size": 8, "recompute": "full"},
    "hpz-lora": {"zero_stage": 3, "dp": 16, "hpz_partition_size": 4, "work": lora_workload()},
    "zero-plus-plus": {"zero_stage": 3, "dp": 16, "hpz_partition_size": 8, "execution": FEWER_BITS},
    "zero3-on-disk": {"zero_stage": 3, **ON_DISK},
    "zero2-offloaded": {"zero_stage": 2, "offload_optimizer": "cpu", "recompute": "full"},
    "lora": {"zero_stage": 3, "work": lora_workload()},
    "qlora": {"zero_stage": 2, "recompute": "full", "work": qlora_workload()},
    "qlora-sharded": {"zero_stage": 3, "recompute": "full", "work": qlora_workload()},
    "qlora-sharded-offloaded": {
        "zero_stage": 3,
        "recompute": "full",
        "offload_parameters": "cpu",
        "work": based(bits=4, double_quant=False, dropout=0.1),
    },
    "qlora-kept-gathered": {"zero_stage": 3, "work": qlora_workload()},
    "int8": {"zero_stage": 2, "work": based(bits=8, upcast=True)},
    "gptq-torch": {"zero_stage": 0, "work": based(base="gptq")},
    "gptq-torch-3": {"zero_stage": 2, "recompute": "full", "work": based(base="gptq", bits=3)},
    "gptq-triton": {"zero_stage": 1, "work": based(base="gptq", kernel="triton", group_size=64)},
    "awq": {"zero_stage": 2, "work": based(base="awq")},
    "8-bit-moments": {"zero_stage": 2, "work": workload(optimizer="adamw_8bit")},
    "paged-moments": {"zero_stage": 3, "work": workload(optimizer="paged_adamw_32bit")},
    "lora-megatron": {**SPLIT, "dp": 2, "tp": 2, "pp": 2, "work": lora_workload()},
    "qlora-experts": {"model": "mixtral-8x7b", "zero_stage": 1, "work": qlora_workload()},
    "qwen-norms": {"model": "qwen3-8b", "zero_stage": 3},
    "gpt2-plain-mlp": {"model": "gpt2-xl", "zero_stage": 2},
    "gemma-windows": {"model": "gemma-2-9b", "zero_stage": 1},
    "cpu-ranks": {"zero_stage": 2, "dp": 4, "on": cluster(2, 2, "cpu", intra="pcie-4")},
    "one-gpu": {"dp": 1, "on": cluster(1, 1), "micro_batch_size": 2},
    "domains": {**SPLIT, "dp": 8, "tp": 8, "pp": 2, "on": RACKS},
    "pipeline": {**SPLIT, "dp": 2, "tp": 2, "pp": 4},
    "interleaved": {**MEGATRON, "dp": 4, "pp": 4, "virtual_stages": 4},
    "ulysses": {"dp": 4, "context_parallel_size": 4, "zero_stage": 3, "recompute": "full"},
    "ulysses-few-keys": {"model": "qwen2.5-3b", "dp": 2, "context_parallel_size": 8},
    "ulysses-lora": {"dp": 4, "context_parallel_size": 4, "work": lora_workload(65536)},
    "loads-whole": {"zero_stage": 3, "execution": GATHERING, "work": lora_workload(512)},
    "dpo": {"zero_stage": 2, "execution": PLAIN, "work": workload(preference="dpo")},
    "dpo-sharded": {
        "zero_stage": 3,
        "recompute": "full",
        "work": workload(preference="dpo"),
    },
    "dpo-adapters": {
        "zero_stage": 1,
        "work": workload(method="lora", lora=LoraSpec(bits=4), preference="dpo"),
    },
    "dpo-second-base": {
        "zero_stage": 3,
        "work": workload(method="lora", lora=LoraSpec(), preference="dpo", reference="model"),
    },
    "early-stop": {
        "zero_stage": 3,
        "recompute": "full",
        "execution": EXECUTIONS["fsdp"],
        "model": "mixtral-8x7b",
    },
    "triton": {"execution": PLAIN.model_copy(update={"attention": "triton"})},
    "flash1": {"execution": PLAIN.model_copy(update={"attention": "flash1"})},
    "reward": {"zero_stage": 2, "work": workload(preference="reward")},
    "documents": {"zero_stage": 1, "work": workload(document_length=300)},
    "plain-loss": {"zero_stage": 1, "execution": PLAIN},
    "one-chunk": {"zero_stage": 1, "work": workload(512)},
    "many-chunks": {"zero_stage": 1, "micro_batch_size": 8, "batch": 128, "work": LARGE},
    "lora-chunks": {"zero_stage": 2, "micro_batch_size": 4, "work": lora_workload()},
    "context": {**SPLIT, "dp": 2, "tp": 2, "context_parallel_size": 4},
    "experts": {
        "model": "mixtral-8x7b",
        **SPLIT,
        "dp": 4,
        "tp": 2,
        "pp": 2,
        "expert_parallel_size": 4,
    },
    "latent-attention": {
        "model": "deepseek-v3",
        **SPLIT,
        "dp": 8,
        "tp": 2,
        "expert_parallel_size": 8,
    },
    "fp8-with-a-budget": {
        **SPLIT,
        "dp": 8,
        "tp": 2,
        "pp": 2,
        "on": H100,
        "work": workload(precision="fp8", tokens=10**9),
    },
}


def plan_of(*, model: str = "llama-2-7b", on: Any = TWO, work: Any = None, **named: Any) -> Plan:
    """A plan with that strategy, legal or not."""
    request = ask(model, on, work or workload())
    choice = strategy(**{"dp": 16, **named})
    priced = price(request.model, request.cluster, request.workload, choice)
    return Plan.model_construct(
        schema_version=1,
        model=request.model,
        parameters=1,
        cluster=request.cluster,
        workload=request.workload,
        choice=priced,
        variants=(),
    )


@cache
def printed(case: str) -> Any:
    """The JSON of an explanation, as a reader gets it."""
    return json.loads(explanation(plan_of(**CASES[case])).model_dump_json())


@pytest.mark.parametrize("case", CASES)
def test_python_itself_gets_every_figure_from_the_printed_inputs(case: str) -> None:
    """Each formula, evaluated on the inputs beside it, gives the figure."""
    assert [f["name"] for f in printed(case)["figures"] if not is_redone(f)] == []


@pytest.mark.parametrize("case", CASES)
def test_figures_are_those_of_the_plan(case: str) -> None:
    """Terms, counters, host, checkpoint, step and rates: worked out anew, none differs."""
    assert printed(case)["disagreements"] == []


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_taken_over_from_the_prediction_unexplained(case: str) -> None:
    """On a cluster of data sheets no figure falls back to what was measured."""
    sources = [given["source"] for f in printed(case)["figures"] for given in f["inputs"]]

    assert MEASURED not in sources


def test_speed_and_run_agree_with_the_plan() -> None:
    """MFU, HFU, days, energy and money come out as `estimate` shows them."""
    plan = plan_of(**CASES["fp8-with-a-budget"])
    values = {f["name"]: f["value"] for f in printed("fp8-with-a-budget")["figures"]}
    run = plan.run

    assert run is not None
    assert values["mfu"] == pytest.approx(plan.speed.mfu.likely)
    assert values["days"] == pytest.approx(run.days.likely)
    assert run.energy_kwh is not None
    assert values["energy_kwh"] == pytest.approx(run.energy_kwh.likely)
    assert run.money is not None
    assert values["money"] == pytest.approx(run.money.likely)


@pytest.mark.parametrize("case", ["zero3-recomputing", "lora", "interleaved"])
def test_buckets_are_those_of_the_plan(case: str) -> None:
    """The sizes that go into ds_config.json."""
    buckets = plan_of(**CASES[case]).choice.buckets
    values = {f["name"]: f["value"] for f in printed(case)["figures"]}
    names = ("reduce_bucket_size", "max_live_parameters", "prefetch_bucket_size")

    assert {name: values[name] for name in names} == {n: getattr(buckets, n) for n in names}


def test_factors_of_reserved_memory_have_a_source() -> None:
    """What ZeRO stage 3 frees in pieces counts by constants with a name, not by bare numbers."""
    figures = {f.name: f for f in explanation(plan_of(zero_stage=3)).figures}

    for end in ("low", "likely", "high"):
        given = {each.name: each for each in figures[f"reserved_{end}"].inputs}
        assert "ZeRO stage 3" in given[f"churn_{end}"].source


def test_a_figure_that_was_changed_in_the_plan_is_named() -> None:
    """A plan of another version says so instead of being explained wrongly."""
    plan = plan_of(zero_stage=1)
    terms = plan.choice.time.terms.model_copy(update={"compute_s": 1.0})
    time = plan.choice.time.model_copy(update={"terms": terms})
    changed = plan.model_copy(update={"choice": plan.choice.model_copy(update={"time": time})})

    assert [other.name for other in explanation(changed).disagreements] == ["compute_s"]


def test_the_command_shows_one_figure_and_what_it_rests_on(tmp_path: Path) -> None:
    """`dsforge explain FOLDER logits`: the token bytes are there, the time is not."""
    (tmp_path / "plan.json").write_text(plan_of(zero_stage=2).to_json(), encoding="utf-8")
    shown = CliRunner().invoke(app, ["explain", str(tmp_path), "logits"], catch_exceptions=False)

    assert shown.exit_code == 0
    assert "logit_token_bytes = " in shown.stdout
    assert "vocab_size = 32,000" in shown.stdout
    assert "step_likely" not in shown.stdout


def test_an_unknown_figure_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """`weight` is not a figure, `weights` is."""
    (tmp_path / "plan.json").write_text(plan_of().to_json(), encoding="utf-8")
    with pytest.raises(DsforgeError, match="no figure `weight`") as caught:
        CliRunner().invoke(app, ["explain", str(tmp_path), "weight"], catch_exceptions=False)

    assert "weights" in caught.value.hint
    with pytest.raises(DsforgeError, match="no figure `nosuch`") as caught:
        CliRunner().invoke(app, ["explain", str(tmp_path), "nosuch"], catch_exceptions=False)

    assert "near it" not in caught.value.hint  # nothing is


@pytest.mark.parametrize("case", ["zero1", "zero3-on-disk", "interleaved", "cpu-ranks"])
def test_the_names_of_json_and_of_tables_are_known(case: str) -> None:
    """`device_bytes`, `step_s`, `memory.host_bytes.init`, `device memory` mean what they show."""
    plan = plan_of(**CASES[case])
    memory, time, found = plan.choice.memory, plan.choice.time, explanation(plan)
    values = {figure.name: figure.value for figure in found.figures}
    said: dict[str, float] = {
        **dict(memory.terms),
        **dict(time.terms),
        "step_s": time.step_s.likely,
    }
    said |= {f"memory.host_bytes.{phase}": size for phase, size in memory.host_bytes}
    said |= {"checkpoint_bytes": memory.checkpoint_bytes, "nvme_bytes": memory.nvme_bytes}
    said |= {"host RAM": memory.host_bytes.peak, "step time": time.step_s.likely}
    for counter in ("allocated", "reserved", "device"):
        bounds = getattr(memory, f"{counter}_bytes")
        said |= {f"{counter}_bytes": bounds.likely, f"{counter} memory": bounds.likely}
        said |= {f"memory.{counter}_bytes.{end}": getattr(bounds, end) for end in ENDS}
    said |= {name.removesuffix("_s"): span for name, span in time.terms}
    speed = plan.speed
    said |= {
        "MFU": speed.mfu.likely,
        "tokens/s": speed.tokens_per_s.likely,
        "hfu": speed.hfu.likely,
    }
    said |= {"speed.model_tflops_per_gpu": speed.model_tflops_per_gpu.likely}

    for name, value in said.items():
        assert values[found.called(name)] == pytest.approx(value, rel=1e-6, abs=1.5), name


@pytest.mark.parametrize("path", ["missing", "empty", "missing/plan.json"])
def test_a_folder_without_a_plan_is_called_that(path: str, tmp_path: Path) -> None:
    """Not a plan of another version."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(DsforgeError, match="No such file") as caught:
        CliRunner().invoke(app, ["explain", str(tmp_path / path)], catch_exceptions=False)

    assert "another version" not in caught.value.hint
    assert "dsforge gen --out" in caught.value.hint


def measured_cluster() -> ClusterSpec:
    """Two nodes of a cluster card: another rate for each kind of collective, card and CPU."""
    paces = {kind: Pace(bytes_per_s=1e9 * n, message_s=1e-4 * n) for n, kind in enumerate(KINDS, 3)}
    rated = cluster(2, inter="10gbe", cpu_adam_per_s=1.5e9)
    inside = MeasuredLink(nodes=1, ranks=8, paces={"all_gather": paces["all_gather"]})
    flops = {"bf16": 2.2e14, "fp16": 2.2e14}
    seen = MeasuredGpu(flops=flops, memory_bytes_per_s=1.6e12, host_copy_bytes_per_s=2e10)
    between = MeasuredLink(nodes=2, ranks=16, paces=paces)
    return rated.model_copy(
        update={
            "gpu": rated.gpu.model_copy(update={"measured": seen}),
            "intra_node": rated.intra_node.model_copy(update={"measured": inside}),
            "inter_node": rated.inter_node.model_copy(update={"measured": between}),
        }
    )


@pytest.mark.parametrize(
    "named",
    [
        {"zero_stage": 1},
        {"zero_stage": 3, "recompute": "full", "offload_optimizer": "cpu"},
        {**SPLIT, "dp": 2, "tp": 4, "pp": 2},
        {"model": "mixtral-8x7b", **SPLIT, "dp": 8, "tp": 2, "expert_parallel_size": 8},
    ],
    ids=["zero1", "zero3-offloaded", "pipeline", "experts"],
)
def test_a_measured_cluster_is_explained_by_what_was_measured(named: dict[str, Any]) -> None:
    """Rates of a cluster card are given, with that source; every term still comes out."""
    found = explanation(plan_of(on=measured_cluster(), **named))
    sources = {given.source for figure in found.figures for given in figure.inputs}

    assert found.disagreements == ()
    assert MEASURED in sources


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine.name))
def test_runs_of_every_engine_are_explained(engine: Engine) -> None:
    """FSDP, nanotron and torchtune too: their formulas are the same code."""
    plan = plan_of(execution=engine.execution, dp=8, tp=2, zero_stage=1)

    assert explanation(plan).disagreements == ()


def test_every_name_that_is_listed_can_be_asked_for() -> None:
    """And what it rests on is listed, down to the given values."""
    found = explanation(plan_of(**CASES["experts"]))
    for figure in found.figures:
        resting = {other.name for other in found.resting_on(figure.name)}
        assert figure.name in resting
        figures = {other.name for other in found.figures}
        assert {given.name for given in figure.inputs} & figures <= resting


@pytest.mark.parametrize("case", CASES)
def test_figures_of_a_group_follow_what_they_rest_on(case: str) -> None:
    """A reader meets every number before the formula that uses it, group by group."""
    figures = printed(case)["figures"]
    position = {figure["name"]: index for index, figure in enumerate(figures)}
    group = {figure["name"]: figure["group"] for figure in figures}
    for figure in figures:
        for given in figure["inputs"]:
            if group.get(given["name"]) == figure["group"]:
                assert position[given["name"]] < position[figure["name"]], figure["name"]
