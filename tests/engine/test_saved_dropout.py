"""Masks of dropout and scores that models of transformers save, against what is priced of them.

Tiny models of the kinds that run on a CPU, built twice: with every place that the config can drop
at, and with none. A CPU keeps a mask in the compute type, and CUDA in bytes (torch,
`_dropout_impl`, `native_dropout`), so masks are compared by their elements.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import pytest
from saved_tensors import saved_of, stored_bytes

from dsforge.estimate.activations import layer_token_bytes
from dsforge.estimate.dropout import drops, edge_mask_bytes, layer_mask_bytes
from dsforge.huggingface import model_from_config
from dsforge.huggingface.architecture import ARCHITECTURES
from dsforge.layout import Layout
from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import Execution, Strategy

pytestmark = pytest.mark.engine

SAMPLES, TOKENS, HEADS, HALF = 2, 48, 4, 2  # no width of a tiny model is 48
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "hidden_dim", "ffn_dim"), 96),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), HEADS),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2),
    "vocab_size": 128,
    "d_kv": 16,
    "embedding_size": 64,
    "num_key_value_heads": HEADS,
    "pad_token_id": 0,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "feed_forward_proj": "gated-gelu",
    "rotary_dim": 8,
    "attention_types": [[["global", "local"], 1]],
}
OWN: dict[str, dict[str, Any]] = {
    "gpt_bigcode": {"num_key_value_heads": 1},  # multi-query
    "falcon-alibi": {"alibi": True, "parallel_attn": False},
    "t5-relu": {"feed_forward_proj": "relu"},
}
LOADERS = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
# Of the hub's own code; its class takes no probability; its default does not build.
UNBUILT = {"chatglm", "mpt", "dbrx"}
DROPPING = {kind for kind, row in ARCHITECTURES.items() if len(row.dropout_keys) > 1}
NARROW = {kind for kind, row in ARCHITECTURES.items() if row.facts.get("narrow_softmax")}
CASES = sorted({*DROPPING, *NARROW, *OWN, "llama", "ernie4_5"} - UNBUILT)


class Kept(NamedTuple):
    """Bytes that autograd keeps of one forward pass: of scores, and of the rest."""

    scores: int
    rest: int


def config_of(case: str, rate: float) -> Any:
    """A tiny config in which each place that the kind has drops with one probability."""
    from transformers import CONFIG_MAPPING

    kind = case if case in CONFIG_MAPPING else case.partition("-")[0]
    known = CONFIG_MAPPING[kind]().to_dict()
    values = {key: value for key, value in SIZES.items() if key in known} | OWN.get(case, {})
    keys = {key for keys in ARCHITECTURES[kind].dropout_keys.values() for key in keys}
    return CONFIG_MAPPING[kind](**values, **dict.fromkeys(keys, rate))


def kept(config: Any, kind: str) -> Kept:
    """What a model of a config keeps for backward, in bf16 with unfused attention."""
    import torch
    import transformers

    config.decoder_start_token_id = 0
    loader = getattr(transformers, LOADERS[kind])
    model = loader.from_config(config, attn_implementation="eager").to(torch.bfloat16).train()
    tokens = torch.randint(2, 100, (SAMPLES, TOKENS))
    more = {} if kind == "encoder" else {"use_cache": False}
    with saved_of(model) as saved:
        loss = model(input_ids=tokens, labels=tokens, **more).loss
    assert loss.requires_grad
    floats = {place: one for place, one in saved.items() if one.dtype.is_floating_point}
    pairs = {TOKENS, TOKENS + 1}  # one more for a sink
    scores = stored_bytes({p: one for p, one in floats.items() if set(one.shape[-2:]) <= pairs})
    return Kept(scores, stored_bytes(floats) - scores)


class Priced(NamedTuple):
    """Bytes of one token in all layers without scores, of its masks there, and of one score."""

    rest: float
    masks: float
    score: float


def priced_of(model: ModelSpec, *, dropout: bool) -> Priced:
    """What is priced of a model on one card with unfused attention."""
    run = Execution(trainer="deepspeed", attention="eager", dropout=dropout)
    how = Strategy(
        layout=Layout(), micro_batch_size=SAMPLES, gradient_accumulation_steps=1, execution=run
    )
    short, long = (
        layer_token_bytes(
            model,
            Workload(sequence_length=length, global_batch_size=SAMPLES, learning_rate=1e-4),
            how,
        )
        for length in (TOKENS, 2 * TOKENS)
    )
    edges = edge_mask_bytes(model, how)
    masks = layer_mask_bytes(model, how, moe_layer=False) * model.depth + edges
    score = (long - short) / (TOKENS * HEADS * model.attentions)
    return Priced((2 * short - long) * model.depth + edges, masks, score)


@pytest.mark.parametrize("case", CASES)
def test_masks_and_scores_are_those_that_the_modules_save(case: str) -> None:
    """Every element of a mask, and every byte of a score but half of its mask."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        configs = config_of(case, 0.0), config_of(case, 0.5)
        off, on = (model_from_config(config.to_dict(), case) for config in configs)
        without, with_masks = (kept(config, off.kind) for config in configs)
    tokens = SAMPLES * TOKENS
    scores = tokens * TOKENS * HEADS * on.depth * on.attentions
    seen, before = priced_of(on, dropout=drops(on)), priced_of(off, dropout=False)

    measured = (with_masks.rest - without.rest) / tokens  # with two bytes of a mask for one
    assert seen.rest - before.rest + seen.masks == pytest.approx(measured, rel=1e-3)
    assert before.score == pytest.approx(without.scores / scores, rel=0.03)
    mask = bool(on.dropout.attention)
    assert seen.score == pytest.approx(with_masks.scores / scores - mask, rel=0.03)
