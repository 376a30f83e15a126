"""Configs in the styles that are passed around, each with its known defects, all of them named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsforge.lint.files import Against, checked, read_document, release_named

# As trainers are given it: everything they fill is auto, a comment explains a line, one batch size
# was fixed by hand, and `auto` spread to keys that nobody fills.
HUGGING_FACE_AUTO = """{
  // filled by the trainer
  "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
  "bf16": {"enabled": "auto"},
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
  },
  "zero_optimization": {
    "stage": 2,
    "overlap_comm": "auto",
    "allgather_bucket_size": "auto",
    "reduce_bucket_size": "auto"
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": "auto",
}
"""
# Stage 3 with both offloads and sizes computed as a share of hidden_size squared.
FRACTIONAL_OFFLOAD = """{
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "offload_param": {"device": "cpu", "pin_memory": true},
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": 12845056,
    "stage3_prefetch_bucket_size": 11560550.4,
    "stage3_param_persistence_threshold": 35840,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_clipping": 1.0,
  "train_micro_batch_size_per_gpu": 1
}
"""
# Misspelt at the top level, where nothing refuses it; keys left outside their block.
TOP_LEVEL_TYPOS = """{
  "train_micro_batch_size": 4,
  "gradient_accumulation_step": 8,
  "bf16": {"enabled": true},
  "zero_optimisation": {"stage": 3, "overlap_comm": true},
  "activation_checkpoint": {"partition_activations": true},
  "overlap_comm": true,
  "lr": 2e-5,
  "my_note": "third try"
}
"""
# fp16 with a scaler that throws away the first steps, and ZeRO settings that switch ZeRO-3 off.
HARMFUL_SCALER = """{
  "fp16": {
    "enabled": true,
    "loss_scale": 0,
    "initial_scale_power": 32,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 0
  },
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": false,
    "sub_group_size": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_clipping": 1.0,
  "train_micro_batch_size_per_gpu": 1,
  "wall_clock_breakdown": true
}
"""
# Called zero2, and asking for what only stage 3 has.
ZERO2_BY_NAME = """{
  "bf16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16},
  "zero_optimization": {
    "stage": 2,
    "offload_param": {"device": "cpu"},
    "offload_optimizer": {"device": "cpu", "ratio": 0.5},
    "stage3_prefetch_bucket_size": 1e7
  },
  "train_batch_size": 30,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_clipping": 1.0
}
"""
STYLES = {
    "hugging-face-auto": (
        HUGGING_FACE_AUTO,
        {"json-comment": 2, "batch-half-auto": 21, "value-auto": 15, "json-trailing-comma": 22},
    ),
    "fractional-offload": (FRACTIONAL_OFFLOAD, {"value-fraction": 11}),
    "top-level-typos": (
        TOP_LEVEL_TYPOS,
        {"key-misspelt": 2, "key-misplaced": 7, "key-unread": 9, "batch-missing": 1},
    ),
    "harmful-scaler": (
        HARMFUL_SCALER,
        {
            "fp16-scale-floor": 8,
            "sub-group-zero": 13,
            "max-live-zero": 14,
            "breakdown-on": 20,
        },
    ),
    "zero2-by-name": (
        ZERO2_BY_NAME,
        {
            "loss-scale-in-bf16": 2,
            "offload-parameters": 5,
            "offload-ratio": 6,
            "batch-product": 9,
        },
    ),
}


@pytest.mark.parametrize(("text", "defects"), STYLES.values(), ids=STYLES)
def test_each_defect_is_named_at_its_line(
    text: str, defects: dict[str, int], tmp_path: Path
) -> None:
    """Every defect of the style is found, by its rule and at its line, and nothing else is."""
    path = tmp_path / "ds_config.json"
    path.write_text(text)
    first: dict[str, int] = {}
    for finding in checked(read_document(path), Against(*release_named(None))):
        if finding.severity != "info":
            first.setdefault(finding.rule, finding.line)

    assert first == defects


def test_every_misspelt_block_is_named(tmp_path: Path) -> None:
    """All four misspelt keys are found, each with the key that was meant."""
    path = tmp_path / "ds_config.json"
    path.write_text(TOP_LEVEL_TYPOS)
    found = checked(read_document(path), Against(*release_named(None)))
    meant = [f.fix.split("`")[1] for f in found if f.rule == "key-misspelt"]

    assert meant == [
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "zero_optimization",
        "activation_checkpointing",
    ]
