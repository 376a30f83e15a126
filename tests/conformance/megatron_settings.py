"""Generated Megatron arguments as the fields of megatron-core's own config classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsforge.plan import Plan
from dsforge.render.megatron import megatron_arguments
from dsforge.strategy import Strategy

# What pretrain_gpt.py calls otherwise than the field of TransformerConfig that it fills.
RENAMED = {
    "num_experts": "num_moe_experts",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "norm_epsilon": "layernorm_epsilon",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
# What belongs to pretrain_gpt.py alone: data, schedule, optimizer, and switches handled below.
NOT_OF_THE_MODEL = {
    *("seq_length", "max_position_embeddings", "position_embedding_type", "micro_batch_size"),
    *("global_batch_size", "train_iters", "optimizer", "lr", "min_lr", "lr_decay_style", "seed"),
    *("lr_warmup_fraction", "weight_decay", "clip_grad", "adam_beta1", "adam_beta2", "adam_eps"),
    *("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"),
    *("use_rope_scaling", "rope_scaling_factor"),  # arguments of GPTModel
    *("untie_embeddings_and_output_weights", "group_query_attention", "initial_loss_scale"),
}


def value(text: str) -> Any:
    """A value of args.txt as the argument parser would read it."""
    if text == "":
        return True
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    if text.startswith("(["):  # ([0]*1+[1]*26)
        runs = (part.split("*") for part in text[1:-1].split("+"))
        return [int(one[1:-1]) for one, times in runs for _ in range(int(times))]
    if text.startswith("("):
        return tuple(int(part) for part in text[1:-1].split(","))
    return text


def fields_of(lines: Iterable[str]) -> dict[str, Any]:
    """Fields of TransformerConfig as pretrain_gpt.py would set them from lines of args.txt."""
    import torch

    split = (line.partition(" ") for line in lines)
    given = {flag[2:].replace("-", "_"): value(said) for flag, _, said in split}
    if given.pop("swiglu", False):
        given |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    if given.pop("disable_bias_linear", False):
        given["add_bias_linear"] = False
    given |= {"pipeline_dtype": torch.bfloat16, "params_dtype": torch.bfloat16}
    latent = given.get("multi_latent_attention", False)
    left = NOT_OF_THE_MODEL | (set() if latent else {"rotary_base", "rotary_percent"})
    return {RENAMED.get(k, k): v for k, v in given.items() if k not in left}


def config_class(given: dict[str, Any]) -> type:
    """The config class that takes them: latent attention has its own."""
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    return MLATransformerConfig if given.get("multi_latent_attention") else TransformerConfig


def config_of(plan: Plan, strategy: Strategy) -> Any:
    """The config object of a strategy. Raises what megatron-core raises."""
    given = fields_of(argument.line for argument in megatron_arguments(plan, strategy))
    return config_class(given)(**given)
