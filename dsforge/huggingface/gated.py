"""Dense architectures with a gated MLP (three matrices): the Llama family."""

from __future__ import annotations

from dsforge.huggingface.architecture import (
    ALL_BIASES,
    ATTENTION_BIAS,
    ATTENTION_BIASES,
    GATED,
    LLAMA,
    MHA,
    MLP_BIAS,
    WINDOWED,
    Architecture,
    Switch,
    keys_with,
    sizes,
)

GEMMA_KEYS = keys_with(
    sliding_window="sliding_window", activation=("hidden_activation", "hidden_act")
)


GATED_MODELS = {
    "llama": LLAMA,
    "mistral": Architecture(
        keys=WINDOWED,
        defaults=sizes(
            4096, 32, 32, ffn=14336, kv_heads=8, vocab=32000, positions=131072,
            sliding_window=4096,
        ),
        facts=GATED,
    ),
    "qwen2": Architecture(
        keys=WINDOWED,
        window_switch=True,
        defaults=sizes(4096, 32, 32, ffn=22016, kv_heads=32, vocab=151936, positions=32768),
        facts={**GATED, "qkv_bias": True},
    ),
    "qwen3": Architecture(
        keys=WINDOWED,
        window_switch=True,
        defaults=sizes(
            4096, 32, 32, ffn=22016, kv_heads=32, head_size=128, vocab=151936, positions=32768
        ),
        facts={**GATED, "qk_norm": "head"},
        switches=(ATTENTION_BIAS,),
    ),
    "smollm3": Architecture(
        keys=WINDOWED,
        window_switch=True,
        defaults=sizes(
            2048, 36, 16, ffn=11008, kv_heads=4, vocab=128256, positions=32768,
            tied_embeddings=True, rope_theta=2e6,
        ),
        facts=GATED,
        switches=(ATTENTION_BIAS, MLP_BIAS),
    ),
    "gemma": Architecture(
        keys=keys_with(),
        defaults=sizes(
            3072, 28, 16, ffn=24576, kv_heads=16, head_size=256, vocab=256000, positions=8192,
            tied_embeddings=True, activation="gelu_pytorch_tanh",
        ),
        facts=GATED,
        switches=(ATTENTION_BIAS,),
    ),
    "gemma2": Architecture(
        keys=GEMMA_KEYS,
        defaults=sizes(
            2304, 26, 8, ffn=9216, kv_heads=4, head_size=256, vocab=256000, positions=8192,
            tied_embeddings=True, activation="gelu_pytorch_tanh", sliding_window=4096,
            sliding_window_pattern=2,
        ),
        facts={**GATED, "norms_per_layer": 4},
        switches=(ATTENTION_BIAS,),
    ),
    "gemma3_text": Architecture(
        keys=GEMMA_KEYS,
        defaults=sizes(
            2304, 26, 8, ffn=9216, kv_heads=4, head_size=256, vocab=262208, positions=131072,
            tied_embeddings=True, activation="gelu_pytorch_tanh", sliding_window=4096,
            sliding_window_pattern=6, rope_theta=1e6,
        ),
        facts={**GATED, "norms_per_layer": 4, "qk_norm": "head"},
        switches=(ATTENTION_BIAS,),
    ),
    "phi3": Architecture(
        keys=keys_with(head_size=None, sliding_window="sliding_window"),
        defaults=sizes(3072, 32, 32, ffn=8192, vocab=32064, positions=4096),
        facts=GATED,
    ),
    "glm": Architecture(
        keys=keys_with(),
        defaults=sizes(
            4096, 40, 32, ffn=13696, kv_heads=2, head_size=128, vocab=151552, positions=131072,
            partial_rotary_factor=0.5,
        ),
        facts=GATED,
        switches=(Switch("attention_bias", default=True, on={"qkv_bias": True}),),
    ),
    "glm4": Architecture(
        keys=keys_with(),
        defaults=sizes(
            4096, 40, 32, ffn=13696, kv_heads=2, head_size=128, vocab=151552, positions=131072,
            partial_rotary_factor=0.5,
        ),
        facts={**GATED, "norms_per_layer": 4},
        switches=(Switch("attention_bias", default=True, on={"qkv_bias": True}),),
    ),
    "chatglm": Architecture(
        keys=keys_with(
            layers="num_layers", ffn_hidden_size="ffn_hidden_size", kv_heads=None,
            head_size="kv_channels", vocab_size=("padded_vocab_size", "vocab_size"),
            max_position_embeddings="seq_length", activation=None, rope_theta=None,
            partial_rotary_factor=None,
        ),
        defaults=sizes(
            4096, 28, 32, ffn=13696, vocab=65024, positions=2048, head_size=128,
            partial_rotary_factor=0.5,
        ),
        facts=GATED,
        switches=(
            Switch("add_bias_linear", default=False, on=ALL_BIASES),
            Switch("add_qkv_bias", default=False, on={"qkv_bias": True}),
        ),
    ),
    "baichuan": Architecture(
        keys=keys_with(
            max_position_embeddings=("model_max_length", "max_position_embeddings"),
            partial_rotary_factor=None, **MHA,
        ),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=125696, positions=4096),
        facts=GATED,
    ),
    "internlm2": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=103168, positions=2048),
        facts=GATED,
        switches=(Switch("bias", default=True, on=ATTENTION_BIASES),),
    ),
    "stablelm": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(
            2560, 32, 32, ffn=6912, kv_heads=32, vocab=50304, positions=4096,
            partial_rotary_factor=0.25,
        ),
        facts={**GATED, "norm": "layernorm"},
        switches=(
            Switch("use_qkv_bias", default=False, on={"qkv_bias": True}),
            Switch("qk_layernorm", default=False, on={"qk_norm": "full"}),
            Switch(
                "use_parallel_residual", default=False,
                on={"parallel_residual": True, "norms_per_layer": 1},
            ),
        ),
    ),
    "olmo": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=50304, positions=2048),
        facts={**GATED, "norm": "layernorm_no_weights"},
        switches=(ATTENTION_BIAS,),
    ),
    "olmo2": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=50304, positions=2048),
        facts={**GATED, "qk_norm": "full"},
        switches=(ATTENTION_BIAS,),
    ),
    "granite": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=32000, positions=2048),
        facts=GATED,
        switches=(ATTENTION_BIAS, MLP_BIAS),
    ),
    "cohere": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(
            8192, 40, 64, ffn=22528, vocab=256000, positions=8192, tied_embeddings=True,
            rope_theta=5e5,
        ),
        facts={**GATED, "norm": "layernorm_no_bias", "norms_per_layer": 1,
               "parallel_residual": True},
        switches=(
            ATTENTION_BIAS, Switch("use_qk_norm", default=False, on={"qk_norm": "full"}),
        ),
    ),
}  # fmt: skip
