"""Tiny models of any architecture that is modelled, with random weights, as folders to train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_job import pairs, tokenizer

from dsforge.huggingface import config_from_model, read_config, tiny

ALTERNATING = {"granitemoehybrid": "linear_attention", "lfm2": "conv", "lfm2_moe": "conv"}
STATED: dict[str, dict[str, Any]] = {
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2}
}


def write_tiny(folder: Path, kind: str) -> Path:
    """A folder with a tiny model of a kind with random weights, and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    whole: dict[str, Any] = {"model_type": kind, **STATED.get(kind, {})}
    if kind in ALTERNATING:  # their classes have layers of one kind by default
        whole["layer_types"] = [ALTERNATING[kind], "full_attention"] * 16
    small = config_from_model(tiny(read_config(whole, kind)[0]))
    small |= {"vocab_size": 384, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    words = tokenizer([f"{row['prompt']} {row['completion']}" for row in pairs(64)])
    words.save_pretrained(folder)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(small.pop("model_type"), **small))
    model.save_pretrained(folder)
    return folder
