"""Step time, mechanism by mechanism: what must make a step slower does, and by what it should."""

from __future__ import annotations

from typing import Any

import pytest
from planning import cluster, lora_workload, strategy, workload

from dsforge import catalog
from dsforge.engines import nanotron
from dsforge.estimate.comm import channel
from dsforge.estimate.cut import stages
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.layer_time import layer_times, setting_of
from dsforge.estimate.micro_batch_time import stage_times
from dsforge.estimate.rates import rates
from dsforge.estimate.time import estimate_time
from dsforge.strategy import EXECUTIONS

LLAMA = catalog.model("llama-2-7b")
MEGATRON = EXECUTIONS["megatron"]


def step_s(how: Any, on: Any = None, **execution: Any) -> float:
    """Likely seconds of a step of Llama 2 7B under a changed execution."""
    changed = how.runs_as.model_copy(update=execution)
    how = how.model_copy(update={"execution": changed})
    work = workload(batch=how.global_batch_size)
    return estimate_time(LLAMA, on or cluster(), work, how).step_s.likely


def test_a_thin_product_runs_below_the_rate_of_a_thick_one() -> None:
    """An eighth of the weight takes more than an eighth of the time: bytes and launches stay."""
    gpu, work = catalog.gpu("h100-80gb"), workload()
    whole, eighth = (
        layer_times(LLAMA, setting_of(gpu, work, strategy(1, tp, back_end="megatron"))).layer.at(
            4096
        )
        for tp in (1, 8)
    )

    assert 1.1 * whole / 8 < eighth < whole / 4


def test_a_card_with_less_power_holds_lower_clocks() -> None:
    """The H100 that is limited to 500 W computes slower than that with 700 W, but not by 5/7."""
    full, capped = (
        rates(catalog.gpu(name), "bf16", MEGATRON).products for name in ("h100-80gb", "h100-96gb")
    )

    assert 5 / 7 < capped / full < 0.95


def test_a_layer_of_experts_reads_all_that_it_holds() -> None:
    """Fewer ranks to share the experts: more weights to read for the same tokens."""
    model, gpu, work = catalog.model("deepseek-v3"), catalog.gpu("b200"), workload()
    few, many = (
        layer_times(model, setting_of(gpu, work, how)).moe_layer
        for how in (strategy(64, back_end="megatron", expert_parallel_size=ep) for ep in (64, 8))
    )

    assert many.fixed_s > 1.5 * few.fixed_s
    assert many.token_s == pytest.approx(few.token_s)


@pytest.mark.parametrize(
    ("layers", "pp", "body", "last"),
    [(32, 4, 8, 8), (126, 8, 16, 15), (30, 4, 8, 7)],
    ids=["even", "embedding and head count", "uneven"],
)
def test_layers_fall_on_stages_as_megatron_cuts_them(
    layers: int, pp: int, body: int, last: int
) -> None:
    """Even, or with embedding and head as one layer each, or the last stage one layer short."""
    model = LLAMA.model_copy(update={"layers": layers})

    found = [stage.layers for stage in stages(model, pp)]

    assert (max(found), found[-1]) == (body, last)


def test_nanotron_gives_the_stage_with_the_head_fewer_layers() -> None:
    """A head of four layers of matrices: a stage takes layers until it is beyond its share."""
    shape = {"layers": 16, "hidden_size": 2048, "ffn_hidden_size": 8192, "vocab_size": 131072}
    heads = {"attention_heads": 32, "kv_heads": 32, "head_size": 64, "embedding_size": 2048}
    model = LLAMA.model_copy(update=shape | heads)

    assert [stage.layers for stage in stages(model, 4, split=nanotron.stage_layers)] == [6, 5, 5, 0]


def test_a_large_vocabulary_makes_the_last_stage_the_slowest() -> None:
    """With 256 k words the head outweighs layers: the step grows by more than its share."""
    how, work = strategy(1, pp=8, batch=64, back_end="megatron"), workload(batch=64)
    wide = LLAMA.model_copy(update={"vocab_size": 256_000})
    plain, heavy = (estimate_time(m, cluster(), work, how).terms.compute_s for m in (LLAMA, wide))

    assert heavy > 1.5 * plain


@pytest.mark.parametrize(
    ("execution", "slower"),
    [
        ({"attention": "eager"}, True),
        ({"deterministic": True}, True),
        ({"kernels": "eager"}, True),
        ({"overlaps_tensor": True}, False),
    ],
    ids=["scores kept", "deterministic", "unfused kernels", "overlapped collectives"],
)
def test_software_shows_in_the_step(execution: dict[str, Any], slower: bool) -> None:
    """What the software does to a layer makes the step longer or shorter."""
    how = strategy(1, 8, batch=8, back_end="megatron", sequence_parallel=True)

    changed, plain = step_s(how, **execution), step_s(how)

    assert changed > plain if slower else changed < plain


def test_groups_within_nodes_keep_zero3_off_a_slow_network() -> None:
    """MiCS: eight ranks share the weights, so only gradients cross the nodes."""
    how, on = strategy(16, batch=16, zero_stage=3), cluster(2, inter="10gbe")

    assert step_s(how, on, shard_group=8) < step_s(how, on) / 2


def test_a_gather_waits_for_each_node_and_a_reduction_for_the_depth_of_the_tree() -> None:
    """Sixty-four nodes: a ring is 63 hops between nodes, a tree six up and six down."""
    link = channel(cluster(64), 512, 1)
    inter, intra = cluster().inter_node.latency_s, cluster().intra_node.latency_s

    assert link.round_s == pytest.approx(63 * inter + 448 * intra)
    assert link.tree_s == pytest.approx(2 * (6 * inter + 7 * intra))


def test_adapters_make_the_host_the_bottleneck_of_zero3() -> None:
    """Hooks run on every module: LoRA under stage 3 waits for Python, not for the card."""
    how, work = strategy(8, zero_stage=3), workload(512, method="lora")
    one = stage_times(family_costs(LLAMA, cluster(), work, how), how)

    assert one.host_s > 2 * one.dense.at(512)


def test_only_nanotron_waits_as_nanotron_does() -> None:
    """The waits of its sweep are no part of what other software is told."""
    how, on = strategy(2, 8, 2, batch=16, back_end="megatron"), cluster(4, gpu="h100-80gb")

    theirs = step_s(how, on, trainer="nanotron", kernels="fused_norms")

    assert theirs > 2 * step_s(how, on)


@pytest.mark.parametrize("name", ["llama-2-7b", "mixtral-8x7b"])
@pytest.mark.parametrize("trainer", ["megatron", "deepspeed", "fsdp"])
def test_frozen_weights_have_no_sums_of_gradients(name: str, trainer: str) -> None:
    """Under LoRA the type of the sums is one of adapters: a hundredth of a layer at most."""
    model, gpu, work = catalog.model(name), catalog.gpu("h100-80gb"), lora_workload()
    how = strategy(1, 2, back_end="megatron" if trainer == "megatron" else "deepspeed")
    wide, narrow = (
        layer_times(model, setting_of(gpu, work, how.model_copy(update={"execution": run})))
        for run in (
            EXECUTIONS[trainer].model_copy(update={"gradients": kind})
            for kind in ("fp32", "compute")
        )
    )

    for layer, less in ((wide.layer, narrow.layer), (wide.moe_layer, narrow.moe_layer)):
        assert less.at(512) <= layer.at(512) <= 1.01 * less.at(512)
