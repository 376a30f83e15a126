"""What offload costs: passes over the node's memory, copies, and what a foreign config adds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge import catalog
from dsforge.estimate.family_costs import family_costs
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.offload import SOCKET_BYTES_PER_S, THREAD_BYTES_PER_S, offload, pass_bytes
from dsforge.estimate.params import parameters
from dsforge.estimate.time import estimate_time
from dsforge.specs import ClusterSpec
from dsforge.strategy import Strategy
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
    assert cpu_s(cores, how) >= pass_bytes(workload()) * parameters(LLAMA) / NODE * 0.99


def test_a_step_is_the_sum_of_its_passes() -> None:
    """AdamW in 16 bits: scaling 8 bytes a parameter, the optimizer 28, the cast 6."""
    how = strategy(8, zero_stage=2, offload_optimizer="cpu")

    assert pass_bytes(workload()) == 42
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
    assert (moved.micro_step_s > 0) == (stage == 3)
    assert moved.copies_s(2) > moved.copies_s(1)


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
