"""Parameter counts: exact for every catalog row, additive, and right for adapters."""

from __future__ import annotations

import pytest

from dsforge import catalog
from dsforge.estimate.params import lora_parameters, parameter_counts, parameters
from dsforge.specs import LoraSpec


def test_counts_equal_the_exact_ones() -> None:
    """Total, non-embedding and active parameters of all rows are right to the last one."""
    wrong = {}
    for row in catalog.rows("model"):
        counts = parameter_counts(catalog.model(row["name"]))
        expected = (
            row["params_exact"],
            row["params_non_embedding"],
            row.get("params_active", row["params_exact"]),
        )
        if (counts.total, counts.non_embedding, counts.active) != expected:
            wrong[row["name"]] = (counts, expected)

    assert wrong == {}


@pytest.mark.parametrize("name", ["llama-2-7b", "mixtral-8x7b", "deepseek-v3", "opt-350m"])
def test_components_add_up(name: str) -> None:
    """Per-layer figures times their layers, plus embeddings, norms and head, are the total."""
    model = catalog.model(name)
    counts = parameter_counts(model)
    sparse = model.moe_layers * (counts.moe_layer_shared + counts.moe_layer_experts)
    dense = (model.layers - model.moe_layers) * counts.dense_layer
    outside = counts.embedding + counts.position_embedding + counts.head + counts.final_norm

    assert dense + sparse + outside + counts.other + counts.head_bias == parameters(model)


def test_a_tied_head_is_counted_once() -> None:
    """Untying GPT-2's head adds one vocabulary matrix."""
    tied = catalog.model("gpt2")
    untied = tied.model_copy(update={"tied_embeddings": False})

    assert parameters(untied) - parameters(tied) == 50257 * 768


@pytest.mark.parametrize(
    ("name", "rank", "expected"),
    [
        # q, k, v, o: 4 x 8192; gate, up, down: 3 x (4096 + 11008); 32 layers
        ("llama-2-7b", 16, 16 * 32 * (4 * 8192 + 3 * 15104)),
        # k and v are 8 heads of 128 wide: 2 x (4096 + 1024)
        ("llama-3-8b", 8, 8 * 32 * (2 * 8192 + 2 * 5120 + 3 * (4096 + 14336))),
        # routed experts carry no adapters: attention only
        ("mixtral-8x7b", 8, 8 * 32 * (2 * 8192 + 2 * 5120)),
    ],
    ids=["llama-2-7b", "llama-3-8b", "mixtral"],
)
def test_adapters(name: str, rank: int, expected: int) -> None:
    """Rank x (inputs + outputs) of every adapted matrix; 40.0 M for Llama-2-7B at rank 16."""
    assert lora_parameters(catalog.model(name), LoraSpec(rank=rank)) == expected


def test_adapters_grow_with_the_rank() -> None:
    """Twice the rank is twice the parameters."""
    model = catalog.model("deepseek-v2-lite")

    assert lora_parameters(model, LoraSpec(rank=32)) == 2 * lora_parameters(
        model, LoraSpec(rank=16)
    )
