"""What brings weights in Hugging Face's form to Megatron-LM: one table, by `model_type`.

`pretrain_gpt.py` starts from random weights unless `--pretrained-checkpoint` names a checkpoint in
Megatron's own form. Megatron-LM's loaders of other forms are the modules `loader_*_hf.py` of its
tools/checkpoint; those for Llama and its kin are gone. Megatron-Bridge imports what it has a bridge
for. Nothing else converts weights of other models.
"""

from __future__ import annotations

from typing import NamedTuple


class Converter(NamedTuple):
    """A tool that writes a checkpoint of Megatron-LM, and whose weights it reads."""

    tool: str
    kinds: tuple[str, ...]  # `model_type`s
    source: str
    program: str | None = None  # of `gen --for`, whose script loads the weights itself


BRIDGE = Converter(
    "Megatron-Bridge's `AutoBridge.import_ckpt`",
    (
        *("bailing_moe_v2", "deepseek_v2", "deepseek_v3", "ernie4_5_moe", "exaone4", "exaone_moe"),
        *("falcon_h1", "gemma", "gemma2", "gemma3_text", "glm4_moe", "glm4_moe_lite"),
        *("glm_moe_dsa", "gpt_oss", "llama", "minimax_m2", "mistral", "nemotron", "nemotron_h"),
        *("olmoe", "qwen2", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next"),
    ),
    "megatron-bridge 0.7 models/*/*_bridge.py, register_bridge; models/conversion/auto_bridge.py",
    program="megatron-bridge",
)
MEGATRON_LM = Converter(
    "Megatron-LM's `tools/checkpoint/convert.py --loader mixtral_hf --saver core`",
    ("mixtral",),
    "Megatron-LM 0.20 tools/checkpoint: loader_core.py, loader_llava.py, loader_mixtral_hf.py",
)
CONVERTERS = (MEGATRON_LM, BRIDGE)


def converter_of(model_type: str | None) -> Converter | None:
    """What converts the weights of a kind of model; none where nothing does."""
    return next((one for one in CONVERTERS if model_type in one.kinds), None)
