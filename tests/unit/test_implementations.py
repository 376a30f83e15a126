"""Words for the software that trains: each is priced, and none makes a better kernel slower."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import cluster, lora_workload, strategy, workload

import dsforge
from dsforge import catalog
from dsforge.api.inputs import load_request
from dsforge.errors import SpecError
from dsforge.estimate.loss import head_bytes
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.params import parameters
from dsforge.estimate.rates import FLASH1_SHARE, HALF_LENGTH, rates
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


@pytest.mark.parametrize("trainer", ["deepspeed", "ddp", "fsdp"])
@pytest.mark.parametrize("name", MODELS)
def test_a_fused_loss_moves_and_holds_less(name: str, trainer: str) -> None:
    """One kernel on whole logits lies between plain and what never holds them."""
    model, work = catalog.model(name), workload(2048, 64)
    seconds, held = [], []
    for loss in ("plain", "fused_cross_entropy", "fused"):
        run = EXECUTIONS[trainer].model_copy(update={"loss": loss, "software": "others"})
        how = strategy(8, batch=64).model_copy(update={"execution": run})
        seconds.append(estimate_time(model, cluster(), work, how).step_s.likely)
        held.append(head_bytes(model, work, how).at(16 * 2048))

    assert seconds == sorted(seconds, reverse=True)
    assert held[0] > held[1] > held[2]


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


@pytest.mark.parametrize("tensor", [1, 4])
def test_tensor_parallel_collectives_may_overlap_with_products(tensor: int) -> None:
    """Transformer Engine's user buffers: a quicker step, where there are such collectives."""
    spec = {
        "model": "llama-3-8b",
        "cluster": {"gpu": "h100-80gb", "nodes": 1, "gpus_per_node": 8},
        "workload": {"sequence_length": 8192, "global_batch_size": 64},
        "strategy": {"back_end": "megatron", "tensor_parallel_size": tensor},
    }
    plain, beside = (
        appraise(load_request(spec={**spec, "strategy": {**spec["strategy"], **said}})).choice
        for said in ({}, {"overlaps_tensor": True})
    )

    assert (beside.time.step_s.likely < plain.time.step_s.likely) == (tensor > 1)
    assert beside.memory == plain.memory


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


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("sequence", [256, 2048, 16384])
def test_a_model_that_is_loaded_whole_needs_it_beside_its_shard(gpus: int, sequence: int) -> None:
    """Lightning's FSDP gathers all weights to load them: no step that needs more is changed."""
    model, on = catalog.model("llama-2-7b"), cluster(gpus=gpus)
    how = strategy(gpus, zero_stage=3, recompute="full")
    gathering = how.runs_as.model_copy(update={"loads_whole": True})
    whole = how.model_copy(update={"execution": gathering})
    plain, loaded = (
        estimate_memory(model, on, lora_workload(sequence), one).allocated_bytes.likely
        for one in (how, whole)
    )

    weights = 2 * parameters(model)
    assert loaded >= weights * (1 + 1 / gpus)
    assert loaded == plain or loaded == pytest.approx(weights * (1 + 1 / gpus), rel=0.01)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("gpu", CARDS)
def test_recomputation_that_stops_early_leaves_out_one_product(name: str, gpu: str) -> None:
    """Never slower, and only where layers are computed again."""
    how = EXECUTIONS["fsdp"]
    late = how.model_copy(update={"early_stop": False})
    model, work = catalog.model(name), workload(1024)
    work = work.model_copy(update={"precision": "fp16" if gpu.startswith("v100") else "bf16"})

    def compute_s(run: Any, recompute: str) -> float:
        change = {"zero_stage": 3, "recompute": recompute, "execution": run}
        on = strategy(8, micro_batch_size=4, **change)
        return estimate_time(model, cluster(gpu=gpu), work, on).terms.compute_s

    assert compute_s(how, "none") == compute_s(late, "none")
    assert 0.9 * compute_s(late, "full") < compute_s(how, "full") <= compute_s(late, "full")
    if model.moe is None:
        assert compute_s(how, "full") < compute_s(late, "full")


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100-80gb", "rtx-4090"])
@pytest.mark.parametrize("length", [512, 4096, 32768])
def test_older_flash_attention_lies_behind(gpu: str, length: int) -> None:
    """At most by the ratio of the kernels: where attention is all of the step."""
    model = catalog.model("llama-2-7b")
    first, triton, second = (
        step_s(model, gpu, length=length, attention=kind) for kind in ("flash1", "triton", "flash")
    )

    assert second < triton < first < second / FLASH1_SHARE


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100-80gb", "rtx-4090"])
@given(length=st.integers(16, 2**20), longer=st.integers(1, 2**20))
def test_flash_attention_is_faster_on_longer_samples(gpu: str, length: int, longer: int) -> None:
    """A FLOP never takes longer in a longer sample, nor half as long as in one of half length."""
    held = rates(catalog.gpu(gpu), "bf16", EXECUTIONS["deepspeed"])
    short, long = held.attention_of(length), held.attention_of(length + longer)

    assert short < long < held.attention < held.products
    assert held.attention_of(HALF_LENGTH) == pytest.approx(held.attention / 2)
    assert held.attention_of(2 * length) < 2 * short


@pytest.mark.parametrize("lora", [False, True])
@given(ranks=st.integers(2, 64))
def test_fsdp_without_sharding_replicates(*, lora: bool, ranks: int) -> None:
    """States of `NO_SHARD` are those of one rank; what is frozen has no copy beside it."""
    model = catalog.model("llama-2-7b")
    work = (lora_workload if lora else workload)(2048, 64)
    one, many = (
        estimate_memory(
            model, cluster(), work, strategy(n, batch=64, execution=EXECUTIONS["fsdp"])
        ).terms
        for n in (1, ranks)
    )

    assert many.weights == one.weights
    assert many.optimizer_state == one.optimizer_state
    assert not lora or many.buffers < 0.1 * many.weights


@pytest.mark.parametrize("stage", [0, 2])
@given(length=st.integers(256, 8192))
def test_the_allocator_of_others_holds_more_beside_the_tensors(stage: int, length: int) -> None:
    """Samples of many lengths leave holes; what tensors take is the same."""
    model, how = catalog.model("llama-2-7b"), EXECUTIONS["deepspeed"]
    ours, others = (
        estimate_memory(
            model,
            cluster(),
            lora_workload(length, 64),
            strategy(
                8,
                zero_stage=stage,
                execution=how.model_copy(update={"software": whose, "loss": "plain"}),
            ),
        )
        for whose in ("dsforge", "others")
    )

    assert others.allocated_bytes.likely == ours.allocated_bytes.likely
    assert 1.02 < others.reserved_bytes.likely / ours.reserved_bytes.likely < 1.12
    assert others.reserved_bytes.high >= ours.reserved_bytes.high
