"""Architectures with experts, those with latent attention among them."""

from __future__ import annotations

from dsforge.huggingface.architecture import (
    ATTENTION_BIAS,
    ATTENTION_BIASES,
    GATED,
    WINDOWED,
    Architecture,
    Keys,
    Switch,
    keys_with,
    sizes,
)

EXPERTS: Keys = {
    "experts": ("num_experts", "num_local_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_ffn_hidden_size": ("moe_intermediate_size",),
}
LOCAL_EXPERTS: Keys = {
    "experts": ("num_local_experts",),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_ffn_hidden_size": ("intermediate_size",),
}
DEEPSEEK_EXPERTS: Keys = {
    **EXPERTS,
    "experts": ("n_routed_experts",),
    "shared_experts": ("n_shared_experts",),  # each as wide as a routed one
    "first_dense_layers": ("first_k_dense_replace",),
}
MLA = {"kv_rank": 512, "nope_head_size": 128, "rope_head_size": 64, "v_head_size": 128}


MOE_MODELS = {
    "mixtral": Architecture(
        keys=WINDOWED,
        defaults=sizes(
            4096, 32, 32, ffn=14336, kv_heads=8, vocab=32000, positions=131072, rope_theta=1e6
        ),
        facts=GATED,
        moe=LOCAL_EXPERTS,
        moe_defaults={"experts": 8, "experts_per_token": 2},
    ),
    "phimoe": Architecture(
        keys=keys_with(head_size=None, sliding_window="sliding_window"),
        defaults=sizes(
            4096, 32, 32, ffn=6400, kv_heads=8, vocab=32064, positions=131072, rope_theta=1e6
        ),
        facts={**GATED, "norm": "layernorm"},
        switches=(
            ATTENTION_BIAS, Switch("lm_head_bias", default=False, on={"lm_head_bias": True}),
        ),
        moe=LOCAL_EXPERTS,
        moe_defaults={"experts": 16, "experts_per_token": 2},
    ),
    "granitemoe": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=32000, positions=2048),
        facts=GATED,
        switches=(ATTENTION_BIAS,),
        moe=LOCAL_EXPERTS,
        moe_defaults={"experts": 8, "experts_per_token": 2},
    ),
    "gpt_oss": Architecture(
        keys=WINDOWED,
        defaults=sizes(
            2880, 36, 64, ffn=2880, kv_heads=8, head_size=64, vocab=201088, positions=131072,
            sliding_window=128, sliding_window_pattern=2, rope_theta=150000.0,
        ),
        facts={**GATED, "mlp_bias": True, "attention_sinks": True},
        switches=(Switch("attention_bias", default=True, on=ATTENTION_BIASES),),
        moe=LOCAL_EXPERTS,
        moe_defaults={"experts": 128, "experts_per_token": 4},
        moe_facts={"router_bias": True},
    ),
    "olmoe": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(2048, 16, 16, ffn=2048, vocab=50304, positions=4096),
        facts={**GATED, "qk_norm": "full"},
        switches=(ATTENTION_BIAS,),
        moe={**LOCAL_EXPERTS, "experts": ("num_experts", "num_local_experts")},
        moe_defaults={"experts": 64, "experts_per_token": 8},
    ),
    "dbrx": Architecture(
        keys=keys_with(
            layers="n_layers", hidden_size="d_model", attention_heads="n_heads", head_size=None,
            kv_heads="attn_config.kv_n_heads", ffn_hidden_size="ffn_config.ffn_hidden_size",
            max_position_embeddings="max_seq_len", activation="ffn_config.ffn_act_fn.name",
            rope_theta="attn_config.rope_theta", partial_rotary_factor=None,
        ),
        defaults=sizes(2048, 24, 16, ffn=3584, kv_heads=1, vocab=32000, positions=2048),
        facts={**GATED, "norm": "layernorm_no_bias"},
        moe={
            "experts": ("ffn_config.moe_num_experts",),
            "experts_per_token": ("ffn_config.moe_top_k",),
            "expert_ffn_hidden_size": ("ffn_config.ffn_hidden_size",),
        },
        moe_defaults={"experts": 4, "experts_per_token": 1},
    ),
    "qwen2_moe": Architecture(
        keys=WINDOWED,
        window_switch=True,
        defaults=sizes(2048, 24, 16, ffn=5632, kv_heads=16, vocab=151936, positions=32768),
        facts=GATED,
        switches=(Switch("qkv_bias", default=True, on={"qkv_bias": True}),),
        moe={
            **EXPERTS,
            "shared_ffn_hidden_size": ("shared_expert_intermediate_size",),
            "layer_step": ("decoder_sparse_step",),
        },
        moe_defaults={
            "experts": 60, "experts_per_token": 4, "expert_ffn_hidden_size": 1408,
            "shared_ffn_hidden_size": 5632,
        },
        moe_facts={"shared_gate": True},
    ),
    "qwen3_moe": Architecture(
        keys=WINDOWED,
        window_switch=True,
        defaults=sizes(2048, 24, 32, ffn=6144, kv_heads=4, vocab=151936, positions=32768),
        facts={**GATED, "qk_norm": "head"},
        switches=(ATTENTION_BIAS,),
        moe={**EXPERTS, "layer_step": ("decoder_sparse_step",)},
        moe_defaults={"experts": 128, "experts_per_token": 8, "expert_ffn_hidden_size": 768},
    ),
    "llama4_text": Architecture(
        keys=keys_with(ffn_hidden_size="intermediate_size_mlp"),
        defaults=sizes(
            5120, 48, 40, ffn=16384, kv_heads=8, head_size=128, vocab=202048, positions=131072,
            rope_theta=5e5,
        ),
        facts=GATED,
        switches=(ATTENTION_BIAS,),
        moe={
            **LOCAL_EXPERTS,
            "shared_ffn_hidden_size": ("intermediate_size",),
            "layer_step": ("interleave_moe_layer_step",),
        },
        moe_defaults={
            "experts": 16, "experts_per_token": 1, "expert_ffn_hidden_size": 8192,
            "shared_ffn_hidden_size": 8192,
        },
    ),
    "glm4_moe": Architecture(
        keys=keys_with(),
        defaults=sizes(
            4096, 46, 96, ffn=10944, kv_heads=8, vocab=151552, positions=131072,
            partial_rotary_factor=0.5,
        ),
        facts=GATED,
        switches=(
            Switch("attention_bias", default=False, on={"qkv_bias": True}),
            Switch("use_qk_norm", default=False, on={"qk_norm": "head"}),
        ),
        moe=DEEPSEEK_EXPERTS,
        moe_defaults={
            "experts": 128, "experts_per_token": 8, "expert_ffn_hidden_size": 1408,
            "shared_experts": 1, "first_dense_layers": 1,
        },
    ),
    "deepseek": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(4096, 30, 32, ffn=11008, vocab=102400, positions=2048),
        facts=GATED,
        switches=(ATTENTION_BIAS,),
        moe=DEEPSEEK_EXPERTS,
        moe_defaults={
            "experts": None, "experts_per_token": None, "expert_ffn_hidden_size": 1407,
            "shared_experts": None, "first_dense_layers": 0,
        },
    ),
    "deepseek_v2": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(4096, 32, 32, ffn=11008, vocab=102400, positions=2048),
        facts=GATED,
        moe=DEEPSEEK_EXPERTS,
        moe_defaults={
            "experts": 64, "experts_per_token": None, "expert_ffn_hidden_size": 1407,
            "shared_experts": 2, "first_dense_layers": 0,
        },
        mla_defaults={**MLA, "q_rank": 1536},
        fixed={"attention_bias": False, "mlp_bias": False},
    ),
    "deepseek_v3": Architecture(
        keys=keys_with(head_size=None),
        defaults=sizes(7168, 61, 128, ffn=18432, vocab=129280, positions=4096),
        facts=GATED,
        moe=DEEPSEEK_EXPERTS,
        moe_defaults={
            "experts": 256, "experts_per_token": 8, "expert_ffn_hidden_size": 2048,
            "shared_experts": 1, "first_dense_layers": 3,
        },
        mla_defaults={**MLA, "q_rank": 1536},
        fixed={"attention_bias": False},
    ),
}  # fmt: skip
