"""Ulysses: what DeepSpeed's sequence parallelism sends and keeps (Jacobs et al. 2023).

Each rank holds a stretch of every sample. Around attention an all-to-all gives it all tokens of
some of the heads, and another one takes the output back. Read in `ulysses_sp.py` of DeepSpeed 0.19;
saved tensors are counted in torch, tests/engine/test_sequence_kinds.py. What ALST has beyond that
(Bekman et al. 2025), tiled MLPs and checkpoints in RAM, are words of their own.
"""

from __future__ import annotations

from dsforge.specs import ModelSpec
from dsforge.strategy import Strategy
from dsforge.traced import maximum

EXCHANGES = 4  # of each pass: queries, keys, values; the output


def saved_width(model: ModelSpec, strategy: Strategy) -> int:
    """Elements per token that a layer saves more than without Ulysses.

    The output before and after its exchange; keys and values of fewer heads than ranks, repeated.
    """
    ranks = strategy.layout.context_parallel_size
    if ranks == 1 or strategy.engine.context_exchange != "all_to_all":
        return 0
    repeated = maximum(model.kv_heads, ranks) - model.kv_heads
    return (model.attention_heads + 2 * repeated) * model.head_size


def exchanged_width(model: ModelSpec, ranks: int) -> int:
    """Elements of one token in the exchanges of a pass."""
    return 2 * (model.attention_heads + maximum(model.kv_heads, ranks)) * model.head_size


def passes(strategy: Strategy) -> int:
    """Times that a layer's attention is exchanged in a micro step."""
    return 3 if strategy.recompute == "full" else 2


def messages(strategy: Strategy) -> int:
    """Collectives of a layer in a micro step; each forward pass gathers positions as well."""
    return passes(strategy) * EXCHANGES + passes(strategy) - 1
