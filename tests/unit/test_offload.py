"""What offload costs: passes over the node's memory, copies, and what a foreign config adds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsforge
from dsforge import catalog
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.offload import SOCKET_BYTES_PER_S, THREAD_BYTES_PER_S, offload, pass_bytes
from dsforge.estimate.params import parameters
from dsforge.estimate.time import estimate_time
from dsforge.estimate.traffic import NEVER_HIDDEN
from dsforge.specs import ClusterSpec
from dsforge.strategy import Strategy
from dsforge.units import GIB
from tests.planning import cluster, strategy, workload

NODE = 2 * SOCKET_BYTES_PER_S
LLAMA = catalog.model("llama-2-7b")


def theirs(**change: Any) -> Strategy:
    """A strategy whose config has DeepSpeed's own buckets: not written by dsforge."""
    own = strategy(8, **change)
    run = own.runs_as.model_copy(update={"buckets": "engine"})
    return own.model_copy(update={"execution": run})


ONE = strategy(1, zero_stage=2, offload_optimizer="cpu")


def one_card(cores: int) -> ClusterSpec:
    """One accelerator and some cores."""
    return cluster(gpus=1, cpu_cores=cores)


def cpu_s(cores: int, how: Strategy) -> float:
    """Seconds of the passes on the CPU."""
    return offload(family_costs(LLAMA, cluster(cpu_cores=cores), workload(), how), how).cpu_s


@given(cores=st.integers(8, 512), more=st.integers(0, 512), stage=st.sampled_from((1, 2, 3)))
def test_more_cores_are_never_slower(cores: int, more: int, stage: int) -> None:
    """Until the node's memory is the limit, which no core changes."""
    how = strategy(8, zero_stage=stage, offload_optimizer="cpu")

    assert cpu_s(cores + more, how) <= cpu_s(cores, how)
    assert (
        cpu_s(cores, how) >= pass_bytes(workload(), how.runs_as) * parameters(LLAMA) / NODE * 0.99
    )


def test_a_step_is_the_sum_of_its_passes() -> None:
    """AdamW in 16 bits: scaling 8 bytes a parameter, the optimizer 28, the cast 6."""
    how = strategy(8, zero_stage=2, offload_optimizer="cpu")

    assert pass_bytes(workload(), how.runs_as) == 42
    rates = {2: 2 * THREAD_BYTES_PER_S, 8: SOCKET_BYTES_PER_S, 96: NODE}
    for cores, rate in rates.items():
        alone = offload(family_costs(LLAMA, one_card(cores), workload(), ONE), ONE).cpu_s
        assert alone == pytest.approx(42 * parameters(LLAMA) / rate, rel=1e-3)
    assert cpu_s(96, how) == pytest.approx(42 * parameters(LLAMA) / NODE, rel=1e-3)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_accumulated_gradients_cross_the_link_in_every_micro_step(stage: int) -> None:
    """Stages 1 and 2 add them on the device only where there are several; stage 3 always."""
    how = strategy(8, zero_stage=stage, offload_optimizer="cpu")
    moved = offload(family_costs(LLAMA, cluster(), workload(), how), how)

    assert (moved.accumulating_s > 0) == (stage < 3)
    assert (moved.streamed_s > 0) == (stage == 3)
    assert moved.copies_s(2, 1.0) > moved.copies_s(1, 1.0)


@given(
    compute_s=st.floats(0, 100),
    more_s=st.floats(0, 100),
    where=st.sampled_from(("none", "cpu")),
)
def test_compute_hides_copies_of_stage_3_and_never_makes_a_step_shorter(
    compute_s: float, more_s: float, where: str
) -> None:
    """What is hidden grows more slowly than the compute that hides it."""
    how = strategy(8, zero_stage=3, offload_optimizer="cpu", offload_parameters=where)
    moved = offload(family_costs(LLAMA, cluster(), workload(), how), how)
    alone, beside = moved.each_s(2, compute_s), moved.each_s(2, compute_s + more_s)

    assert beside <= alone <= moved.streamed_s
    assert beside + more_s >= alone
    assert beside >= NEVER_HIDDEN * moved.streamed_s


def test_sums_below_stage_3_wait_for_the_reduction_that_they_are_part_of() -> None:
    """Compute hides none of them, and both directions count."""
    how = strategy(8, zero_stage=2, offload_optimizer="cpu")
    moved = offload(family_costs(LLAMA, cluster(), workload(), how), how)

    assert moved.each_s(2, 100.0) == moved.each_s(2, 0.0) == moved.accumulating_s


@given(stage=st.sampled_from((1, 2, 3)), micro=st.sampled_from((1, 2, 4)))
def test_only_a_foreign_config_widens_the_upper_end(stage: int, micro: int) -> None:
    """Files of dsforge page-lock buffers and set threads; others may do neither."""
    change: dict[str, Any] = {
        "zero_stage": stage,
        "offload_optimizer": "cpu",
        "micro_batch_size": micro,
    }
    own, other = (
        offload(family_costs(LLAMA, cluster(), workload(), how), how)
        for how in (strategy(8, **change), theirs(**change))
    )
    step = estimate_time(LLAMA, cluster(), workload(), theirs(**change)).step_s

    assert own.slower is None
    assert other.slower is not None
    assert other.slower.at(4) > other.slower.at(1) > 0
    assert other[:4] == own[:4]
    assert step.high > step.likely + other.slower.at(1)


def test_ranks_of_a_foreign_trainer_may_each_load_a_float32_model() -> None:
    """Eight models of 6 bytes a parameter; dsforge's own trainer reads as the phase `load` says."""
    own, other = (
        estimate_memory(LLAMA, cluster(), workload(), how).load_copies_bytes
        for how in (strategy(8, zero_stage=2), theirs(zero_stage=2))
    )

    assert own == 0
    assert other == 8 * 6 * parameters(LLAMA)


def test_the_step_of_stage_0_holds_two_float32_copies_of_gradients() -> None:
    """2 + 2 bytes of weights and gradients, 12 of states, 8 of copies while the optimizer steps."""
    how = strategy(1, zero_stage=0)
    kept = family_costs(LLAMA, cluster(gpus=1), workload(), how).fullest.kept

    total = kept.weights + kept.gradients + kept.optimizer + kept.step_gradients
    assert total == 24 * parameters(LLAMA)


@given(stage=st.sampled_from((1, 2, 3)))
def test_the_optimizer_on_the_cpu_of_others_is_less_certain_than_their_kernels(stage: int) -> None:
    """Nobody said how many threads they start, nor where their memory lies."""
    known = strategy(8, zero_stage=stage, offload_optimizer="cpu")
    run = known.runs_as.model_copy(update={"loss": "plain"})
    own = known.model_copy(update={"execution": run})
    run = own.runs_as.model_copy(update={"software": "others"})
    other = own.model_copy(update={"execution": run})
    mine, theirs = (estimate_time(LLAMA, cluster(), workload(), how) for how in (own, other))
    cpu = cpu_s(96, own)

    assert theirs.step_s.likely == pytest.approx(mine.step_s.likely)
    assert theirs.step_s.high - theirs.step_s.likely > 2 * cpu
    assert theirs.step_s.low <= mine.step_s.low


@pytest.mark.parametrize("optimizer", ["adamw", "paged_adamw_8bit", "paged_adamw_32bit"])
def test_what_fsdp_has_moved_to_ram_is_moved_once(optimizer: str) -> None:
    """Pages of bitsandbytes are in RAM with all the rest: nothing is left to be moved."""
    work = {"sequence_length": 1024, "global_batch_size": 8, "optimizer": optimizer}
    fixed = {"trainer": "fsdp", "software": "others", "zero_stage": 3, "offload_parameters": "cpu"}
    node = {"gpu": "a100-80gb", "gpus_per_node": 8}
    found = dsforge.estimate("llama-2-7b", node, work, strategy=fixed).plan.choice

    assert found.memory.terms.optimizer_state == 0


@pytest.mark.parametrize(
    ("fixed", "flat"),
    [
        ({"trainer": "fsdp", "software": "others"}, True),
        ({"program": "accelerate-fsdp1"}, True),
        ({"program": "accelerate-fsdp"}, False),
        ({"trainer": "torchtune", "software": "others"}, False),
    ],
    ids=str,
)
def test_gradients_of_frozen_weights_are_pinned_by_the_first_fsdp(
    fixed: dict[str, Any], flat: bool
) -> None:
    """LoRA of 7 B: 13 GB of frozen weights, twice where they are flat parameters."""
    work = {"sequence_length": 1024, "global_batch_size": 8, "method": "lora"}
    node = {"gpu": "a100-80gb", "gpus_per_node": 8}
    asked = {"zero_stage": 3, "offload_parameters": "cpu", **fixed}
    found = dsforge.estimate("llama-2-7b", node, work, strategy=asked).plan.choice

    assert found.strategy.has_flat_parameters is flat
    step = found.memory.host_bytes.step
    assert (step > 50 * GIB) is flat
