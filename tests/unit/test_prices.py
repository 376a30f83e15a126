"""Memory and time of one strategy: states by stage, terms, properties that always hold."""

from __future__ import annotations

import pytest
from planning import DISK, GIB, cluster, lora_workload, strategy, workload

from dsforge import catalog
from dsforge.estimate.comm import channel, gather_bytes
from dsforge.estimate.flops import forward_flops
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.params import parameters
from dsforge.estimate.states import States, loads
from dsforge.estimate.time import estimate_time
from dsforge.planner import price
from dsforge.planner.pricing import missing
from dsforge.specs import Workload
from dsforge.strategy import EXECUTIONS, Strategy

LLAMA = catalog.model("llama-2-7b")
SIZES = (1, 2, 4, 8, 16, 64)


def kept(how: Strategy, work: Workload | None = None) -> States:
    """States of the first rank of a 7 B model."""
    nodes = max(1, how.layout.world_size // 8)
    return loads(LLAMA, cluster(nodes), work or workload(), how)[0].kept


def device_states(found: States) -> float:
    """Weights, gradients and optimizer state on the device."""
    return found.weights + found.gradients + found.optimizer


@pytest.mark.parametrize(
    ("stage", "per_parameter"),
    [(0, 2 + 2 + 12), (1, 2 + 2 + 12 / 8), (2, 2 + 2 / 8 + 12 / 8), (3, 16 / 8)],
    ids=["ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3"],
)
def test_each_stage_shards_what_its_name_says(stage: int, per_parameter: float) -> None:
    """Bytes per parameter on one of eight ranks, mixed precision with AdamW."""
    found = kept(strategy(8, zero_stage=stage))

    assert device_states(found) / parameters(LLAMA) == pytest.approx(per_parameter, rel=1e-6)


def test_megatron_keeps_6_bytes_and_shards_12() -> None:
    """Its distributed optimizer: bf16 weights, fp32 gradients, 12 bytes over the replicas."""
    found = kept(strategy(8, back_end="megatron", zero_stage=1))

    assert device_states(found) / parameters(LLAMA) == pytest.approx(6 + 12 / 8, rel=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_never_grow_with_data_parallelism(stage: int) -> None:
    """Twice the ranks never need more bytes of states each."""
    for dp in SIZES:
        one, two = (kept(strategy(n, batch=128, zero_stage=stage)) for n in (dp, 2 * dp))

        assert device_states(two) <= device_states(one) + 1


@pytest.mark.parametrize("dp", SIZES)
def test_states_are_ordered_by_zero_stage(dp: int) -> None:
    """ZeRO 0 >= 1 >= 2 >= 3."""
    sizes = [device_states(kept(strategy(dp, batch=64, zero_stage=n))) for n in (0, 1, 2, 3)]

    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt2-xl", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize(("stage", "recompute"), [(0, "none"), (0, "full"), (3, "full")])
def test_activations_never_fall_with_the_micro_batch(stage: int, recompute: str, name: str) -> None:
    """Twice the micro batch never needs less memory for activations and logits."""
    model = catalog.model(name)
    how = {"batch": 256, "zero_stage": stage, "recompute": recompute}
    found = [
        estimate_memory(
            model, cluster(), workload(1024, 256), strategy(8, micro_batch_size=n, **how)
        )
        for n in (1, 2, 4, 8, 16)
    ]
    sizes = [one.allocated_bytes.likely for one in found]

    assert sizes == sorted(sizes)


def test_recomputation_trades_memory_for_time() -> None:
    """Less than a third of the activations, 20 to 40 % more compute."""
    none, full = (
        price(LLAMA, cluster(), workload(4096), strategy(8, zero_stage=2, recompute=how))
        for how in ("none", "full")
    )

    assert full.memory.terms.activations < none.memory.terms.activations / 3
    assert 1.2 < full.time.terms.compute_s / none.time.terms.compute_s < 1.4


def test_lora_trains_adapters_only() -> None:
    """Frozen weights stay, gradients and optimizer state almost vanish; backward costs half."""
    how = strategy(8, zero_stage=2)
    full, lora = kept(how), kept(how, lora_workload())
    slow, fast = (
        estimate_time(LLAMA, cluster(), work, how) for work in (workload(), lora_workload())
    )

    assert lora.weights >= full.weights
    assert lora.gradients + lora.optimizer < 0.02 * (full.gradients + full.optimizer)
    assert fast.terms.compute_s < 0.9 * slow.terms.compute_s  # a third less, and the adapters' own


def test_optimizer_offload_moves_its_state_into_host_memory() -> None:
    """12 bytes of state and 4 of fp32 gradient leave the device; a node holds all its ranks'."""
    how = strategy(8, zero_stage=2, offload_optimizer="cpu")
    memory = estimate_memory(LLAMA, cluster(), workload(), how)

    assert memory.terms.optimizer_state == 0
    assert memory.host_bytes.step > 16 * parameters(LLAMA)


def test_nvme_offload_swaps_to_disk() -> None:
    """Parameters and optimizer on NVMe: disk bytes, aio settings, and a slower step."""
    on = cluster(nvme=DISK)
    disk, ram = (
        price(
            LLAMA,
            on,
            workload(),
            strategy(8, zero_stage=3, offload_optimizer=where, offload_parameters=where),
        )
        for where in ("nvme", "cpu")
    )

    assert disk.memory.nvme_bytes > 12 * parameters(LLAMA)
    assert disk.aio is not None
    assert ram.aio is None
    assert disk.time.step_s.likely > ram.time.step_s.likely


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["gpt2-small", "llama-2-7b", "deepseek-v3", "opt-66b"])
def test_bucket_sizes_are_positive_integers_no_larger_than_the_model(name: str, stage: int) -> None:
    """Also where 0.9 x hidden^2 is a fraction; the reduce bucket holds whole pairs."""
    model = catalog.model(name)
    found = price(model, cluster(), workload(1024), strategy(8, zero_stage=stage)).buckets

    assert all(isinstance(v, int) for k, v in found if k != "overlap_comm")
    assert found.allgather_bucket_size % 2 == 0
    assert found.reduce_bucket_size <= parameters(model) + 1
    assert found.prefetch_bucket_size <= found.reduce_bucket_size


def test_aio_buffers_hold_the_largest_partition() -> None:
    """DeepSpeed asserts that a parameter's partition fits into a swap buffer."""
    how = strategy(8, zero_stage=3, offload_optimizer="nvme", offload_parameters="nvme")
    aio = price(LLAMA, cluster(nvme=DISK), workload(), how).aio

    assert aio is not None
    assert aio.parameter_buffer_size * 8 >= LLAMA.vocab_size * LLAMA.hidden_size
    assert aio.parameter_buffer_size * 8 >= LLAMA.hidden_size * LLAMA.ffn_hidden_size


def test_cpu_ranks_share_one_budget_with_the_host() -> None:
    """Two CPU ranks on 24 GiB: only the host's RAM counts."""
    on = cluster(1, 2, "cpu", host_memory_bytes=24 * GIB, cpu_cores=2)
    memory = estimate_memory(catalog.model("smollm2-135m"), on, workload(512, 8), strategy(2))

    assert set(missing(on, memory)) == {"host"}


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt3-175b", "qwen2.5-7b", "mixtral-8x7b"])
def test_forward_flops_are_near_twice_the_active_parameters(name: str) -> None:
    """Short sequence: 2 FLOPs per active matrix element; embeddings multiply nothing."""
    from dsforge.estimate.params import parameter_counts

    model = catalog.model(name)
    active = parameter_counts(model).active - parameter_counts(model).embedding
    active -= parameter_counts(model).position_embedding
    active += model.vocab_size * model.hidden_size if model.tied_embeddings else 0

    assert forward_flops(model, 2) == pytest.approx(2 * active, rel=0.01)


def test_attention_flops_grow_with_the_sequence_and_stop_at_the_window() -> None:
    """A sliding window bounds what one token attends to."""
    windowed, full = catalog.model("mistral-7b-v0.1"), LLAMA
    growth = [
        forward_flops(model, 32_768) - forward_flops(model, 16_384) for model in (windowed, full)
    ]

    assert growth[0] < 0.2 * growth[1]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sent_bytes_follow_the_engine(stage: int) -> None:
    """Two micro steps: all-reduce once (0, 1) or twice (2), gather after (1, 2), 3 moves (3)."""
    how = strategy(8, batch=16, zero_stage=stage)
    moves = {0: 2, 1: 2 + 1, 2: 2 * 2 + 1, 3: 2 * 3}[stage]

    sent = estimate_time(LLAMA, cluster(), workload(batch=16), how).sent_bytes

    assert sent == pytest.approx(moves * gather_bytes(2 * parameters(LLAMA), 8), rel=1e-6)


def test_zero_plus_plus_sends_less() -> None:
    """HpZ gathers once from all ranks; int8 weights and int4 gradients are a half and a quarter."""
    run = EXECUTIONS["deepspeed"]
    few = {"quantized_weights": True, "quantized_gradients": True}
    plain, fewer, near = (
        estimate_time(LLAMA, cluster(2, inter="10gbe"), workload(batch=16), how)
        for how in (
            strategy(16, batch=16, zero_stage=3),
            strategy(16, batch=16, zero_stage=3, execution=run.model_copy(update=few)),
            strategy(16, batch=16, zero_stage=3, hpz_partition_size=8),
        )
    )
    whole = gather_bytes(2 * parameters(LLAMA), 16)

    assert plain.sent_bytes == pytest.approx(3 * whole, rel=1e-6)
    assert fewer.sent_bytes == pytest.approx((2 / 2 + 1 / 4) * whole, rel=1e-6)
    assert near.sent_bytes == pytest.approx(
        2 * gather_bytes(2 * parameters(LLAMA), 8) + 2 * whole, rel=1e-6
    )
    assert near.terms.communication_s < 0.75 * plain.terms.communication_s
    assert fewer.terms.communication_s < 0.5 * plain.terms.communication_s


def test_neighbouring_groups_share_the_adapters_of_a_node() -> None:
    """Eight data-parallel groups of a tensor-parallel node get an eighth each."""
    on = cluster(16)
    alone, shared = channel(on, 128, 1), channel(on, 16, 8)

    assert alone.bytes_per_s == pytest.approx(8 * shared.bytes_per_s, rel=0.01)


def test_a_slower_network_never_makes_a_step_faster() -> None:
    """The same strategy over five networks, fastest first."""
    names = ("infiniband-400", "infiniband-200", "100gbe", "25gbe", "10gbe")
    steps = [
        estimate_time(LLAMA, cluster(4, inter=name), workload(), strategy(32, zero_stage=3))
        for name in names
    ]

    assert [s.step_s.likely for s in steps] == sorted(s.step_s.likely for s in steps)


@pytest.mark.parametrize("dp", [1, 8])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_terms_add_up_to_the_step_within_its_interval(dp: int, stage: int, recompute: str) -> None:
    """The sum of the terms is the likely step, and the interval holds it."""
    how = strategy(dp, zero_stage=stage, recompute=recompute)
    time = estimate_time(LLAMA, cluster(1, dp), workload(), how)

    assert sum(value for _, value in time.terms) == pytest.approx(time.step_s.likely)
    assert time.step_s.low < time.step_s.likely < time.step_s.high
