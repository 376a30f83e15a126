"""Dropout of tensor ranks: other elements inside attention, the same ones outside."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.engine


class Layer:
    """A layer with dropout inside its attention and after it, as one tensor rank computes it."""

    def __init__(self, rank: int | None, rate: float = 0.5) -> None:
        import torch

        from dsforge.train.parallel.tensor_dropout import vary_attention_dropout

        class Attention(torch.nn.Module):
            attention_dropout = rate

            def forward(self, hidden: Any) -> Any:
                return torch.nn.functional.dropout(hidden, self.attention_dropout)

        self.attention, self.after = Attention(), torch.nn.Dropout(0.5)
        self.inside: list[Any] = []
        if rank is not None:
            vary_attention_dropout(torch.nn.Sequential(self.attention), rank)

    def __call__(self, hidden: Any) -> Any:
        """Keeps what attention gave, and gives what the second dropout leaves."""
        self.inside.append(self.attention(hidden))
        return self.after(hidden)


def test_only_attention_differs_between_tensor_ranks() -> None:
    """Two layers in a row: what is replicated stays the same on all ranks."""
    import torch

    hidden, made = torch.ones(64), []
    for rank in (0, 1):
        layer = Layer(rank)
        torch.manual_seed(3)
        made.append((layer.inside, [layer(hidden), layer(hidden)], torch.rand(4)))
    (inside, outside, after), (other_inside, other_outside, other_after) = made

    assert all(torch.equal(a, b) for a, b in zip(outside, other_outside, strict=True))
    assert torch.equal(after, other_after)
    assert not any(torch.equal(a, b) for a, b in zip(inside, other_inside, strict=True))
    assert not torch.equal(inside[0], inside[1])


def test_a_layer_that_is_computed_again_drops_the_same() -> None:
    """Activation checkpointing restores the common state, and the layer draws from it again."""
    import torch
    from torch.utils.checkpoint import checkpoint

    layer, hidden = Layer(1), torch.ones(64, requires_grad=True)
    torch.manual_seed(3)
    output = checkpoint(lambda x: layer(x) + layer.inside[-1], hidden, use_reentrant=False)
    output.sum().backward()

    first, again = layer.inside
    assert torch.equal(first, again)


def test_attention_without_dropout_draws_nothing() -> None:
    """The random numbers of a run are those of earlier releases."""
    import torch

    drawn = []
    for rank in (None, 1):
        layer = Layer(rank, rate=0.0)
        torch.manual_seed(3)
        layer(torch.ones(8))
        drawn.append(torch.rand(4))

    assert torch.equal(*drawn)
