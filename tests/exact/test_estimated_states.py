"""The planner's bytes of the optimizer are those that the simulator has tensor by tensor."""

from __future__ import annotations

import pytest
from planning import cluster, strategy, workload

from dsforge import catalog
from dsforge.estimate.params import parameters
from dsforge.estimate.states import loads
from dsforge.exact.fullest import engine_rank
from dsforge.exact.residency import FLAG_BYTES, resident
from dsforge.huggingface import tiny
from dsforge.strategy import EXECUTIONS, ZeroStage

RANKS = 8
MODEL = tiny(catalog.model("llama-2-7b"))
PADDING = 0.02  # of a tiny model's partitions
SIZES = {"bf16": (2, 4), "fp16": (2, 4), "fp32": (4, 4), "bf16_states": (2, 2)}  # computed, stepped
CASES = [
    (stage, kind, place)
    for stage in (0, 1, 2, 3)
    for kind in SIZES
    for place in ("none", "cpu")
    if stage or (kind != "bf16_states" and place == "none")
]


@pytest.mark.parametrize(("stage", "kind", "place"), CASES)
def test_master_weights_and_moments_are_those_of_the_simulator(
    stage: ZeroStage, kind: str, place: str
) -> None:
    """On the device or in RAM, of each type, under each stage."""
    computed, stepped = SIZES[kind]
    narrow = kind == "bf16_states"
    states = {"master_weights": not narrow, "moments": "bf16" if narrow else "fp32"}
    run = EXECUTIONS["deepspeed"].model_copy(update=states)
    how = strategy(RANKS, zero_stage=stage, offload_optimizer=place, execution=run)
    work = workload(precision=kind.removesuffix("_states"))
    (load,) = loads(MODEL, cluster(1, RANKS), work, how)
    exact = resident(engine_rank(MODEL, work, how, load.buckets), "step")

    on_device = exact.device.optimizer_state - (0 if place == "cpu" else FLAG_BYTES)
    assert load.kept.optimizer == pytest.approx(on_device, rel=PADDING)
    if place == "cpu":  # beside gradients that wait for the step, and weights that come back
        others = (stepped + computed) * parameters(MODEL) / RANKS
        moved = exact.host.optimizer_state
        assert load.kept.host - others == pytest.approx(moved, rel=PADDING)
