"""One cut of a pipeline everywhere: memory, time and files look at all stages, and at the same."""

from __future__ import annotations

from pathlib import Path

import plans
import pytest
from planning import ask, cluster, strategy, workload

import dsforge
from dsforge import catalog
from dsforge.engines import ENGINES, Engine
from dsforge.estimate.cut import kinds, kinds_of, stages, stages_of
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.micro_batch_time import stage_times
from dsforge.estimate.params import parameters
from dsforge.estimate.time import estimate_time
from dsforge.planner import appraise
from dsforge.render.deepspeed import zero_context
from dsforge.render.megatron import megatron_arguments
from dsforge.specs import ModelSpec
from dsforge.strategy import Strategy

# Uneven cuts, where the inner stages hold more than the ends: model, ranks, tensor ranks, stages.
UNEVEN = (
    ("mistral-large-123b", 64, 4, 16),
    ("mixtral-8x7b", 24, 2, 12),
    ("glm-4.5", 128, 4, 32),
    ("deepseek-v2", 32, 2, 16),
    ("deepseek-v3", 256, 1, 16),
    ("llama-2-7b", 24, 1, 12),
    ("qwen3-235b-a22b", 256, 4, 32),
    ("llama-3.1-405b", 256, 8, 32),
)

PACKAGE = Path(dsforge.__file__).parent


def split(ranks: int, tp: int, pp: int, **more: object) -> Strategy:
    """Megatron with full recomputation."""
    dp = ranks // (tp * pp)
    stage = 1 if dp > 1 else 0
    return strategy(dp, tp, pp, back_end="megatron", zero_stage=stage, recompute="full", **more)


def states_of_mean(model: ModelSpec, ranks: int) -> float:
    """Bytes of all states of mixed precision with AdamW, shared by all ranks evenly."""
    return 18 * parameters(model) / ranks


@pytest.mark.parametrize(("name", "ranks", "tp", "pp"), UNEVEN, ids=[case[0] for case in UNEVEN])
def test_the_fullest_rank_holds_at_least_the_mean(name: str, ranks: int, tp: int, pp: int) -> None:
    """Weights, gradients and optimizer state of one replica on its ranks: 6 bytes, 12 sharded."""
    model, how = catalog.model(name), split(ranks, tp, pp)
    terms = estimate_memory(model, cluster(ranks // 8), workload(), how).terms
    held = parameters(model) / (tp * pp)
    whole = 6 * held + 12 * held / how.layout.data_parallel_size

    assert terms.weights + terms.gradients + terms.optimizer_state >= whole * (1 - 1e-6)
    assert terms.weights + terms.gradients >= 6 * held * (1 - 1e-6)


def test_deepseek_v2_does_not_fit_where_its_mean_does_not() -> None:
    """32 cards of 80 GB, 124 GiB of states each on average: nothing of that kind fits."""
    on = cluster(4, gpu="h100-80gb", inter="infiniband-400")
    plan = appraise(
        ask(
            "deepseek-v2",
            on,
            workload(),
            back_end="megatron",
            tensor_parallel_size=2,
            pipeline_parallel_size=16,
        )
    )

    assert not plan.choice.fits
    assert plan.choice.memory.device_bytes.likely > states_of_mean(plan.model, 32)


@pytest.mark.parametrize("virtual", [1, 2, 4])
@pytest.mark.parametrize(
    ("layers", "pp"), [(32, 4), (126, 8), (62, 4), (60, 16), (61, 16), (31, 4)]
)
def test_stages_hold_every_layer_once(layers: int, pp: int, virtual: int) -> None:
    """Also interleaved; where chunks cannot be equal, the engines refuse."""
    model = catalog.model("deepseek-v3").model_copy(update={"layers": layers})
    found = stages(model, pp, virtual)

    assert len(found) == pp
    assert sum(stage.layers for stage in found) == layers
    assert sum(stage.moe_layers for stage in found) == model.moe_layers
    assert [stage.later for stage in found] == list(range(pp))[::-1]


def test_kinds_stand_for_all_stages() -> None:
    """Every stage is exceeded by one of them, and none of them by another."""
    model = catalog.model("deepseek-v3")
    for pp in (1, 2, 4, 8, 16, 61):
        found = kinds(model, pp)

        assert all(any(kind.exceeds(stage) for kind in found) for stage in stages(model, pp))
        assert not any(a.exceeds(b) for a in found for b in found if a is not b)


def test_interleaving_moves_dense_layers_to_other_ranks() -> None:
    """Three dense layers at the beginning: in one chunk each, the first three stages have one."""
    model = catalog.model("deepseek-v3").model_copy(update={"layers": 64})
    plain, chunked = (stages(model, 16, virtual) for virtual in (1, 4))

    assert [stage.dense_layers for stage in plain[:4]] == [3, 0, 0, 0]
    assert [stage.dense_layers for stage in chunked[:4]] == [1, 1, 1, 0]


def test_a_stage_of_experts_alone_sets_the_pace() -> None:
    """61 layers on 16 stages: the inner ones have four layers with experts, the first none."""
    model = catalog.model("deepseek-v3")
    how = split(256, 1, 16, expert_parallel_size=16)
    dense = model.model_copy(update={"moe": model.moe.model_copy(update={"first_dense_layers": 0})})
    work, on = workload(4096, 64), cluster(32, gpu="h100-80gb", inter="infiniband-400")
    mixed, sparse = (estimate_time(m, on, work, how).terms.compute_s for m in (model, dense))

    assert mixed == pytest.approx(sparse)


@pytest.mark.parametrize(("layers", "pp"), [(32, 4), (30, 4), (31, 4), (22, 4), (60, 16)])
def test_files_name_the_cut_that_is_priced(layers: int, pp: int) -> None:
    """DeepSpeed gets the layers of each stage in its config."""
    on = plans.cluster(4)
    layout = strategy(on.gpus // pp, 1, pp).layout
    how = plans.deepspeed_strategy(on, zero_stage=1).model_copy(update={"layout": layout})
    plan = plans.plan(on=on, choice=how)
    model = plan.model.model_copy(update={"layers": layers})
    plan = plan.model_copy(update={"model": model})
    priced = tuple(stage.layers for stage in stages(model, pp))

    assert zero_context(plan, plan.choice).job.pipeline_layers == priced
    assert sum(priced) == layers


def test_megatron_arguments_name_the_cut_that_is_priced() -> None:
    """60 layers on 16 stages: two at both ends, four between; 62 on 4: ends count as a layer."""
    on = plans.cluster(16)
    found = {}
    for layers, pp in ((60, 16), (62, 4), (64, 16)):
        layout = strategy(on.gpus // pp, 1, pp).layout
        how = plans.megatron_strategy(on, sequence_parallel=False)
        plan = plans.plan(on=on)
        model = plan.model.model_copy(update={"layers": layers})
        how = how.model_copy(update={"layout": layout})
        words = megatron_arguments(plan.model_copy(update={"model": model}), how)
        found[layers] = [str(word) for word in words if "pipeline-" in word.flag]
        first, *inner, last = (stage.layers for stage in stages(model, pp))

        assert (first, {*inner}, last) == {60: (2, {4}, 2), 62: (15, {16}, 15), 64: (4, {4}, 4)}[
            layers
        ]

    assert any("decoder-first-pipeline-num-layers" in word for word in found[60])
    assert any("account-for-embedding" in word for word in found[62])
    assert not any("decoder" in word or "account" in word for word in found[64])


@pytest.mark.parametrize("engine", ENGINES, ids=[engine.name for engine in ENGINES])
@pytest.mark.parametrize(("name", "pp"), [("llama-3.2-1b", 2), ("smollm2-1.7b", 8)])
def test_memory_and_time_have_the_same_stages(engine: Engine, name: str, pp: int) -> None:
    """One cut for both, whoever trains: nanotron gives a stage with the head fewer layers."""
    model, work, on = catalog.model(name), workload(4096, 64), cluster(1, gpu="h100-80gb")
    how = split(8, 1, pp, execution=engine.execution)
    costs = family_costs(model, on, work, how)
    cut = kinds_of(model, how)

    assert how.engine is engine
    assert tuple(load.stage for load in costs.loads) == cut
    assert stage_times(costs, how).kinds == cut
    assert set(cut) <= set(stages_of(model, how))


def test_only_the_cut_asks_an_engine_for_its_stages() -> None:
    """A second split of the model would drift from the first one."""
    asking = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if ".stage_layers" in path.read_text(encoding="utf-8").replace("`Engine.stage_layers`", "")
    ]

    assert asking == ["estimate/cut.py"]
