"""Shrink models to a few hundred thousand parameters with the same architecture.

For tests and dry runs that start the real engine: every matrix, norm, bias, expert and window of
the original is there, only smaller.
"""

from __future__ import annotations

from typing import Any

from dsforge.specs import ModelSpec

HEADS, HEAD_SIZE, FFN, EXPERT_FFN, VOCABULARY, POSITIONS, WINDOW = 4, 32, 256, 64, 512, 128, 32


def tiny(model: ModelSpec) -> ModelSpec:
    """The language model with four heads of 32, few layers and experts, 512 words, no tower."""
    hidden = HEADS * HEAD_SIZE
    four_fold = model.ffn_hidden_size == 4 * model.hidden_size
    return model.model_copy(
        update={
            "name": f"tiny-{model.name}",
            "hub_id": None,
            "layers": _layers(model),
            "hidden_size": hidden,
            "ffn_hidden_size": 4 * hidden if four_fold else FFN,
            "attention_heads": HEADS,
            "kv_heads": _kv_heads(model),
            "head_size": HEAD_SIZE,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": POSITIONS,
            "embedding_size": hidden if model.embedding_size == model.hidden_size else hidden // 2,
            "rope_scaling": None,
            "tower": None,
            "sliding_window": None if model.sliding_window is None else WINDOW,
            **_experts(model),
            **_latents(model),
            **_mixed(model),
        }
    )


def _layers(model: ModelSpec) -> int:
    """Enough layers for one of each kind: dense, with experts, windowed, global; an even number."""
    if model.layer_mixers:
        return _reach(model)
    period = max(model.sliding_window_pattern or 1, model.moe.layer_step if model.moe else 1)
    first = model.moe.first_dense_layers if model.moe else 0
    return min(model.layers, max(2, first + period))


def _reach(model: ModelSpec) -> int:
    """Leading layers of which one is of each kind."""
    kinds = [(model.mixer(layer), model.mlp(layer)) for layer in range(model.layers)]
    return max(2, 1 + max(kinds.index(kind) for kind in set(kinds)))


def _mixed(model: ModelSpec) -> dict[str, Any]:
    """Recurrent parts of the width of the others, and the kinds of the layers that are left."""
    layers = _layers(model)
    small: dict[str, Any] = {"layer_mlps": model.layer_mlps[:layers]}
    if model.recurrent is None:
        return small
    sizes = {"head_size": HEAD_SIZE, "heads": HEADS, "groups": 1, "state_size": HEAD_SIZE // 2}
    if model.recurrent.kind in ("mamba", "short_conv"):
        sizes |= {"head_size": HEADS * HEAD_SIZE, "heads": 1}
    if model.recurrent.kind == "mamba":
        sizes |= {"time_step_rank": HEAD_SIZE // 4}
    sizes |= {"chunk_size": min(model.recurrent.chunk_size, HEAD_SIZE)}
    if model.recurrent.kind == "short_conv":
        sizes |= {"state_size": 1, "chunk_size": 1}
    if model.recurrent.kind == "gated_delta":
        sizes |= {"chunk_size": model.recurrent.chunk_size}
    recurrent = model.recurrent.model_copy(update=sizes)
    small |= {"layer_mixers": model.layer_mixers[:layers], "recurrent": recurrent}
    if not model.attention_layers:
        small |= dict.fromkeys(("attention_heads", "kv_heads", "head_size"), 0)
    return small if model.ffn_hidden_size else small | {"ffn_hidden_size": 0}


def _kv_heads(model: ModelSpec) -> int:
    if model.kv_heads == model.attention_heads:
        return HEADS
    return 1 if model.kv_heads == 1 else HEADS // 2


def _experts(model: ModelSpec) -> dict[str, Any]:
    if model.moe is None:
        return {}
    small: dict[str, Any] = {
        "experts": HEADS,
        "experts_per_token": min(2, model.moe.experts_per_token),
        "expert_ffn_hidden_size": EXPERT_FFN,
        "shared_ffn_hidden_size": EXPERT_FFN if model.moe.shared_ffn_hidden_size else 0,
        "router": model.moe.router.model_copy(update={"groups": 1, "groups_per_token": 1}),
    }
    if model.moe.expert_ffn_hidden_size == model.ffn_hidden_size:  # one key states both
        return {"ffn_hidden_size": EXPERT_FFN, "moe": model.moe.model_copy(update=small)}
    return {"moe": model.moe.model_copy(update=small)}


def _latents(model: ModelSpec) -> dict[str, Any]:
    if model.mla is None:
        return {}
    small = {
        "q_rank": None if model.mla.q_rank is None else HEAD_SIZE,
        "kv_rank": HEAD_SIZE,
        "nope_head_size": HEAD_SIZE // 2,
        "rope_head_size": HEAD_SIZE // 2,
        "v_head_size": HEAD_SIZE // 2,
    }
    if model.mla.index_heads:
        small |= {"index_heads": HEADS, "index_head_size": HEAD_SIZE, "index_top_k": WINDOW}
    return {"mla": model.mla.model_copy(update=small)}
