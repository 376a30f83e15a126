"""Tiny models of every kind that can be split, with random weights and the tiny tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tiny_job import write_model

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GROUPED = {"num_key_value_heads": 2}
TOKENS = {"vocab_size": 384, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
GPT2 = {
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 256,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
# kind -> class, values of its configuration
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**SHAPE, **GROUPED}),
    "mistral": ("Mistral", {**SHAPE, **GROUPED, "sliding_window": 24}),
    "qwen2": ("Qwen2", {**SHAPE, **GROUPED, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**SHAPE, **GROUPED, "head_dim": 16, "tie_word_embeddings": True}),
    "gpt_neox": ("GPTNeoX", {**SHAPE, **NO_DROPOUT}),
    "gpt2": ("GPT2", GPT2),
}


def write_kind(kind: str, folder: Path) -> Path:
    """A folder with a four-layer model of a kind; norms and biases are not at their first values.

    Weights that begin as 0 or 1 would hide a part that is left out.
    """
    import torch
    import transformers

    write_model(folder / "tokens")
    name, values = KINDS[kind]
    suffix = "LMHeadModel" if kind == "gpt2" else "ForCausalLM"
    configuration = getattr(transformers, f"{name}Config")(**TOKENS, **values)
    torch.manual_seed(7)
    model = getattr(transformers, name + suffix)(configuration)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    for file in (folder / "tokens").glob("*token*"):
        shutil.copy(file, folder)
    for file in (folder / "tokens").glob("*.jinja"):
        shutil.copy(file, folder)
    shutil.rmtree(folder / "tokens")
    return folder
