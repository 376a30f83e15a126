"""Every architecture by its `model_type`."""

from __future__ import annotations

from collections.abc import Mapping

from dsforge.huggingface.architecture import Architecture
from dsforge.huggingface.experts import MOE_MODELS
from dsforge.huggingface.gated import GATED_MODELS
from dsforge.huggingface.plain import PLAIN_MODELS

ARCHITECTURES: Mapping[str, Architecture] = {**PLAIN_MODELS, **GATED_MODELS, **MOE_MODELS}

# Other model_types with the same modelling code as far as shapes go.
SAME_AS: Mapping[str, str] = {
    "kimi_k2": "deepseek_v3",
    "ministral": "mistral",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "Yi": "llama",
}

# The language model inside a multimodal config whose `text_config` does not name its type.
TEXT_TYPES: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "llava": "llama",
    "llava_next": "llama",
}
