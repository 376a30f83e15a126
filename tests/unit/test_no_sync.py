"""FSDP that reduces gradients once a step: less to send, and whole gradients on each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsforge
from dsforge.errors import DsforgeError
from dsforge.importing.read import read_files

CLUSTER = {"gpu": "a100-80gb", "gpus_per_node": 8}
TRAINER = """torchrun train.py --model_name_or_path Qwen/Qwen2.5-7B --output_dir out --bf16 True \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps {steps} {fsdp} {more}
"""
FSDP = '--fsdp "full_shard auto_wrap"'
EACH = '--accelerator_config \'{"gradient_accumulation_kwargs": {"sync_each_batch": true}}\''


def priced(nodes: int, batch: int, **fixed: Any) -> Any:
    """The choice of one way to run 7 B under FSDP."""
    asked = {"trainer": "fsdp", "micro_batch_size": 1, "recompute": "full", **fixed}
    work = {"global_batch_size": batch, "sequence_length": 2048}
    cluster = {**CLUSTER, "nodes": nodes}
    return dsforge.estimate("llama-2-7b", cluster, work, strategy=asked).plan.choice


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([2, 3]), st.integers(1, 4), st.integers(2, 16))
def test_less_is_sent_and_more_is_kept(stage: int, nodes: int, steps: int) -> None:
    """At any size; what is computed and every other term of the memory stay."""
    batch = 8 * nodes * steps
    each, once = (priced(nodes, batch, zero_stage=stage, no_sync=said) for said in (False, True))

    assert once.memory.terms.gradients > each.memory.terms.gradients
    assert once.memory.terms.optimizer_state == each.memory.terms.optimizer_state
    assert once.memory.device_bytes.likely > each.memory.device_bytes.likely
    assert once.time.terms.compute_s == each.time.terms.compute_s
    assert once.time.terms.communication_s < each.time.terms.communication_s


def test_whole_gradients_are_of_the_type_that_is_reduced() -> None:
    """Accelerate reduces in bf16: 2 bytes of each trained weight, on every rank."""
    found = priced(1, 64, zero_stage=3, no_sync=True)
    model = dsforge.load_model("llama-2-7b")
    weights = 6_738_415_616

    assert model.layers == 32
    assert found.memory.terms.gradients == pytest.approx(2 * weights, rel=1e-3)


def test_only_fsdp_can_be_told() -> None:
    """ZeRO-2 and 3 reduce in each micro step whatever is asked."""
    with pytest.raises(DsforgeError) as refused:
        priced(1, 64, zero_stage=3, no_sync=True, trainer="deepspeed")

    assert "no_sync (=true) has no meaning for DeepSpeed" in str(
        getattr(refused.value, "problems", "")
    )


@pytest.mark.parametrize(
    ("steps", "fsdp", "more", "due"),
    [(4, FSDP, "", True), (4, FSDP, EACH, False), (1, FSDP, "", False), (4, "", "", False)],
    ids=["accumulation", "each batch", "one micro step", "ddp"],
)
def test_the_way_of_the_trainer_is_read(
    steps: int, fsdp: str, more: str, due: bool, tmp_path: Path
) -> None:
    """Its Trainer enters `no_sync` unless it is told not to."""
    script = tmp_path / "train.sh"
    script.write_text(TRAINER.format(steps=steps, fsdp=fsdp, more=more), encoding="utf-8")

    assert read_files([script]).setup.no_sync is due
