"""Keys of a config that its architecture entry does not read: refused if they may change the size.

A wrong size is worse than no plan. So an architecture that is not modelled is refused by name; a
known one is refused where its config has parts that it was not read with; and a `model_type` that
nobody knows is read as Llama-like only where it states nothing but Llama's keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsforge.huggingface.architecture import ARCHITECTURES, MLA_KEYS, Architecture

# Names of parts of a model that change its parameters.
PARTS: Final = re.compile(
    r"expert|moe|mamba|ssm|rwkv|conv|lru|recurrent|hybrid|linear_(?:attn|key|value|num|conv)"
    r"|layers?_block|block_(?:type|config)|attn_(?:type|layer)|layer_type|vision|audio|speech|image"
    r"|video|nextn|mtp|altup|laurel|per_layer|cross_attention|adapter|index_|kda|lightning|laplace"
    r"|shared_?layers|encoder|bottleneck|lora_rank|sub_?norm|share_cross|tower|qformer|projector"
)
# Keys that match but change no size: routing, capacity, and what only inference uses.
NEUTRAL: Final = re.compile(
    r"router|coef|aux|_loss|norm_topk|topk_(?:method|group)|scoring|scaling|n_group|capacity|jitter"
    r"|token|initializer|dropout|(?:^|_)eps$|scale|multiplier|layernorm_eps|_id$|_dtype|std$"
    r"|output_|ep_size|gate_logit|clip|vocab|dispatch|num_experts_per_tok|is_encoder_decoder"
    r"|norm_min|moe_gate$|use_moe$"
)
MTP: Final = (
    *("num_nextn_predict_layers", "num_mtp_modules", "mtp_transformer_layers", "n_mtp", "use_mtp"),
    "mtp_num_hidden_layers",
)
OFF: Final[tuple[object, ...]] = (None, False, 0, "", [], {})
SIZES: Final = (
    *("layers", "hidden_size", "ffn_hidden_size", "attention_heads", "kv_heads", "head_size"),
    *("experts", "expert_ffn_hidden_size", "shared_experts", "shared_ffn_hidden_size"),
)
# What an unknown `model_type` may state and still be a Llama of its sizes.
PLAIN_KEYS: Final = re.compile(
    r"model_type|architectures|auto_map|_\w+|transformers_version|torch_dtype|dtype|use_cache"
    r"|\w*token_id|\w*token_index|initializer_range|init_\w+|\w*dropout\w*|rms_norm_eps"
    r"|rope_\w+|original_max_position_embeddings|max_window_layers|use_sliding_window"
    r"|pretraining_tp|output_\w+|return_\w+|id2label|label2id|problem_type|quantization_config"
    r"|chunk_size_feed_forward|tokenizer_class|task_specific_params|is_decoder"
    r"|tie_encoder_decoder|sliding_window|attn_implementation|use_flash\w*|num_labels|finetuning_task"
    r"|torchscript|pruned_heads|use_bfloat16|prefix|gradient_checkpointing|name|max_length"
)
HANDLED: Final = (
    "layer_types",
    "mlp_layer_types",
    "mlp_only_layers",
    "moe_layer_freq",
    "text_config",
)  # in reader
PLAIN_ACTIVATIONS: Final = ("silu", "swish", "gelu_pytorch_tanh")


def size_keys() -> Mapping[str, str]:
    """Every key that states a size in some architecture, and the field that it fills there."""
    found: dict[str, str] = {}
    for table in ARCHITECTURES.values():
        for name, keys in (*table.keys.items(), *table.moe_keys.items()):
            if name in SIZES:
                found |= dict.fromkeys(keys, name)
    return {**found, "multi_query_group_num": "kv_heads"}


def keys_read(table: Architecture) -> set[str]:
    """Top-level keys that an architecture is read with."""
    groups = (
        *table.keys.values(),
        *table.moe_keys.values(),
        *table.recurrent_keys.values(),
        *(MLA_KEYS[name] for name in table.mla_defaults),
    )
    read = {key.partition(".")[0] for keys in groups for key in keys}
    read |= {"head_dim"} if table.mla_defaults else set()  # follows from the latent sizes
    return read | {switch.key for switch in table.switches} | set(table.fixed)


def unread_parts(
    config: Mapping[str, Any], table: Architecture, read: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Keys with values that a known architecture was not read with and that may change its size.

    `read` holds the sizes that were read: a key of another architecture may repeat one.
    """
    known, foreign = keys_read(table), size_keys()
    for key, value in config.items():
        if key in known or key in HANDLED or key in MTP or value in OFF:
            continue
        if key in foreign:
            if value != read.get(foreign[key]):
                yield key, value
        elif PARTS.search(key) and not NEUTRAL.search(key):
            yield key, value


def unknown_keys(config: Mapping[str, Any], table: Architecture) -> Iterator[tuple[str, Any]]:
    """Keys with values beyond those of a plain Llama."""
    known = keys_read(table)
    for key, value in config.items():
        if key not in known and value not in OFF and PLAIN_KEYS.fullmatch(key) is None:
            yield key, value
