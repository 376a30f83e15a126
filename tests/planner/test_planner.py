"""The planner: constraints, variants, failures that say what to do, plans that survive JSON."""

from __future__ import annotations

from typing import Any

import pytest
from planning import DISK, GIB, ask, cluster, lora_workload, workload

from dsforge.constraints import check
from dsforge.errors import DoesNotFitError, LayoutError
from dsforge.plan import Plan
from dsforge.planner import appraise, choose, search
from dsforge.planner.pricing import missing_bytes

CONSTRAINTS: list[dict[str, Any]] = [
    {"zero_stage": 3},
    {"zero_stage": 1, "pipeline_parallel_size": 2, "back_end": "deepspeed"},
    {"zero_stage": 1, "tensor_parallel_size": 2, "back_end": "deepspeed"},
    {"micro_batch_size": 2, "recompute": "full"},
    {"offload_optimizer": "cpu"},
    {"offload_optimizer": "cpu", "offload_parameters": "cpu", "zero_stage": 3},
    {"back_end": "megatron", "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    {"back_end": "megatron", "recompute": "selective"},
    {"back_end": "megatron", "context_parallel_size": 2},
]


@pytest.mark.parametrize("fixed", CONSTRAINTS, ids=[" ".join(map(str, c)) for c in CONSTRAINTS])
def test_what_is_fixed_stays_fixed_and_the_rest_is_chosen(fixed: dict[str, Any]) -> None:
    """Every constraint is in the strategy, and the strategy is legal and fits."""
    request = ask("llama-2-7b", cluster(), workload(), **fixed)

    chosen = choose(request)
    values = {**dict(chosen.strategy), **dict(chosen.strategy.layout)}

    assert {key: values[key] for key in fixed} == fixed
    assert check(request.model, request.cluster, request.workload, chosen.strategy) == ()
    assert chosen.choice.fits


VARIANTS = (
    "zero1",
    "zero2",
    "zero3",
    "zero2_offload",
    "zero3_offload",
    "zero3_nvme",
    "megatron",
)


def test_every_variant_is_priced_or_refused_with_its_rule() -> None:
    """Seven variants in order; without a disk NVMe names the rule, the others have a price."""
    plan = choose(ask("llama-2-7b", cluster(2), workload()))
    refused = {v.name: [p.rule for p in v.problems] for v in plan.variants if v.priced is None}

    assert tuple(variant.name for variant in plan.variants) == VARIANTS
    assert refused == {"zero3_nvme": ["nvme-disk"]}


def test_variants_do_what_their_names_say() -> None:
    """Stage and offload of each DeepSpeed variant, with a disk in the cluster."""
    plan = choose(ask("llama-2-7b", cluster(2, nvme=DISK), workload()))
    found = {
        variant.name: (s.zero_stage, s.offload_optimizer, s.offload_parameters)
        for variant in plan.variants
        if variant.priced and (s := variant.priced.strategy).back_end == "deepspeed"
    }

    assert found == {
        "zero1": (1, "none", "none"),
        "zero2": (2, "none", "none"),
        "zero3": (3, "none", "none"),
        "zero2_offload": (2, "cpu", "none"),
        "zero3_offload": (3, "cpu", "cpu"),
        "zero3_nvme": (3, "nvme", "nvme"),
    }


def test_a_variant_that_does_not_fit_says_so() -> None:
    """ZeRO-1 of 13 B on 24 GB cards is priced and does not fit."""
    on = cluster(gpu="rtx-4090", intra="pcie-4")
    variant = choose(ask("llama-2-13b", on, workload())).variant("zero1")

    assert variant.priced is not None
    assert not variant.priced.fits
    assert missing_bytes(on, variant.priced.memory) > 0


def test_pipeline_parallelism_forbids_the_variants_it_cannot_have() -> None:
    """`--pp 2` with DeepSpeed: zero2 and zero3 are refused by the rule of the engine."""
    request = ask("llama-2-7b", cluster(), workload(), pipeline_parallel_size=2)
    plan = choose(request)

    assert [p.rule for p in plan.variant("zero2").problems] == ["zero-pipeline"]
    assert plan.variant("zero1").priced is not None


def test_a_batch_that_no_rank_count_divides_is_refused_with_neighbours() -> None:
    """Seven samples over eight ranks, ZeRO-2: 8 is offered."""
    with pytest.raises(LayoutError) as caught:
        choose(ask("llama-2-7b", cluster(), workload(batch=7), zero_stage=2))

    assert caught.value.problems[0].rule == "batch-product"
    assert "8" in caught.value.problems[0].hint


@pytest.mark.parametrize(
    ("batch", "nearest"), [(12, "8 or 16"), (7, "size of 8)"), (60, "56 or 64")]
)
def test_a_batch_that_zero_cannot_share_is_told_beside_the_plan(batch: int, nearest: str) -> None:
    """The model is cut then, on either back end: the reason names the batches that ZeRO could."""
    plan = choose(ask("llama-2-7b", cluster(), workload(batch=batch)))
    reasons = {reason.rule: reason.message for reason in plan.choice.reasons}

    assert plan.strategy.layout.data_parallel_size < 8
    assert nearest in reasons["batch-product"]


def test_a_large_model_may_have_fewer_samples_than_accelerators() -> None:
    """175 B, 1536 samples on 1024 cards: Megatron, and the reason names the batch rule."""
    plan = choose(ask("gpt3-175b", cluster(128), workload(2048, 1536)))
    reasons = {reason.rule: reason.message for reason in plan.choice.reasons}

    assert plan.strategy.back_end == "megatron"
    assert "global batch size" in reasons["megatron-only"]


def test_contradictory_constraints_name_every_rule() -> None:
    """ZeRO-3 with pipeline parallelism and NVMe without a disk: both problems."""
    with pytest.raises(LayoutError) as caught:
        choose(
            ask(
                "llama-2-7b",
                cluster(),
                workload(),
                zero_stage=3,
                pipeline_parallel_size=2,
                offload_optimizer="nvme",
                back_end="deepspeed",
            )
        )

    assert {"zero-pipeline", "nvme-disk"} <= {p.rule for p in caught.value.problems}


def test_what_does_not_fit_names_the_gap_and_the_changes_that_help() -> None:
    """70 B on one node of 24 GB cards with little RAM: missing bytes, largest term, way out."""
    on = cluster(gpu="rtx-4090", intra="pcie-4", host_memory_bytes=256 * GIB)
    with pytest.raises(DoesNotFitError) as caught:
        choose(ask("llama-2-70b", on, workload()))

    assert caught.value.missing_bytes > 0
    assert caught.value.largest_term
    assert "GiB" in caught.value.message
    assert "nodes" in caught.value.hint


def test_estimate_answers_for_what_does_not_fit() -> None:
    """The nearest strategy is priced; nothing is raised."""
    plan = appraise(ask("llama-2-70b", cluster(1, 1), workload(), zero_stage=0))

    assert not plan.choice.fits
    assert plan.choice.reasons[-1].rule == "does-not-fit"


@pytest.mark.parametrize(
    ("model", "work"),
    [("llama-2-7b", workload()), ("llama-2-7b", lora_workload()), ("mixtral-8x7b", workload())],
    ids=["full", "lora", "moe"],
)
def test_a_plan_survives_json(model: str, work: Any) -> None:
    """Plan -> JSON -> Plan is the identity."""
    plan = choose(ask(model, cluster(4, nvme=DISK), work))

    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_the_same_request_gives_the_same_plan() -> None:
    """Nothing in a plan depends on time or order."""
    request = ask("llama-2-7b", cluster(2), workload())

    assert choose(request) == choose(request)


def test_search_ranks_plans_and_explains_losers() -> None:
    """The first plan is the choice; every loser has a rule and a message."""
    request = ask("llama-2-13b", cluster(), workload())
    found = search(request)

    assert found.plans[0].strategy == choose(request).strategy
    assert len(found.plans) > 3
    assert all(lost.rule and lost.message for lost in found.rejected)
    assert any(lost.rule == "memory" for lost in found.rejected)


def test_reasons_of_reading_come_first() -> None:
    """What reading chose for the user is shown with what the planner chose."""
    from dsforge.plan import Reason

    said = Reason(rule="default-precision", message="bf16: the card has it")
    request = ask("llama-2-7b", cluster(), workload()).model_copy(update={"reasons": (said,)})

    assert choose(request).choice.reasons[0] == said


def test_the_demo_machine_gets_a_plan() -> None:
    """135 M parameters on two CPU ranks with 24 GiB: DeepSpeed, no offload."""
    on = cluster(1, 2, "cpu", host_memory_bytes=24 * GIB, cpu_cores=2)
    plan = choose(ask("smollm2-135m", on, workload(512, 8)))

    assert plan.strategy.back_end == "deepspeed"
    assert not plan.strategy.offloads
    assert "megatron-gpu" in [p.rule for p in plan.variant("megatron").problems]
