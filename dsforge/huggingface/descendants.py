"""Llama's later descendants: a decoder that differs in a norm, a bias, a gate or a window."""

from __future__ import annotations

from dsforge.huggingface.architecture import (
    ALL_BIASES,
    ATTENTION_BIAS,
    GATED,
    MLP_BIAS,
    PLAIN,
    WINDOWED,
    Architecture,
    Switch,
    keys_with,
    sizes,
)
from dsforge.huggingface.experts import DEEPSEEK_EXPERTS, LOCAL_EXPERTS
from dsforge.huggingface.gated import GEMMA_KEYS

PATTERN_OF_4 = {"sliding_window": 4096, "sliding_window_pattern": 4}

DESCENDANTS = {
    "arcee": Architecture(
        keys=keys_with(),
        defaults=sizes(
            2560, 32, 32, ffn=18432, vocab=32000, positions=4096, activation="relu2",
        ),
        facts={**PLAIN, "norm": "rmsnorm"},
        switches=(ATTENTION_BIAS, MLP_BIAS),
    ),
    "jais2": Architecture(
        keys=keys_with(),
        defaults=sizes(
            3328, 32, 26, ffn=26624, vocab=150272, positions=8192, activation="relu2",
        ),
        facts=PLAIN,
        switches=(
            ATTENTION_BIAS._replace(default=True), MLP_BIAS._replace(default=True),
        ),
    ),
    "exaone4": Architecture(
        keys=WINDOWED,
        defaults=sizes(
            4096, 32, 32, ffn=16384, kv_heads=32, vocab=102400, positions=2048, **PATTERN_OF_4,
        ),
        facts={**GATED, "qk_norm": "head"},
    ),
    "olmo3": Architecture(
        keys=keys_with(head_size=None, sliding_window="sliding_window"),
        defaults=sizes(
            4096, 32, 32, ffn=11008, vocab=50304, positions=2048, rope_theta=5e5, **PATTERN_OF_4,
        ),
        facts={**GATED, "qk_norm": "full"},
        switches=(ATTENTION_BIAS,),
    ),
    "seed_oss": Architecture(
        keys=keys_with(),
        defaults=sizes(
            4096, 64, 80, ffn=27648, kv_heads=8, head_size=128, vocab=155136, positions=524288,
        ),
        facts=GATED,
        switches=(
            Switch("attention_bias", default=True, on={"qkv_bias": True}),
            Switch("attention_out_bias", default=False, on={"attention_out_bias": True}),
            MLP_BIAS,
        ),
    ),
    "cohere2": Architecture(
        keys=WINDOWED,
        defaults=sizes(
            8192, 40, 64, ffn=22528, vocab=256000, positions=8192, tied_embeddings=True,
            **PATTERN_OF_4,
        ),
        facts={**GATED, "norm": "layernorm_no_bias", "norms_per_layer": 1,
               "parallel_residual": True},
        switches=(ATTENTION_BIAS,),
    ),
    "ernie4_5": Architecture(
        keys=keys_with(),
        defaults=sizes(
            1024, 18, 16, ffn=3072, kv_heads=2, head_size=128, vocab=103424, positions=131072,
            tied_embeddings=True, rope_theta=5e5,
        ),
        facts=GATED,
        switches=(Switch("use_bias", default=False, on=ALL_BIASES),),
    ),
    "ernie4_5_moe": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(
            2560, 28, 20, ffn=12288, kv_heads=4, vocab=103424, positions=131072,
            tied_embeddings=True, rope_theta=5e5,
        ),
        facts=GATED,
        moe={
            "experts": ("moe_num_experts",),
            "experts_per_token": ("moe_k",),
            "expert_ffn_hidden_size": ("moe_intermediate_size",),
            "shared_experts": ("moe_num_shared_experts",),
            "first_dense_layers": ("moe_layer_start_index",),
        },
        moe_defaults={
            "experts": 64, "experts_per_token": 6, "expert_ffn_hidden_size": 1536,
            "shared_experts": 2, "first_dense_layers": 1,
        },
        moe_facts={"router_bias": True},
        fixed={"use_bias": False, "moe_layer_interval": 1},
    ),
    "ministral": Architecture(
        keys=WINDOWED,
        defaults=sizes(
            4096, 32, 32, ffn=14336, kv_heads=8, vocab=32000, positions=131072,
            sliding_window=4096,
        ),
        facts=GATED,
    ),
    "ministral3": Architecture(
        keys=WINDOWED,
        defaults=sizes(
            4096, 34, 32, ffn=14336, kv_heads=8, head_size=128, vocab=131072, positions=262144,
            rope_theta=1e6,
        ),
        facts=GATED,
    ),
    "helium": Architecture(
        keys=keys_with(),
        defaults=sizes(
            2560, 24, 20, ffn=7040, kv_heads=20, head_size=128, vocab=48000, positions=4096,
            rope_theta=1e5,
        ),
        facts=GATED,
        switches=(Switch("attention_bias", default=False, on={"qkv_bias": True}), MLP_BIAS),
    ),
    "cwm": Architecture(
        keys=WINDOWED,
        defaults=sizes(
            6144, 64, 48, ffn=21504, kv_heads=8, head_size=128, vocab=128256, positions=131072,
            rope_theta=1e6, sliding_window=8192, sliding_window_pattern=4,
        ),
        facts=GATED,
        switches=(MLP_BIAS,),
    ),
    "internlm3": Architecture(
        keys=keys_with(),
        defaults=sizes(
            4096, 48, 32, ffn=10240, kv_heads=2, head_size=128, vocab=128512, positions=32768,
        ),
        facts=GATED,
        switches=(ATTENTION_BIAS, MLP_BIAS),
    ),
    "iquestcoder": Architecture(
        keys=keys_with(),
        defaults=sizes(
            5120, 80, 40, ffn=27648, kv_heads=8, head_size=128, vocab=76800, positions=131072,
        ),
        facts=GATED,
        switches=(ATTENTION_BIAS, MLP_BIAS),
    ),
    "vaultgemma": Architecture(
        keys=GEMMA_KEYS,
        defaults=sizes(
            2304, 26, 8, ffn=9216, kv_heads=4, head_size=256, vocab=256000, positions=8192,
            tied_embeddings=True, activation="gelu_pytorch_tanh", sliding_window=4096,
            sliding_window_pattern=2,
        ),
        facts=GATED,
        switches=(ATTENTION_BIAS,),
    ),
    "hunyuan_v1_dense": Architecture(
        keys=keys_with(),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=290943, positions=2048),
        facts={**GATED, "qk_norm": "head"},
        switches=(ATTENTION_BIAS,),
    ),
    "granitemoeshared": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=32000, positions=2048),
        facts=GATED,
        switches=(ATTENTION_BIAS,),
        moe={**LOCAL_EXPERTS, "shared_ffn_hidden_size": ("shared_intermediate_size",)},
        moe_defaults={"experts": 8, "experts_per_token": 2},
    ),
    "flex_olmo": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(
            4096, 32, 32, ffn=11008, vocab=100352, positions=4096, rope_theta=5e5,
        ),
        facts={**GATED, "qk_norm": "full"},
        switches=(ATTENTION_BIAS,),
        moe={**LOCAL_EXPERTS, "experts": ("num_experts", "num_local_experts")},
        moe_defaults={"experts": 7, "experts_per_token": 5},
    ),
    "minimax_m2": Architecture(
        keys=keys_with(),
        defaults=sizes(
            3072, 62, 48, ffn=1536, kv_heads=8, head_size=128, vocab=200064, positions=196608,
            rope_theta=5e6,
        ),
        facts={**GATED, "qk_norm": "full"},
        moe=LOCAL_EXPERTS,
        moe_defaults={"experts": 256, "experts_per_token": 8},
        fixed={"use_qk_norm": True, "shared_intermediate_size": 0},
    ),
    "dots1": Architecture(
        keys=keys_with(),
        defaults=sizes(
            4608, 62, 32, ffn=10944, kv_heads=32, vocab=152064, positions=2048,
        ),
        facts={**GATED, "qk_norm": "head"},
        switches=(ATTENTION_BIAS,),
        moe=DEEPSEEK_EXPERTS,
        moe_defaults={
            "experts": None, "experts_per_token": None, "expert_ffn_hidden_size": 1408,
            "shared_experts": None, "first_dense_layers": 0,
        },
    ),
}  # fmt: skip
