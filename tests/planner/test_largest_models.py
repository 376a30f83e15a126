"""What the field knows about the largest models comes out of the numbers.

Published by DeepSpeed and in the papers of ZeRO-Offload (arXiv:2101.06840) and ZeRO-Infinity
(arXiv:2104.07857) for V100 cards of 32 GB in DGX-2 nodes of 16 with 1.5 TB of RAM.
"""

from __future__ import annotations

from typing import Any

import pytest

import dsforge
from dsforge.planner.inverse import Answer

DISK = {"path": "/nvme", "size_gib": 26000, "read_gb_s": 28, "write_gb_s": 28}
V100S = {"gpu": "v100-32gb", "host_memory_gib": 1500, "cpu_cores": 48, "nvme": DISK}
BOTH = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
DISKS = {"offload_optimizer": "nvme", "offload_parameters": "nvme"}
CUT = {"tensor_parallel_size": 16, "micro_batch_size": None}

# What: nodes, cards of each, strategy, billions of parameters that were published.
LARGEST: dict[str, tuple[int, int, dict[str, Any], float]] = {
    "ZeRO-Offload, one card": (1, 1, {"zero_stage": 2, "offload_optimizer": "cpu"}, 13),
    "ZeRO-2 on 128 cards": (8, 16, {"zero_stage": 2}, 13),
    "ZeRO-3 on a node": (1, 16, {"zero_stage": 3}, 20),
    "ZeRO-3 in RAM on a node": (1, 16, {"zero_stage": 3, **BOTH}, 70),
    "ZeRO-3 in RAM on 16 nodes": (16, 16, {"zero_stage": 3, **BOTH}, 1000),
    "ZeRO-2 with tensor parallelism on 400 cards": (25, 16, {"zero_stage": 2, **CUT}, 170),
}


def largest(nodes: int, cards: int, strategy: dict[str, Any], software: str) -> Answer:
    """The largest model of short samples, one a card, everything computed again."""
    fixed = {"micro_batch_size": 1, "recompute": "full", "hpz_partition_size": 1, **strategy}
    kept = {"offload_optimizer": "none", "offload_parameters": "none", "software": software}
    told = {key: value for key, value in {**kept, **fixed}.items() if value is not None}
    node = {**V100S, "nodes": nodes, "gpus_per_node": cards}
    work = {"sequence_length": 1024, "global_batch_size": nodes * cards, "precision": "fp16"}
    return dsforge.find("model", None, node, work, strategy=told).answer


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_model_is_as_published(name: str) -> None:
    """Inside the interval, and likely within a quarter."""
    nodes, cards, strategy, billions = LARGEST[name]
    found = largest(nodes, cards, strategy, "others").largest

    assert found.low <= billions * 1e9 <= found.high
    assert found.likely == pytest.approx(billions * 1e9, rel=0.25)


def test_over_40_billion_parameters_train_on_one_card_from_ram() -> None:
    """The published words are `over 40B`."""
    found = largest(1, 1, {"zero_stage": 3, **BOTH}, "others").largest

    assert found.likely > 40e9


def test_disks_carry_a_model_ten_times_as_large_as_ram() -> None:
    """One node: a trillion from NVMe was published, 70 billion from RAM.

    Releases since then keep all 16-bit gradients in RAM (stage3.py, `grad_partitions_flat_buffer`),
    so the likely answer lies below the trillion.
    """
    ram = largest(1, 16, {"zero_stage": 3, **BOTH}, "others").largest
    disks = largest(1, 16, {"zero_stage": 3, **DISKS}, "others").largest

    assert disks.likely == pytest.approx(10 * ram.likely, rel=0.2)
    assert 500e9 < disks.likely < 1000e9


def test_gathering_the_weights_for_a_checkpoint_costs_the_largest_model() -> None:
    """The config of dsforge gathers them in one node's RAM; DeepSpeed's default saves shards."""
    own, others = (largest(16, 16, {"zero_stage": 3, **BOTH}, who) for who in ("dsforge", "others"))

    assert (own.well_shaped or 0) < 0.6 * (others.well_shaped or 0)
