"""megatron-core's own config classes take the generated arguments and their sizes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pairs
import pytest

from dsforge.plan import Plan
from dsforge.render import render

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# What pretrain_gpt.py calls otherwise than the field of TransformerConfig that it fills.
RENAMED = {
    "num_experts": "num_moe_experts",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
# What belongs to pretrain_gpt.py alone: data, schedule, optimizer, and switches handled below.
NOT_OF_THE_MODEL = {
    *("seq_length", "max_position_embeddings", "position_embedding_type", "micro_batch_size"),
    *("global_batch_size", "train_iters", "optimizer", "lr", "min_lr", "lr_decay_style", "seed"),
    *("lr_warmup_fraction", "weight_decay", "clip_grad", "adam_beta1", "adam_beta2", "adam_eps"),
    *("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"),
    *("rotary_base", "rotary_percent"),  # arguments of GPTModel
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


def settings(plan: Plan) -> dict[str, Any] | None:
    """Fields of TransformerConfig as pretrain_gpt.py would set them; none without Megatron."""
    text = next((a.text for a in render(plan) if a.path == "megatron/args.txt"), None)
    if text is None:
        return None
    lines = (line.partition(" ") for line in text.splitlines())
    given = {flag[2:].replace("-", "_"): value(said) for flag, _, said in lines}
    if given.pop("swiglu", False):
        given |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    if given.pop("disable_bias_linear", False):
        given["add_bias_linear"] = False
    given |= {"pipeline_dtype": torch.bfloat16, "params_dtype": torch.bfloat16}
    return {RENAMED.get(k, k): v for k, v in given.items() if k not in NOT_OF_THE_MODEL}


@pytest.mark.parametrize("name", pairs.PAIRS)
def test_the_config_class_takes_the_arguments(name: str, tmp_path: Path) -> None:
    """Every argument about the model is a field, and the class accepts the combination."""
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    plan = pairs.plan_of(name, tmp_path)
    given = settings(plan)
    if given is None:
        assert any(v.name == "megatron" and v.problems for v in plan.variants)
        return
    kind = MLATransformerConfig if given.get("multi_latent_attention") else TransformerConfig
    known = {field.name for field in fields(kind)}

    assert set(given) <= known
    config = kind(**given)
    assert config.num_layers == plan.model.layers
    assert config.kv_channels == plan.model.head_size or plan.model.mla is not None


def test_a_wrong_size_would_be_found(tmp_path: Path) -> None:
    """The class does check: heads that tensor parallelism does not divide."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    given = settings(pairs.plan_of("llama-2-7b-on-2x8-a100-100gbe", tmp_path))

    assert given is not None
    with pytest.raises(ValueError, match="tensor_model_parallel_size"):
        TransformerConfig(**(given | {"tensor_model_parallel_size": 3}))
