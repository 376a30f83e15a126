"""Words for the software that trains: each is priced, and none makes a better kernel slower."""

from __future__ import annotations

from typing import Any

import pytest
from planning import cluster, lora_workload, strategy, workload

import dsforge
from dsforge import catalog
from dsforge.api.inputs import load_request
from dsforge.errors import SpecError
from dsforge.estimate.time import estimate_time
from dsforge.planner import appraise
from dsforge.specs import ModelSpec
from dsforge.strategy import EXECUTIONS

CARDS = ("v100-32gb", "a100-80gb", "h100-80gb", "rtx-4090")
MODELS = ("gpt2-xl", "llama-2-7b", "qwen3-30b-a3b")
MOE = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "expert_parallel_size": 8}


def step_s(
    model: ModelSpec, gpu: str = "a100-80gb", *, lora: bool = False, length: int = 2048, **said: Any
) -> float:
    """Seconds of a step of DeepSpeed where these settings of the software are said."""
    precision = "fp16" if gpu.startswith("v100") else "bf16"
    work = (lora_workload if lora else workload)(length, 64)
    work = work.model_copy(update={"precision": precision})
    how = EXECUTIONS["deepspeed"].model_copy(update={"loss": "plain", **said})
    member = strategy(8, zero_stage=2, batch=64).model_copy(update={"execution": how})
    return estimate_time(model, cluster(gpu=gpu), work, member).step_s.likely


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("name", MODELS)
def test_fused_and_compiled_kernels_are_never_slower(name: str, gpu: str) -> None:
    """Fewer kernels move fewer bytes; under LoRA too."""
    model = catalog.model(name)
    for lora in (False, True):
        eager, fused, compiled = (
            step_s(model, gpu, lora=lora, kernels=kernels)
            for kernels in ("eager", "fused", "compiled")
        )
        assert compiled <= fused <= eager


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("length", [512, 4096, 32768])
def test_attention_under_a_mask_lies_behind_flash(gpu: str, length: int) -> None:
    """The masked half is computed; the longer the sequence, the more it costs."""
    model = catalog.model("llama-2-7b")
    flash, masked = (
        step_s(model, gpu, length=length, attention=kind) for kind in ("flash", "masked")
    )

    assert masked > flash
    assert masked / flash > step_s(model, gpu, length=256, attention="masked") / step_s(
        model, gpu, length=256, attention="flash"
    )


def test_head_sizes_off_the_tensor_cores_cost_more() -> None:
    """Kept scores: 32 heads of 100 take longer than 40 of 80, or 25 of 128, of the same width."""
    model = catalog.model("gpt2-xl").model_copy(
        update={"hidden_size": 3200, "embedding_size": 3200, "ffn_hidden_size": 12800}
    )

    def kept(heads: int, size: int) -> float:
        update = {"attention_heads": heads, "kv_heads": heads, "head_size": size}
        return step_s(model.model_copy(update=update), "v100-32gb", attention="eager")

    assert kept(32, 100) > 1.05 * kept(25, 128)
    assert kept(40, 80) > kept(25, 128)  # more scores


def test_adapters_on_all_matrices_take_longer_than_on_two() -> None:
    """Each adapter moves bytes beside its frozen product, more with a dropout."""
    model, on, how = catalog.model("llama-2-7b"), cluster(), strategy(8, zero_stage=2)

    def seconds(**said: Any) -> float:
        work = lora_workload(2048, 64)
        assert work.lora is not None
        work = work.model_copy(update={"lora": work.lora.model_copy(update=said)})
        return estimate_time(model, on, work, how).terms.compute_s

    two, every = seconds(targets=("query", "value")), seconds()
    assert two < every < seconds(dropout=0.05)
    assert every < 1.6 * two


def experts_s(**said: Any) -> float:
    """Seconds of a step of a mixture of experts on Megatron."""
    spec = {
        "model": "qwen3-30b-a3b",
        "cluster": {"gpu": "h100-80gb", "nodes": 2, "gpus_per_node": 8},
        "workload": {"sequence_length": 4096, "global_batch_size": 64},
        "strategy": {"back_end": "megatron", **MOE, **said},
    }
    return appraise(load_request(spec=spec)).choice.time.step_s.likely


def test_a_token_for_each_rank_travels_less_than_one_for_each_expert() -> None:
    """Eight experts on eight ranks: 5.3 of them are met on average."""
    plain, flex = experts_s(), experts_s(expert_dispatch="flex")

    assert experts_s(expert_dispatch="flex", overlaps_experts=True) < flex < plain


def test_virtual_stages_that_are_asked_for_are_taken() -> None:
    """No other number is searched."""
    spec = {
        "model": "llama-2-13b",
        "cluster": {"gpu": "a100-80gb", "nodes": 4, "gpus_per_node": 8},
        "workload": {"sequence_length": 4096, "global_batch_size": 256},
        "strategy": {"back_end": "megatron", "pipeline_parallel_size": 4, "virtual_stages": 5},
    }

    assert appraise(load_request(spec=spec)).strategy.virtual_stages == 5


@pytest.mark.parametrize(
    "said",
    [
        {"trainer": "fsdp"},
        {"trainer": "megatron-fsdp"},
        {"kernels": "fused"},
        {"back_end": "megatron", "gradient_type": "compute"},
    ],
)
def test_what_is_priced_only_is_not_written(said: dict[str, str], tmp_path: Any) -> None:
    """Estimates know more software than `gen` writes files for."""
    on = {"gpu": "a100-80gb", "gpus_per_node": 8}
    estimate = dsforge.estimate("llama-2-7b", on, strategy=said)

    assert estimate.plan.choice.time.step_s.likely > 0
    with pytest.raises(SpecError) as refused:
        dsforge.gen("llama-2-7b", on, strategy=said, out=tmp_path / "run")
    assert [problem.rule for problem in refused.value.problems] == ["trainer-files"]
    assert not (tmp_path / "run").exists()


def test_compiled_kernels_are_written() -> None:
    """`compile: true` of `dsforge train`, where ZeRO allows it."""
    on = {"gpu": "a100-80gb", "gpus_per_node": 8}
    plan = dsforge.plan("llama-3.2-1b", on, strategy={"kernels": "compiled"}).best

    assert plan.strategy.zero_stage < 3
    assert plan.strategy.runs_as.kernels == "compiled"


@pytest.mark.parametrize(
    ("trainer", "label"), [("fsdp", "FSDP as ZeRO-3"), ("deepspeed", "ZeRO-3")]
)
def test_a_label_names_the_trainer(trainer: str, label: str) -> None:
    """A plan that is priced as another trainer's says so."""
    on = {"gpu": "a100-80gb", "gpus_per_node": 8}
    said = {"trainer": trainer, "zero_stage": 3}
    plan = dsforge.estimate("llama-2-7b", on, strategy=said).plan

    assert plan.strategy.label().startswith(f"{label} dp8")
