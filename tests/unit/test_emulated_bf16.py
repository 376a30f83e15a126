"""bf16 on cards before Ampere: torch emulates it, outside of the tensor cores."""

from __future__ import annotations

from typing import Any

import pytest

import dsforge
from dsforge.errors import DsforgeError


def priced(gpu: str | dict[str, Any], precision: str, software: str = "others") -> Any:
    """QLoRA of 7 B on one card."""
    work = {"sequence_length": 512, "global_batch_size": 4, "method": "qlora"}
    work |= {"precision": precision}
    asked = {"software": software, "micro_batch_size": 1, "recompute": "full"}
    return dsforge.estimate("llama-2-7b", {"gpu": gpu}, work, strategy=asked).plan.choice


@pytest.mark.parametrize("gpu", ["t4-16gb", "v100-16gb", "rtx-2080-ti", "titan-rtx-24gb"])
def test_scripts_of_others_run_it_slowly(gpu: str) -> None:
    """It takes the same memory as fp16, and the time of float32 products."""
    bf16, fp16 = priced(gpu, "bf16"), priced(gpu, "fp16")

    assert bf16.memory.terms == fp16.memory.terms
    assert bf16.time.terms.compute_s > 2 * fp16.time.terms.compute_s


def test_dsforge_train_refuses_it() -> None:
    """The way out names what the card computes."""
    with pytest.raises(DsforgeError) as refused:
        priced("t4-16gb", "bf16", "dsforge")

    assert "use fp16 or fp32" in str(getattr(refused.value, "problems", ""))


@pytest.mark.parametrize(
    "fixed",
    [
        {"program": "trl", "trainer": "fsdp"},
        {"program": "transformers"},
        {"back_end": "megatron", "software": "others"},
    ],
    ids=str,
)
def test_no_file_and_no_megatron_asks_for_it(fixed: dict[str, Any]) -> None:
    """What is written for a program would run at the rate of float32; Megatron has no emulation."""
    cluster = {"gpu": "v100-32gb", "gpus_per_node": 8}
    work = {"sequence_length": 512, "global_batch_size": 16, "precision": "bf16"}
    with pytest.raises(DsforgeError) as refused:
        dsforge.plan("gpt2-xl", cluster, work, strategy=fixed)

    assert "v100-32gb does not support bf16" in str(getattr(refused.value, "problems", ""))


def test_a_card_without_a_rate_in_float32_has_no_emulation() -> None:
    """Its rate is not known, and that of fp16 would be eight times too fast."""
    card = {"name": "mine", "memory_gib": 32, "memory_bandwidth_gb_s": 300}
    with pytest.raises(DsforgeError):
        priced({**card, "peak_tflops": {"fp16": 65}}, "bf16")
    known = priced({**card, "peak_tflops": {"fp16": 65, "fp32": 8}}, "bf16")

    assert known.time.step_s.likely > 0
