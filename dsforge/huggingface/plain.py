"""Architectures with a plain MLP (two matrices): the GPT family, BERT and T5."""

from __future__ import annotations

from dsforge.huggingface.architecture import (
    ALL_BIASES,
    ATTENTION_BIAS,
    ATTENTION_BIASES,
    MHA,
    MLP_BIAS,
    NO_ROPE,
    PLAIN,
    Architecture,
    Switch,
    keys_with,
    sizes,
)

GPT2_KEYS = keys_with(
    layers=("n_layer", "num_hidden_layers"),
    hidden_size=("n_embd", "hidden_size"),
    attention_heads=("n_head", "num_attention_heads"),
    ffn_hidden_size="n_inner",
    max_position_embeddings=("n_positions", "n_ctx"),
    activation="activation_function",
    **MHA,
    **NO_ROPE,
)
LEARNED = {**PLAIN, "position": "learned", **ALL_BIASES}

PLAIN_MODELS = {
    "gpt2": Architecture(
        keys=GPT2_KEYS,
        defaults=sizes(
            768, 12, 12, ffn=None, vocab=50257, positions=1024,
            tied_embeddings=True, activation="gelu_new",
        ),
        facts=LEARNED,
        ffn_factor=4,
        fixed={"add_cross_attention": False},
    ),
    "gpt_bigcode": Architecture(
        keys=GPT2_KEYS,
        defaults=sizes(
            768, 12, 12, ffn=None, vocab=50257, positions=1024,
            tied_embeddings=True, activation="gelu_pytorch_tanh",
        ),
        facts=LEARNED,
        switches=(Switch("multi_query", default=True, on={"kv_heads": 1}),),
        ffn_factor=4,
    ),
    "gptj": Architecture(
        keys=GPT2_KEYS,
        defaults=sizes(
            4096, 28, 16, ffn=None, vocab=50400, positions=2048, activation="gelu_new",
        ),
        facts={**PLAIN, "mlp_bias": True, "lm_head_bias": True, "norms_per_layer": 1,
               "parallel_residual": True},
        ffn_factor=4,
    ),
    "gpt_neo": Architecture(
        keys=keys_with(
            layers=("num_layers", "num_hidden_layers"),
            attention_heads=("num_heads", "num_attention_heads"),
            activation="activation_function", sliding_window="window_size", **MHA, **NO_ROPE,
        ),
        defaults=sizes(
            2048, 24, 16, ffn=None, vocab=50257, positions=2048, tied_embeddings=True,
            activation="gelu_new", sliding_window=256,
        ),
        facts={**LEARNED, "qkv_bias": False, "sliding_window_pattern": 2},
        ffn_factor=4,
    ),
    "gpt_neox": Architecture(
        keys=keys_with(partial_rotary_factor=("rotary_pct", "partial_rotary_factor"), **MHA),
        defaults=sizes(
            6144, 44, 64, ffn=24576, vocab=50432, positions=2048, activation="gelu",
            partial_rotary_factor=0.25,
        ),
        facts={**PLAIN, "mlp_bias": True},
        switches=(
            Switch("use_parallel_residual", default=True, on={"parallel_residual": True}),
            Switch("attention_bias", default=True, on=ATTENTION_BIASES),
        ),
    ),
    "bloom": Architecture(
        keys=keys_with(
            layers=("n_layer", "num_hidden_layers"), hidden_size=("hidden_size", "n_embed"),
            attention_heads=("n_head", "num_attention_heads"), ffn_hidden_size=None,
            max_position_embeddings="seq_length", activation=None, **MHA, **NO_ROPE,
        ),
        defaults=sizes(64, 2, 8, ffn=None, vocab=250880, positions=2048, tied_embeddings=True),
        facts={**LEARNED, "position": "alibi", "embedding_norm": True, "activation": "gelu"},
        ffn_factor=4,
    ),
    "opt": Architecture(
        keys=keys_with(
            ffn_hidden_size="ffn_dim", activation="activation_function",
            embedding_size="word_embed_proj_dim", **MHA, **NO_ROPE,
        ),
        defaults=sizes(
            768, 12, 12, ffn=3072, vocab=50272, positions=2048, tied_embeddings=True,
            activation="relu",
        ),
        facts={**LEARNED, **dict.fromkeys(ALL_BIASES, False), "position_offset": 2,
               "final_norm": False},
        switches=(
            Switch("enable_bias", default=True, on=ALL_BIASES),
            Switch("do_layer_norm_before", default=True, on={"final_norm": True}),
        ),
        fixed={"layer_norm_elementwise_affine": True},
    ),
    "mpt": Architecture(
        keys=keys_with(
            layers="n_layers", hidden_size="d_model", attention_heads="n_heads",
            ffn_hidden_size=None, max_position_embeddings="max_seq_len", activation=None,
            **MHA, **NO_ROPE,
        ),
        defaults=sizes(2048, 24, 16, ffn=None, vocab=50368, positions=2048, tied_embeddings=True),
        facts={**PLAIN, "norm": "layernorm_no_bias", "position": "alibi", "activation": "gelu"},
        ffn_factor=4,
        fixed={"expansion_ratio": 4},
    ),
    "falcon": Architecture(
        keys=keys_with(
            ffn_hidden_size="ffn_hidden_size", activation="activation",
            layers=("num_hidden_layers", "n_layer"),
            attention_heads=("num_attention_heads", "n_head"),
            kv_heads=("num_kv_heads", "n_head_kv"), head_size=None,
        ),
        defaults=sizes(
            4544, 32, 71, ffn=None, vocab=65024, positions=2048, tied_embeddings=True,
            activation="gelu",
        ),
        facts=PLAIN,
        switches=(
            Switch("bias", default=False, on=ALL_BIASES),
            Switch("alibi", default=False, on={"position": "alibi"}),
        ),
        ffn_factor=4,
    ),
    "phi": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(
            2048, 24, 32, ffn=8192, vocab=51200, positions=2048, activation="gelu_new",
            partial_rotary_factor=0.5,
        ),
        facts={**PLAIN, **ALL_BIASES, "lm_head_bias": True, "norms_per_layer": 1,
               "parallel_residual": True},
        fixed={"qk_layernorm": False},
    ),
    "starcoder2": Architecture(
        keys=keys_with(head_size=None, sliding_window="sliding_window"),
        defaults=sizes(
            3072, 30, 24, ffn=12288, kv_heads=2, vocab=49152, positions=4096,
            tied_embeddings=True, activation="gelu_pytorch_tanh",
        ),
        facts=PLAIN,
        switches=(Switch("use_bias", default=True, on=ALL_BIASES),),
    ),
    "nemotron": Architecture(
        keys=keys_with(),
        defaults=sizes(
            6144, 32, 48, ffn=24576, vocab=256000, positions=4096, activation="relu2",
            partial_rotary_factor=0.5,
        ),
        facts=PLAIN,
        switches=(ATTENTION_BIAS, MLP_BIAS),
    ),
    "bert": Architecture(
        keys=keys_with(type_vocab_size="type_vocab_size", **MHA, **NO_ROPE),
        defaults=sizes(
            768, 12, 12, ffn=3072, vocab=30522, positions=512, tied_embeddings=True,
            activation="gelu", type_vocab_size=2,
        ),
        facts={**LEARNED, "kind": "encoder", "embedding_norm": True, "final_norm": False,
               "pooler": True},
    ),
    "t5": Architecture(
        keys=keys_with(
            layers="num_layers", hidden_size="d_model", ffn_hidden_size="d_ff", kv_heads=None,
            attention_heads="num_heads", head_size="d_kv", max_position_embeddings="n_positions",
            activation=None, relative_attention_buckets="relative_attention_num_buckets",
            **NO_ROPE,
        ),
        defaults=sizes(
            512, 6, 8, ffn=2048, vocab=32128, positions=512, tied_embeddings=True,
            activation="relu", head_size=64, relative_attention_buckets=32,
        ),
        facts={"kind": "encoder-decoder", "norm": "rmsnorm", "position": "relative"},
    ),
}  # fmt: skip
