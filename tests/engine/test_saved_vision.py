"""What a layer of a real vision tower saves for backward, against what is priced of it."""

from __future__ import annotations

from typing import Any

import pytest
from saved_tensors import saved_of, stored_bytes

from dsforge.estimate.vision import saved_elements
from dsforge.huggingface import read_config
from dsforge.layout import Layout
from dsforge.specs import Workload
from dsforge.strategy import Strategy

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::FutureWarning")]

WIDTH, HEADS, LAYERS, PATCH = 128, 4, (2, 4), 14
TEXT = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256}
TEXT |= {"num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 2048}
TOLERANCE = 0.005  # of a layer's bytes: biases and statistics, of a width that is counted


def priced(config: Any, patches: int) -> float:
    """Elements of all patches of a sample of nothing but its image."""
    vision = {**config.to_dict(), "model_type": "siglip_vision_model"}
    model, _ = read_config(
        {"model_type": "llava", "text_config": TEXT, "vision_config": vision}, "x"
    )
    work = Workload(
        sequence_length=patches,
        global_batch_size=1,
        learning_rate=1e-5,
        image_tokens=patches,
        vision_training="all",
    )
    how = Strategy(
        layout=Layout(data_parallel_size=1),
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        recompute="none",
    )
    return saved_elements(model, work, how) * patches


@pytest.mark.parametrize("inner", [256, 512, 640])
def test_a_layer_of_a_tower_saves_what_is_priced(inner: int) -> None:
    """SigLIP's layers on a CPU, of several widths of their MLP: two layers more keep twice one."""
    import torch
    from transformers import SiglipVisionConfig, SiglipVisionModel

    measured, wanted = [], []
    for layers in LAYERS:
        config = SiglipVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=inner,
            num_attention_heads=HEADS,
            num_hidden_layers=layers,
            image_size=8 * PATCH,
            patch_size=PATCH,
            vision_use_head=False,
            attn_implementation="sdpa",
        )
        tower = SiglipVisionModel(config).to(torch.bfloat16).train()
        pixels = torch.randn(1, 3, 8 * PATCH, 8 * PATCH, dtype=torch.bfloat16)
        with saved_of(tower) as found:
            result = tower(pixel_values=pixels).last_hidden_state
        assert result.requires_grad
        measured.append(stored_bytes(found))
        wanted.append(2 * priced(config, result.shape[1]))

    assert wanted[1] - wanted[0] == pytest.approx(measured[1] - measured[0], rel=TOLERANCE)
