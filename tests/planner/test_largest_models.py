"""What the field knows about the largest models comes out of the numbers.

Published by DeepSpeed and in the papers of ZeRO-Offload (arXiv:2101.06840) and ZeRO-Infinity
(arXiv:2104.07857) for V100 cards of 32 GB in DGX-2 nodes of 16 with 1.5 TB of RAM.
"""

from __future__ import annotations

from typing import Any

import pytest

import dsforge
from dsforge.estimate.host import PROCESS_BYTES
from dsforge.planner.inverse import Answer, Found
from dsforge.units import GIB

DISK = {"path": "/nvme", "size_gib": 26000, "read_gb_s": 28, "write_gb_s": 28}
V100S = {"gpu": "v100-32gb", "host_memory_gib": 1500, "cpu_cores": 48, "nvme": DISK}
BOTH = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
DISKS = {"offload_optimizer": "nvme", "offload_parameters": "nvme"}
# A record is run with buffers that are no larger than they must be.
CUT = {"tensor_parallel_size": 16, "micro_batch_size": None, "buckets": "sized"}

# What: nodes, cards of each, strategy, billions of parameters that were published.
LARGEST: dict[str, tuple[int, int, dict[str, Any], float]] = {
    "ZeRO-Offload, one card": (1, 1, {"zero_stage": 2, "offload_optimizer": "cpu"}, 13),
    "ZeRO-2 on 128 cards": (8, 16, {"zero_stage": 2}, 13),
    "ZeRO-3 on a node": (1, 16, {"zero_stage": 3}, 20),
    "ZeRO-3 in RAM on a node": (1, 16, {"zero_stage": 3, **BOTH}, 70),
    "ZeRO-3 in RAM on 16 nodes": (16, 16, {"zero_stage": 3, **BOTH}, 1000),
    "ZeRO-2 with tensor parallelism on 400 cards": (25, 16, {"zero_stage": 2, **CUT}, 170),
}


def found(nodes: int, cards: int, strategy: dict[str, Any], software: str, **node: Any) -> Found:
    """The largest model of short samples, one a card, everything computed again."""
    fixed = {"micro_batch_size": 1, "recompute": "full", "hpz_partition_size": 1, **strategy}
    kept = {"offload_optimizer": "none", "offload_parameters": "none", "software": software}
    told = {key: value for key, value in {**kept, **fixed}.items() if value is not None}
    on = {**V100S, "nodes": nodes, "gpus_per_node": cards, **node}
    work = {"sequence_length": 1024, "global_batch_size": nodes * cards, "precision": "fp16"}
    return dsforge.find("model", None, on, work, strategy=told)


def largest(nodes: int, cards: int, strategy: dict[str, Any], software: str) -> Answer:
    """The answer of `found`."""
    return found(nodes, cards, strategy, software).answer


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


def test_states_on_disk_and_gradients_in_ram_take_20_bytes_a_parameter() -> None:
    """ZeRO-Infinity's count (section 3): 16-bit weight and gradient, float32 gradient and states.

    18 are on the disk. The paper's design writes the other two, 16-bit gradients, there too.
    """
    plan = found(1, 16, {"zero_stage": 3, **DISKS}, "others").plan
    memory = plan.choice.memory
    idle = 16 * PROCESS_BYTES

    assert memory.nvme_bytes / plan.parameters == pytest.approx(18, rel=0.01)
    assert (memory.host_bytes.step - idle) / plan.parameters == pytest.approx(2, rel=0.01)


def test_a_trillion_on_one_node_asks_for_the_ram_of_its_gradients() -> None:
    """2 TB of RAM, and 1 T trains on one DGX-2; with RAM to spare its 28 TB disk is the limit."""
    most = {
        gib: found(1, 16, {"zero_stage": 3, **DISKS}, "others", host_memory_gib=gib).answer.largest
        for gib in (1500, 2200, 6000)
    }

    assert most[1500].high < 1000e9 <= most[2200].likely
    assert most[6000].likely == pytest.approx(26000 * GIB / 20, rel=0.12)
    assert most[6000].likely > most[2200].likely


def test_gathering_the_weights_for_a_checkpoint_costs_the_largest_model() -> None:
    """The config of dsforge gathers them in one node's RAM; DeepSpeed's default saves shards."""
    own, others = (largest(16, 16, {"zero_stage": 3, **BOTH}, who) for who in ("dsforge", "others"))

    assert (own.well_shaped or 0) < 0.6 * (others.well_shaped or 0)
