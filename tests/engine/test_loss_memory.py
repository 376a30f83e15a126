"""The memory that is priced at the loss against what torch allocates for it."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest
from sampled import each

from dsforge import catalog
from dsforge.estimate.loss import head_bytes
from dsforge.layout import Layout
from dsforge.specs import LoraSpec, Workload
from dsforge.strategy import EXECUTIONS, Strategy, TrainedLoss

pytestmark = pytest.mark.engine

ROWS = 256  # of a chunk, where CHUNK_BYTES asks for none
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
Case = tuple[str, str, int, int, int]  # precision, method, tokens, vocabulary, hidden size


def priced(loss: TrainedLoss, case: Case) -> float:
    """What the estimate says, bytes."""
    precision, method, tokens, words, width = case
    sizes = {"vocab_size": words, "hidden_size": width, "embedding_size": width}
    work = Workload.model_validate(
        {
            "sequence_length": tokens,
            "global_batch_size": 1,
            "learning_rate": 1e-4,
            "precision": precision,
            "method": method,
            "lora": LoraSpec() if method == "lora" else None,
        }
    )
    execution = EXECUTIONS["deepspeed"].model_copy(update={"loss": loss})
    strategy = Strategy(
        layout=Layout(), micro_batch_size=1, gradient_accumulation_steps=1, execution=execution
    )
    model = catalog.model("llama-2-7b").model_copy(update=sizes)
    return head_bytes(model, work, strategy).at(tokens)


def allocated(loss: TrainedLoss, case: Case) -> int:
    """The most bytes that torch had for the loss and its backward pass, inputs left out."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    precision, method, tokens, words, width = case
    dtype = getattr(torch, PRECISIONS[precision])
    rows = torch.randn(tokens, width).to(dtype).requires_grad_()
    weight = torch.randn(words, width).to(dtype).requires_grad_(method == "full")
    wanted = torch.randint(0, words, (tokens,))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        total, kept = summed(loss, rows, weight, wanted)
        total.backward()
        del kept
    level = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak


def summed(loss: TrainedLoss, rows: Any, weight: Any, wanted: Any) -> tuple[Any, Any]:
    """The loss as the trainer computes it, or of whole logits, which Hugging Face keeps."""
    import torch

    from dsforge.train.model.answer_loss import _ChunkedLoss

    if loss == "chunked":
        own = rows.index_select(0, torch.arange(len(rows)))
        return _ChunkedLoss.apply(own, weight, None, wanted, 1.0), None
    logits = torch.nn.functional.linear(rows, weight)
    return torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="sum"), logits


def cases() -> list[Case]:
    """Random sizes, with the tokens on either side of where one chunk ends."""
    draw, found = random.Random(5), []  # noqa: S311 - a sample, no secret
    for precision in PRECISIONS:
        for method in ("full", "lora"):
            for _ in range(2):
                width = draw.choice((64, 128, 256))
                words = draw.choice((2048, 3072))
                most = ROWS + (width // 2 if method == "full" else 0)
                sizes = (most // 2, most, most + 1, 3 * most)
                found += [(precision, method, tokens, words, width) for tokens in sizes]
    return found


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 256 rows."""
    from dsforge.estimate import loss

    monkeypatch.setattr(loss, "CHUNK_BYTES", 0)


@pytest.mark.parametrize("case", each(3, cases(), str))
def test_both_losses_take_what_is_priced(case: Case) -> None:
    """Within 1 %: indices and sums of rows are left out."""
    for loss in get_args(TrainedLoss):
        assert allocated(loss, case) == pytest.approx(priced(loss, case), rel=0.01)
