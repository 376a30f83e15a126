"""What distinguishes trainers in memory: shards, gradient buffers, stages, losses, readings."""

from __future__ import annotations

from typing import Any

import pytest

from dsforge import catalog
from dsforge.engines import nanotron
from dsforge.estimate.activations import (
    checkpoint_token_bytes,
    kept_token_bytes,
    layer_token_bytes,
)
from dsforge.estimate.cut import stages
from dsforge.estimate.loss import head_bytes, logit_token_bytes
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.states import loads
from dsforge.layout import Layout
from dsforge.specs import ClusterSpec, LoraSpec, Workload
from dsforge.strategy import Execution, Strategy
from dsforge.units import GIB

LLAMA = catalog.model("llama-2-7b")
CARD = catalog.gpu("h100-80gb")
CLUSTER = ClusterSpec(
    nodes=1,
    gpus_per_node=8,
    gpu=CARD,
    intra_node=catalog.default_intra_node(CARD),
    inter_node=catalog.link("infiniband-400"),
    host_memory_bytes=1 << 40,
    cpu_cores=96,
)
WORK = Workload(sequence_length=4096, global_batch_size=64, learning_rate=1e-4)


def how(trainer: str, *, zero: int = 0, tp: int = 1, pp: int = 1, **values: Any) -> Strategy:
    """A strategy on eight ranks run by a trainer."""
    run = {name: values.pop(name) for name in list(values) if name in Execution.model_fields}
    dp = 8 // (tp * pp)
    layout = Layout(data_parallel_size=dp, tensor_parallel_size=tp, pipeline_parallel_size=pp)
    settings = {
        "layout": layout,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 64 // dp,
        "zero_stage": zero,
        "execution": Execution(trainer=trainer, **run),
        **values,
    }
    return Strategy.model_validate(settings)


def kept(strategy: Strategy) -> Any:
    """States of the first stage."""
    return loads(LLAMA, CLUSTER, WORK, strategy)[0].kept


def peak_gib(strategy: Strategy) -> float:
    """Likely allocated GiB of the fullest rank."""
    return estimate_memory(LLAMA, CLUSTER, WORK, strategy).allocated_bytes.likely / GIB


def test_fsdp_shards_float32_weights_gradients_and_moments() -> None:
    """Sixteen bytes a parameter over the ranks; the shard is the master weight."""
    states = kept(how("fsdp", zero=3))
    held = states.weights + states.gradients + states.optimizer

    assert held == pytest.approx(16 * 6_738_415_616 / 8)


def test_a_shard_group_keeps_states_within_fewer_ranks() -> None:
    """Hybrid sharding over four of eight ranks doubles what each holds."""
    whole, hybrid = kept(how("fsdp", zero=3)), kept(how("fsdp", zero=3, shard_group=4))

    assert hybrid.weights == pytest.approx(2 * whole.weights)


def test_sharding_gradients_only_leaves_all_layers_gathered() -> None:
    """FSDP's SHARD_GRAD_OP holds the whole model in bf16 beside the shards."""
    assert peak_gib(how("fsdp", zero=2)) - peak_gib(how("fsdp", zero=3)) > 10


@pytest.mark.parametrize(
    ("moments", "bytes_per_parameter"), [("fp32", 8), ("bf16", 4), ("int8", 2)]
)
def test_moments_have_the_size_of_their_type(moments: str, bytes_per_parameter: int) -> None:
    """Two moments a parameter and no master weights in pure bf16."""
    states = kept(how("torchtune", master_weights=False, moments=moments))

    assert states.optimizer == bytes_per_parameter * 6_738_415_616


def test_a_step_fused_into_backward_keeps_no_gradients() -> None:
    """Neither in the states nor at the end of backward."""
    assert kept(how("torchtune", fused_backward=True)).gradients == 0


def test_nanotron_accumulates_in_float32_beside_its_bf16_buckets() -> None:
    """Six bytes a parameter that stay, and two in the buckets of its data-parallel ranks."""
    strategy = how("nanotron", zero=1, kernels="fused_norms", gradients="fp32")
    memory = estimate_memory(LLAMA, CLUSTER, WORK, strategy)

    assert memory.terms.gradients == 4 * 6_738_415_616
    assert memory.terms.buffers >= 2 * 6_738_415_616


def test_nanotron_weighs_the_head_when_it_fills_stages() -> None:
    """A vocabulary worth two and a half layers moves layers to the first stages."""
    small = LLAMA.model_copy(
        update={
            "layers": 24,
            "hidden_size": 2048,
            "ffn_hidden_size": 4096,
            "head_size": 64,
            "attention_heads": 32,
            "vocab_size": 50257,
        }
    )
    first, *_, last = stages(small, 8, split=nanotron.stage_layers)

    assert (first.layers, last.layers) == (4, 0)


@pytest.mark.parametrize(("layers", "ends"), [(32, (8, 8)), (30, (7, 7)), (31, (8, 7))])
def test_embedding_and_head_may_take_a_layers_place(layers: int, ends: tuple[int, int]) -> None:
    """Where layers and two divide, the ends have one less; else they share what is left."""
    first, *_, last = stages(LLAMA.model_copy(update={"layers": layers}), 4)

    assert (first.layers, last.layers) == ends


@pytest.mark.parametrize(
    ("loss", "bytes_per_logit"), [("plain", 6), ("softmax", 10), ("chunked_output", 4)]
)
def test_the_loss_decides_what_a_logit_costs(loss: str, bytes_per_logit: int) -> None:
    """Megatron in place, its fused kernel, and a loss in chunks; over tensor ranks."""
    strategy = how("megatron", tp=2, loss=loss)

    assert logit_token_bytes(LLAMA, WORK, strategy) == bytes_per_logit * 32000 / 2


def test_a_fused_head_and_loss_never_hold_whole_logits() -> None:
    """Liger's chunks are as wide as the layer, whatever the vocabulary."""
    wide = LLAMA.model_copy(update={"vocab_size": 256_000})
    strategy = how("deepspeed", zero=3, loss="fused")

    assert head_bytes(wide, WORK, strategy).token == head_bytes(LLAMA, WORK, strategy).token


def test_a_fused_loss_sums_the_gradient_of_a_head_that_is_trained() -> None:
    """Its sum and a chunk's product in 16 bits, the product in 32; none of a frozen head."""
    strategy = how("deepspeed", zero=3, loss="fused")
    lora = WORK.model_copy(update={"method": "lora", "lora": LoraSpec(rank=8, alpha=16)})

    assert head_bytes(LLAMA, WORK, strategy).fixed == (2 + 2 + 4) * 32000 * 4096
    assert head_bytes(LLAMA, lora, strategy).fixed == 0


def test_eager_attention_keeps_scores_that_grow_with_the_sequence() -> None:
    """Twice the tokens, twice the scores of each; flash attention keeps none."""
    longer = WORK.model_copy(update={"sequence_length": 8192})
    strategy = how("megatron", attention="eager", kernels="fused")
    flash = how("megatron", kernels="fused")
    scores = layer_token_bytes(LLAMA, WORK, strategy) - layer_token_bytes(LLAMA, WORK, flash)

    assert layer_token_bytes(LLAMA, longer, strategy) > layer_token_bytes(LLAMA, WORK, strategy)
    assert layer_token_bytes(LLAMA, longer, flash) == layer_token_bytes(LLAMA, WORK, flash)
    assert scores == pytest.approx(6 * 32 * 4096, rel=1e-2)


@pytest.mark.parametrize(("trainer", "kernels"), [("fsdp", "eager"), ("megatron", "fused")])
def test_recomputation_orders_what_is_kept(trainer: str, kernels: str) -> None:
    """None keeps most, selective less or as much, full only the input of the layer."""
    none, selective, full = (
        kept_token_bytes(LLAMA, WORK, this, layer_token_bytes(LLAMA, WORK, this))
        for this in (
            how(trainer, kernels=kernels, recompute=level)
            for level in ("none", "selective", "full")
        )
    )

    assert none >= selective > full
    assert full == checkpoint_token_bytes(LLAMA, WORK, how(trainer, kernels=kernels))


def test_gathered_inputs_cost_a_whole_vector_for_each_norm() -> None:
    """Saved for backward they are held by every tensor rank."""
    saved, again = (
        layer_token_bytes(
            LLAMA,
            WORK,
            how("nanotron", tp=8, kernels="fused_norms", sequence_parallel=True, gathered_inputs=g),
        )
        for g in ("saved", "gathered_again")
    )

    assert saved - again == pytest.approx(2 * 2 * 4096 * 7 / 8)


def test_the_last_stage_of_an_interleaved_pipeline_holds_most_chunks() -> None:
    """It has all but its last chunk forward before the first goes backward."""
    one = how("megatron", pp=4, gradients="fp32", kernels="fused")
    many = one.model_copy(update={"virtual_stages": 8})
    last_one, last_many = (
        estimate_memory(LLAMA, CLUSTER, WORK, this, rank="last").terms.activations
        for this in (one, many)
    )

    assert last_many / last_one == pytest.approx(29 / 8, rel=0.01)


def test_the_rank_that_is_asked_for_is_priced() -> None:
    """The fullest rank is one of the two ends."""
    strategy = how("megatron", pp=4, gradients="fp32", kernels="fused")
    first, last, fullest = (
        estimate_memory(LLAMA, CLUSTER, WORK, strategy, rank=rank).allocated_bytes.likely
        for rank in ("first", "last", "fullest")
    )

    assert first != last
    assert fullest == max(first, last)
