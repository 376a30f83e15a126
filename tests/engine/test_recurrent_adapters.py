"""Adapters on models with recurrent layers: as many as the estimate counts, and none in vain."""

from __future__ import annotations

from typing import Any

import pytest

from dsforge.estimate.params import lora_parameters
from dsforge.huggingface import config_from_model, read_config, tiny
from dsforge.specs import AdapterTarget, LoraSpec

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::FutureWarning")]
ALTERNATING = {"bamba": {"attn_layer_indices": [1]}, "lfm2": {"full_attn_idxs": [1]}}
KINDS = ("qwen3_5_text", "olmo_hybrid", "lfm2", "bamba", "jamba", "falcon_h1", "nemotron_h")


def small(kind: str) -> dict[str, Any]:
    """A tiny config of a kind, with attention and recurrence."""
    whole = read_config({"model_type": kind, **ALTERNATING.get(kind, {})}, kind)[0]
    return config_from_model(tiny(whole))


@pytest.mark.parametrize("targets", [None, ("query", "value"), ("output",)])
@pytest.mark.parametrize("kind", [*KINDS, "mamba", "mamba2", "qwen3_moe"])
def test_adapters_are_those_that_are_counted(
    kind: str, targets: tuple[AdapterTarget, ...] | None
) -> None:
    """On all matrices, or on some of attention; Mamba's kernels multiply with others themselves."""
    if targets and kind in ("mamba", "mamba2"):
        pytest.skip("it has no attention to adapt")
    from transformers import AutoConfig, AutoModelForCausalLM

    from dsforge.train.model.adapters import with_adapters

    config = small(kind)
    model = read_config(config, kind)[0]
    lora = LoraSpec(rank=4, alpha=8, **({"targets": targets} if targets else {}))
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    adapted = with_adapters(network, lora)
    trained = {
        name: each.numel() for name, each in adapted.named_parameters() if each.requires_grad
    }

    assert sum(trained.values()) == lora_parameters(model, lora)
    if kind != "lfm2":
        assert not any(part in name for name in trained for part in ("mamba.out_proj", "x_proj"))
