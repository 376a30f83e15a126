"""What bitsandbytes' AdamW cannot be combined with is refused before any rank starts."""

from __future__ import annotations

from typing import Any

import pytest

from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.low_bit_optimizer import optimizer_problems

ALLOWED: dict[str, Any] = {"zero_allow_untested_optimizer": True}


@pytest.mark.parametrize(
    ("settings", "stage", "optimizer", "rule", "text"),
    [
        (ALLOWED, 2, "sgd", "low-bit-optimizer", "requires AdamW (got sgd)"),
        ({}, 2, "adamw", "low-bit-untested", "requires `zero_allow_untested_optimizer` true"),
        (
            {**ALLOWED, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            2,
            "adamw",
            "low-bit-optimizer",
            "cannot be combined with offload_optimizer",
        ),
    ],
    ids=["another optimizer", "untested", "offloaded"],
)
def test_contradictions_are_refused(
    settings: dict[str, Any], stage: Any, optimizer: str, rule: str, text: str
) -> None:
    """Each with its rule and the way out."""
    config = EngineConfig(settings, stage, "bf16", 1, 1, 1e-3, optimizer=optimizer)
    (problem,) = optimizer_problems("paged_8bit", config)

    assert (problem.rule, bool(problem.hint)) == (rule, True)
    assert text in problem.message


def test_a_job_without_it_is_not_asked() -> None:
    """No library is looked for."""
    assert optimizer_problems(None, EngineConfig({}, 2, "bf16", 1, 1, 1e-3)) == []
