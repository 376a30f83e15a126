"""What a layer of transformers saves for backward, against `layer_token_bytes`, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from saved_tensors import saved_of, stored_bytes

from dsforge.estimate.activations import layer_token_bytes
from dsforge.huggingface import model_from_config
from dsforge.layout import Layout
from dsforge.specs import Workload
from dsforge.strategy import Execution, Strategy

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SAMPLES, TOKENS = 2, 64
LLAMA = {"intermediate_size": 768, "num_attention_heads": 8, "hidden_size": 256, "vocab_size": 512}
GPT2 = {"n_embd": 256, "n_inner": 1024, "n_head": 8, "vocab_size": 512}
T5 = {
    "d_model": 256,
    "d_ff": 768,
    "num_heads": 8,
    "d_kv": 32,
    "vocab_size": 512,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
OPT = {
    "hidden_size": 256,
    "word_embed_proj_dim": 256,
    "ffn_dim": 1024,
    "vocab_size": 512,
    "num_attention_heads": 8,
    "attention_dropout": 0,
}
QUIET = {"resid_pdrop": 0, "attn_pdrop": 0, "embd_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0}

STILL = dict.fromkeys(
    ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"), 0
)
LATENT = {
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,  # as wide as keys: else a CPU keeps the scores
}
CASES = {
    "llama": ("llama", {**LLAMA, "num_key_value_heads": 8}, "sdpa"),
    "llama-gqa": ("llama", {**LLAMA, "num_key_value_heads": 2}, "sdpa"),
    "llama-gqa-eager": ("llama", {**LLAMA, "num_key_value_heads": 2}, "eager"),
    "qwen3": ("qwen3", {**LLAMA, "num_key_value_heads": 2, "head_dim": 32}, "sdpa"),
    "gpt2": ("gpt2", {**GPT2, **QUIET}, "sdpa"),
    "bert": (
        "bert",
        {**LLAMA, **STILL},
        "sdpa",
    ),
    "roberta": ("roberta", {**LLAMA, **STILL}, "sdpa"),
    "electra": ("electra", {**LLAMA, **STILL}, "sdpa"),
    "distilbert": (
        "distilbert",
        {"dim": 256, "hidden_dim": 1024, "n_heads": 8, "vocab_size": 512, **STILL},
        "sdpa",
    ),
    "modernbert": ("modernbert", {**LLAMA, "pad_token_id": 0}, "sdpa"),
    "eurobert": ("eurobert", {**LLAMA, "pad_token_id": 0}, "sdpa"),
    "apertus": ("apertus", {**LLAMA, "num_key_value_heads": 2}, "sdpa"),
    "deepseek-v3": ("deepseek_v3", {**LLAMA, **LATENT, "first_k_dense_replace": 9}, "sdpa"),
    "glm4-moe-lite": (
        "glm4_moe_lite",
        {**LLAMA, **LATENT, "mlp_layer_types": ["dense"] * 5},
        "sdpa",
    ),
    "minicpm3": ("minicpm3", {**LLAMA, **LATENT}, "sdpa"),
    "opt": ("opt", {**OPT, "dropout": 0, "layerdrop": 0}, "sdpa"),
}
LOADERS = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
DEPTHS = {
    "gpt2": "n_layer",
    "t5": "num_layers",
    "distilbert": "n_layers",
}  # else `num_hidden_layers`


def saved_bytes(config: Any) -> int:
    """Bytes of all storages that autograd keeps, parameters and buffers left out."""
    import torch
    import transformers

    kind = model_from_config(config.to_dict(), "model").kind
    loader = getattr(transformers, LOADERS[kind])
    model = loader.from_config(config).to(torch.bfloat16).train()
    tokens = torch.randint(0, config.vocab_size, (SAMPLES, TOKENS))
    with saved_of(model) as kept:
        more = {} if kind == "encoder" else {"use_cache": False}
        loss = model(input_ids=tokens, labels=tokens, **more).loss
    assert loss.requires_grad
    return stored_bytes(kept)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_saves_what_the_ledger_says(name: str) -> None:
    """Two layers more save twice the bytes of a layer."""
    from transformers import AutoConfig

    kind, sizes, attention = CASES[name]
    few, many = (
        AutoConfig.for_model(kind, **sizes, attn_implementation=attention, **{depth: layers})
        for layers in (3, 5)  # the first three are of every kind, where layers differ
        for depth in (DEPTHS.get(kind, "num_hidden_layers"),)
    )
    model, one = (model_from_config(config.to_dict(), name) for config in (many, few))
    more = model.depth - one.depth
    measured = (saved_bytes(many) - saved_bytes(few)) / more / (SAMPLES * TOKENS)
    run = Execution(trainer="deepspeed", attention="eager" if attention == "eager" else "flash")
    how = Strategy(
        layout=Layout(), micro_batch_size=SAMPLES, gradient_accumulation_steps=1, execution=run
    )
    work = Workload(sequence_length=TOKENS, global_batch_size=SAMPLES, learning_rate=1e-4)

    near = 1e-2 if name == "modernbert" else 1e-3  # its float32 rotation keeps a little more
    assert layer_token_bytes(model, work, how) == pytest.approx(measured, rel=near)


@pytest.mark.parametrize("mlp", ["relu", "gated-gelu"])
def test_an_encoder_decoder_saves_what_the_ledger_says_of_a_wider_mlp(mlp: str) -> None:
    """Twice the MLP's width in both halves; T5's attention is another one on a CPU."""
    from transformers import AutoConfig

    narrow, wide = (
        AutoConfig.for_model("t5", **{**T5, "d_ff": width}, num_layers=2, feed_forward_proj=mlp)
        for width in (768, 1536)
    )
    models = [model_from_config(config.to_dict(), "t5") for config in (narrow, wide)]
    measured = (saved_bytes(wide) - saved_bytes(narrow)) / models[0].depth / (SAMPLES * TOKENS)
    how = Strategy(layout=Layout(), micro_batch_size=SAMPLES, gradient_accumulation_steps=1)
    work = Workload(sequence_length=TOKENS, global_batch_size=SAMPLES, learning_rate=1e-4)
    less, more = (layer_token_bytes(model, work, how) for model in models)

    assert more - less == pytest.approx(measured, rel=1e-3)
