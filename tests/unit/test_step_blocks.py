"""What the optimizer step of ZeRO stages 1 and 2 reserves beside what backward has freed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import cluster, strategy, workload

from dsforge import catalog
from dsforge.engines import BY_NAME
from dsforge.estimate.memory import CONTEXT, SLACK, MemoryEstimate, estimate_memory

CARD, WEIGHTS = 80 * 1024**3, 8_030_261_248


def needed(
    nodes: int,
    length: int,
    software: str,
    optimizer: str = "adamw",
    trainer: str = "deepspeed",
    **told: Any,
) -> MemoryEstimate:
    """Memory of 8 B on nodes of eight cards, with the buckets and the loss of most scripts."""
    update = {"software": software, "buckets": "engine", "loss": "plain"}
    execution = BY_NAME[trainer].execution.model_copy(update=update)
    given = strategy(8 * nodes, recompute="full", execution=execution, **told)
    work = workload(length, optimizer=optimizer)
    return estimate_memory(catalog.model("llama-3.1-8b"), cluster(nodes), work, given)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1, 2]), st.integers(1, 8), st.integers(256, 60_000))
def test_blocks_are_reserved_where_there_is_room(stage: int, nodes: int, length: int) -> None:
    """At most the tensors of a step, never beyond the card, and nothing that tensors take."""
    joined = needed(nodes, length, "dsforge", zero_stage=stage)
    apart = needed(nodes, length, "others", zero_stage=stage)
    more = apart.reserved_bytes.likely - joined.reserved_bytes.likely
    most = (2 + 4 + 4) * WEIGHTS / (8 * nodes)

    assert apart.allocated_bytes.likely == joined.allocated_bytes.likely
    assert apart.reserved_bytes.low <= joined.reserved_bytes.likely
    assert 0 <= more <= most * 1.001
    assert (apart.device_bytes.likely <= CARD) == (joined.device_bytes.likely <= CARD)
    without = apart.allocated_bytes.high * SLACK.high + CONTEXT.high
    assert (apart.device_bytes.high <= CARD) == (without <= CARD)  # no plan fits less for them


@pytest.mark.parametrize(
    "told",
    [
        {"zero_stage": 3},
        {"zero_stage": 2, "offload_optimizer": "cpu"},
        {"zero_stage": 2, "trainer": "fsdp"},
    ],
    ids=["stage 3", "offload", "fsdp"],
)
def test_other_steps_reserve_no_such_blocks(told: dict[str, Any]) -> None:
    """Whoever starts them: these steps make no tensors of a whole partition of ZeRO-2."""
    ours = needed(1, 4096, "dsforge", **told)
    others = needed(1, 4096, "others", **told)

    assert others.reserved_bytes.likely == ours.reserved_bytes.likely


def test_the_roots_of_adam_are_one_of_the_blocks() -> None:
    """SGD has none of them: 4 bytes less of each weight that a rank steps."""
    adam, sgd = (needed(2, 20_000, "others", name, zero_stage=2) for name in ("adamw", "sgd"))
    states = 4 * WEIGHTS / 16  # one moment more
    reserved = adam.reserved_bytes.likely - sgd.reserved_bytes.likely

    assert adam.allocated_bytes.likely - sgd.allocated_bytes.likely == pytest.approx(states, 0.01)
    assert reserved == pytest.approx(1.03 * states + 4 * WEIGHTS / 16, rel=0.01)
