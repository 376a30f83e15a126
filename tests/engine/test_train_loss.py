"""The loss in chunks against the loss from whole logits: values, gradients, memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsforge.train.data.samples import IGNORED

pytestmark = pytest.mark.engine

HIDDEN, WORDS, ROWS = 48, 600, 700  # three chunks of at least 256 rows


def losses(
    kind: str,
    *,
    factor: float = 1.0,
    trained: bool = True,
    bias: bool = True,
    count: int = ROWS,
) -> Any:
    """Loss and gradients in chunks and whole: two tuples of (loss, rows, weight, bias)."""
    import torch

    from dsforge.train.model import answer_loss as chunked

    torch.manual_seed(3)
    dtype = getattr(torch, kind)
    values = torch.randn(count, HIDDEN), torch.randn(WORDS, HIDDEN) * 0.2, torch.randn(WORDS)
    tokens = torch.randint(0, WORDS, (count,))
    found = []
    for whole in (False, True):
        rows, weight, shift = (v.to(dtype).requires_grad_() for v in values)
        weight.requires_grad_(trained)
        added = shift if bias else None
        if whole:
            logits = torch.nn.functional.linear(rows, weight, added).float()
            total = torch.nn.functional.cross_entropy(logits, tokens, reduction="sum")
        else:
            total = chunked._ChunkedLoss.apply(rows, weight, added, tokens, factor)
        (total * factor).backward()
        found.append((total.detach(), rows.grad, weight.grad, shift.grad))
    return found


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 256 rows."""
    from dsforge.estimate import loss

    monkeypatch.setattr(loss, "CHUNK_BYTES", 0)


@pytest.mark.parametrize("count", [90, ROWS], ids=["one chunk", "three"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_chunks_give_the_loss_and_gradients_of_whole_logits(
    kind: str, bias: bool, count: int
) -> None:
    """In fp32 they are equal but for the order of sums; in bf16 within its rounding."""
    import torch

    chunks, whole = losses(kind, bias=bias, factor=0.37, count=count)

    tolerance = 2e-5 if kind == "float32" else 2e-2
    for ours, reference in zip(chunks, whole, strict=True):
        if reference is None:
            assert ours is None
            continue
        assert ours.dtype == reference.dtype
        distance = (ours.float() - reference.float()).norm() / reference.float().norm()
        assert distance < tolerance
    assert chunks[0].dtype == torch.float32


def test_small_gradients_survive_fp16_at_the_loss_scale() -> None:
    """Made at the scale of backward, gradients below the least fp16 number are kept."""
    factor = 2.0**14
    chunks, whole = losses("float16", factor=factor)

    lost = (whole[2] != 0) & (chunks[2] == 0)
    assert lost.float().mean() < 1e-3


def test_a_frozen_output_layer_gets_no_gradient() -> None:
    """As with adapters: the weight stays out, the hidden states get theirs."""
    chunks, whole = losses("float32", trained=False)

    assert chunks[2] is None
    assert (chunks[1] - whole[1]).abs().max() < 1e-5


def test_no_answer_tokens_give_no_loss_and_no_gradient() -> None:
    """A rank whose samples have run out still takes part in backward."""
    import torch

    from dsforge.train.model.answer_loss import _ChunkedLoss

    rows = torch.zeros(0, HIDDEN, requires_grad=True)
    weight = torch.randn(WORDS, HIDDEN, requires_grad=True)
    loss = _ChunkedLoss.apply(rows, weight, None, torch.zeros(0, dtype=torch.int64), 1.0)
    loss.backward()

    assert float(loss.detach()) == 0.0
    assert weight.grad is not None
    assert not weight.grad.any()


def test_targets_are_the_answers_one_place_ahead() -> None:
    """Row 1 of two of length 4: its tokens 2 and 3 are predicted from places 5 and 6."""
    from dsforge.train.model.answer_loss import targets_of

    labels = np.array([[IGNORED] * 4, [7, IGNORED, 8, 9]])
    places, tokens = targets_of(labels, IGNORED, "cpu")

    assert (places.tolist(), tokens.tolist()) == ([5, 6], [8, 9])


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("LlamaForCausalLM", True),
        ("GPT2LMHeadModel", True),
        ("GPTNeoXForCausalLM", True),
        ("Qwen3ForCausalLM", True),
        ("MistralForCausalLM", True),
        ("Gemma2ForCausalLM", False),
        ("CohereForCausalLM", False),
        ("GraniteForCausalLM", False),
    ],
)
def test_models_that_change_their_logits_keep_whole_ones(name: str, last: bool) -> None:
    """Gemma 2 caps its logits, Cohere and Granite scale them after the output layer."""
    import transformers

    from dsforge.train.model.answer_loss import logits_are_last

    assert logits_are_last(getattr(transformers, name)) is last


def tiny(name: str) -> Any:
    """A tiny model of a class of transformers, with random weights."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, name).config_class(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=0,
        tie_word_embeddings=name == "Gemma2ForCausalLM" or name.startswith("Qwen"),
    )
    return getattr(transformers, name)(config)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Gemma2ForCausalLM"])
def test_a_model_gives_the_loss_of_its_logits(name: str) -> None:
    """Through the whole model, tied or not, every parameter gets the gradient it should."""
    import torch

    from dsforge.train.model.answer_loss import loss_head, targets_of

    model = tiny(name)
    tokens = np.random.default_rng(0).integers(1, WORDS, (2, 24))
    targets = targets_of(tokens, IGNORED, "cpu")
    inputs = torch.from_numpy(tokens)
    logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
    whole = torch.nn.functional.cross_entropy(
        logits.reshape(-1, WORDS), inputs[:, 1:].reshape(-1), reduction="sum"
    )
    whole.backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    head = loss_head(model)
    if name == "Gemma2ForCausalLM":
        assert head is None
        return
    head.targets = targets
    loss = model(input_ids=inputs, use_cache=False).logits
    loss.backward()
    head.targets = None

    assert float(loss.detach()) == pytest.approx(float(whole.detach()), rel=1e-6)
    assert model(input_ids=inputs, use_cache=False).logits.shape == (2, 24, WORDS)
    for parameter, value in model.named_parameters():
        torch.testing.assert_close(value.grad, wanted[parameter], rtol=1e-4, atol=1e-4)


PEAK = """
import torch
from dsforge.train.model.answer_loss import _ChunkedLoss
from dsforge.train.run.meters import host_bytes
rows = torch.randn(4096, 32, requires_grad=True)
weight = torch.randn(49152, 32, requires_grad=True)
tokens = torch.randint(0, 49152, (4096,))
before = host_bytes()
_ChunkedLoss.apply(rows, weight, None, tokens, 1.0).backward()
print(host_bytes() - before)
"""


def test_logits_of_a_long_context_are_never_whole(tmp_path: Path) -> None:
    """4,096 tokens of 49,152 words: whole logits are 768 MiB, and twice that in cross-entropy."""
    script = tmp_path / "peak.py"
    script.write_text(PEAK)
    grown = int(subprocess.check_output([sys.executable, script], text=True))

    assert grown < 450 * 2**20
