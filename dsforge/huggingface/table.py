"""Every architecture by its `model_type`."""

from __future__ import annotations

from collections.abc import Mapping

from dsforge.huggingface.architecture import Architecture
from dsforge.huggingface.descendants import DESCENDANTS
from dsforge.huggingface.experts import MOE_MODELS
from dsforge.huggingface.gated import GATED_MODELS
from dsforge.huggingface.plain import PLAIN_MODELS

ARCHITECTURES: Mapping[str, Architecture] = {
    **PLAIN_MODELS,
    **GATED_MODELS,
    **DESCENDANTS,
    **MOE_MODELS,
}

# Other model_types with the same modelling code as far as shapes go.
SAME_AS: Mapping[str, str] = {
    "gpt-sw3": "gpt2",
    "kimi_k2": "deepseek_v3",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "Yi": "llama",
}

# Multimodal configs of which transformers trains the language model alone as a causal one: the
# type of their `text_config` where it does not name it.
TEXT_TYPES: Mapping[str, str] = {"llama4": "llama4_text"}
