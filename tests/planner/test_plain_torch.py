"""Plans for plain torch: what is ranked is what `dsforge train` accepts, and reads as planned."""

from __future__ import annotations

from typing import Any, get_args

import pytest

import dsforge
from dsforge.constraints import shape_of
from dsforge.constraints.torch import (
    torch_job_problems,
    torch_model_problems,
    torch_rank_problems,
    torch_stage_problems,
)
from dsforge.engines import BY_NAME
from dsforge.job import Sharding, TorchStrategy
from dsforge.plan import Plan
from dsforge.planner.ways import stages_of_ways
from dsforge.render.job import train_job
from dsforge.strategy import Constraints

CLUSTERS: dict[str, dict[str, Any]] = {
    "one": {"gpu": "a100-80gb", "gpus_per_node": 1},
    "node": {"gpu": "a100-40gb", "gpus_per_node": 8},
    "nodes": {"gpu": "h100-80gb", "nodes": 4, "gpus_per_node": 8, "inter_node": "ib-ndr"},
}
WORKS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp16": {"precision": "fp16"},
    "fp32": {"precision": "fp32", "optimizer": "sgd"},
    "lora": {"method": "lora"},
}
MODELS = ("gpt2", "llama-3.1-8b", "llama-3.2-3b", "qwen2.5-7b", "llama-2-70b", "bloom-3b")


def ranked(model: str, on: str, work: str) -> tuple[Plan, ...]:
    """The best plan of each family; none where nothing fits."""
    spec = {"sequence_length": 1024, "global_batch_size": 64, "tokens": "10m", **WORKS[work]}
    try:
        found = dsforge.plan(model, CLUSTERS[on], spec, strategy={"program": "torch"})
    except dsforge.DoesNotFitError:
        return ()
    return found.search.plans


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("on", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
def test_the_trainer_accepts_what_is_planned(model: str, on: str, work: str) -> None:
    """No rule of a torch block, its model or its ranks is broken by any ranked plan."""
    for plan in ranked(model, on, work):
        job, strategy = train_job(plan, plan.strategy), plan.strategy
        assert job.torch is not None
        assert job.deepspeed_config is None
        layout, shape = strategy.layout, shape_of(plan.model)
        tied = plan.model.tied_embeddings
        assert not torch_job_problems(job)
        assert not [*torch_model_problems(layout.tensor_parallel_size, shape)]
        assert not [*torch_stage_problems(layout.pipeline_parallel_size, shape, tied=tied)]
        node = plan.cluster.gpus_per_node
        assert not [*torch_rank_problems(job.torch, plan.cluster.gpus, node)]
        split = layout.tensor_parallel_size * layout.pipeline_parallel_size
        assert plan.cluster.gpus == split * layout.data_parallel_size


def test_each_engine_has_its_stages() -> None:
    """DDP replicates or shards the optimizer; FSDP2 shards more; unshared, each has its lowest."""
    fixed = Constraints(program="torch")

    assert stages_of_ways(fixed, "deepspeed", shared=True) == (0, 1, 2, 3)
    assert stages_of_ways(fixed, "deepspeed", shared=False) == (0, 2)


def test_every_strategy_of_a_torch_block_is_planned() -> None:
    """All strategies and kinds of sharding that train.yaml can name come up among the families."""
    named, kinds = set(), set()
    for stage in (0, 1, 2, 3):
        for cluster in CLUSTERS.values():
            fixed = {"program": "torch", "zero_stage": stage, "tensor_parallel_size": 1}
            made = dsforge.estimate("gpt2", cluster, {"sequence_length": 512}, strategy=fixed).plan
            torch = train_job(made, made.strategy).torch
            assert torch is not None
            named.add(torch.strategy)
            kinds.add(torch.sharding)

    assert named == set(get_args(TorchStrategy))
    assert kinds == set(get_args(Sharding))


def test_stages_of_a_pipeline_keep_whole_gradients() -> None:
    """FSDP2 under torch's pipeline: float32 gradients of a stage, not a shard of them."""
    fixed = {"program": "torch", "zero_stage": 3, "recompute": "full", "micro_batch_size": 1}
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    made = dsforge.estimate("llama-3.1-8b", CLUSTERS["node"], strategy={**fixed, **sizes}).plan
    whole = dsforge.estimate("llama-3.1-8b", CLUSTERS["node"], strategy=fixed).plan

    assert made.strategy.engine is BY_NAME["fsdp"]
    assert made.choice.memory.terms.gradients > 2 * whole.choice.memory.terms.gradients
    assert made.choice.memory.terms.gradients > 4 * made.parameters / 2 * 0.9
