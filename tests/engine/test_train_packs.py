"""Packed sequences on a real model: the same loss and gradients as the samples apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsforge.errors import DsforgeError
from dsforge.job import TrainJob
from dsforge.train.data.packing import check_takes_positions, packed
from dsforge.train.data.samples import Sample, collate
from dsforge.train.parallel.ranks import Place
from dsforge.train.run.step import Stepper

pytestmark = pytest.mark.engine


class Alone:
    """As much of an engine as a loss needs: the model itself."""

    def __init__(self, folder: Path, attention: str) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)
        self.module, self.loss_scale = self.model, 1.0
        self.device = self.model.device

    def __call__(self, **inputs: Any) -> Any:
        """The model's output."""
        return self.model(**inputs, use_cache=False)


def samples() -> list[Sample]:
    """Six samples of unequal length; the first third of each is a question."""
    rng = np.random.default_rng(5)
    made = []
    for length in (9, 30, 17, 24, 11, 40):
        tokens = rng.integers(5, 384, length)
        made.append(Sample(tokens, np.where(np.arange(length) < length // 3, -100, tokens)))
    return made


def loss_and_gradient(engine: Alone, batches: list[list[Sample]], **job: Any) -> tuple[float, Any]:
    """Summed loss of the batches and the gradient of the word embedding."""
    settings = {"model": "m", "deepspeed_config": "d", "data": {"train": "t"}, "sequence_length": 8}
    stepper = Stepper(engine, TrainJob.model_validate({**settings, **job}), 0, Place(0, 0, 1))
    engine.model.zero_grad()
    total = 0.0
    for batch in batches:
        loss = stepper._loss(collate(batch, pad_token=0))
        loss.backward()
        total += float(loss.detach())
    return total, engine.model.get_input_embeddings().weight.grad.clone()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packs_give_the_loss_and_gradient_of_their_samples(
    tiny_llama: Path, attention: str
) -> None:
    """Nothing leaks from one sample of a pack into another."""
    import torch

    engine = Alone(tiny_llama, attention)
    apart, gradient = loss_and_gradient(engine, [[sample] for sample in samples()])
    packs = packed(samples(), 64, seed=3)
    together, other = loss_and_gradient(engine, [packs], packing=True, attention=attention)

    assert len(packs) < len(samples())
    assert together == pytest.approx(apart, rel=1e-5)
    torch.testing.assert_close(other, gradient, rtol=1e-3, atol=1e-5)


def test_a_batch_laid_in_one_row_gives_the_same_loss(tiny_llama: Path) -> None:
    """As flash attention wants it: borders stand in the positions alone."""
    engine = Alone(tiny_llama, "sdpa")
    packs = packed(samples(), 64, seed=3)
    rows, _ = loss_and_gradient(engine, [packs], packing=True)
    one_row, _ = loss_and_gradient(engine, [packs], packing=True, attention="flash_attention_2")

    assert one_row == pytest.approx(rows, rel=1e-5)


def test_models_without_positions_are_refused() -> None:
    """BLOOM counts positions by itself and could not be told of borders."""
    from transformers import BloomForCausalLM, LlamaForCausalLM

    check_takes_positions(LlamaForCausalLM)
    with pytest.raises(DsforgeError, match="position ids"):
        check_takes_positions(BloomForCausalLM)
