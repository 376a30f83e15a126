"""A tiny Llama, a tokenizer trained on the spot, and question/answer rows: a whole job, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<pad>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]


def pairs(count: int) -> list[dict[str, str]]:
    """Questions and answers of different lengths, from the docstrings of `str` and its kin."""
    found = []
    for kind in (str, bytes, list, dict, set, int, float, tuple):
        for name, member in sorted(vars(kind).items()):
            text = " ".join((getattr(member, "__doc__", None) or "").split())
            if len(text) > 20:
                found.append(
                    {"prompt": f"What does {kind.__name__}.{name} do?", "completion": text}
                )
    assert len(found) >= count
    return found[:count]


def tokenizer(texts: list[str]) -> Any:
    """A byte-pair tokenizer of 384 tokens with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=inner)
    fast.pad_token, fast.eos_token = "<pad>", "</s>"
    fast.chat_template = TEMPLATE
    return fast


def write_model(folder: Path, hidden_size: int = 64) -> Path:
    """A folder with a two-layer Llama with random weights and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    texts = [f"{row['prompt']} {row['completion']}" for row in pairs(64)]
    tokenizer(texts).save_pretrained(folder)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=384,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def ds_config(stage: int, **more: Any) -> dict[str, Any]:
    """A DeepSpeed config for two ranks, global batch 8, fp32."""
    return {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}},
        **more,
    }


def write_job(folder: Path, model: Path, config: dict[str, Any], **more: Any) -> Path:
    """A run folder: data, ds_config.json and train.yaml; the path of the last."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) for row in pairs(64)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "ds_config.json").write_text(json.dumps(config), encoding="utf-8")
    job = {
        "model": str(model),
        "deepspeed_config": "ds_config.json",
        "data": {"train": "data.jsonl"},
        "sequence_length": 96,
        "steps": 8,
        "warmup_steps": 2,
        **more,
    }
    path = folder / "train.yaml"
    path.write_text(json.dumps(job, indent=1), encoding="utf-8")  # JSON is YAML
    return path
