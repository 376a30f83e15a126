"""The global batch on other ranks: accumulation changes first, the micro batch only if need be."""

from __future__ import annotations

from typing import Any

import pytest

from dsforge.errors import SpecError
from dsforge.train.parallel.engine_config import batch_of_restart, refitted

TWO_RANKS = {
    "train_batch_size": 12,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
}


def sizes(settings: dict[str, Any]) -> tuple[int, int]:
    """Micro batch and accumulation."""
    micro, steps = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    return settings[micro], settings[steps]


@pytest.mark.parametrize(
    ("replicas", "expected"), [(1, (2, 6)), (2, (2, 3)), (3, (2, 2)), (4, (1, 3)), (12, (1, 1))]
)
def test_the_global_batch_stays(replicas: int, expected: tuple[int, int]) -> None:
    """Each rank gets its share; the micro batch never grows beyond what fitted in memory."""
    found = refitted(TWO_RANKS, 12, replicas)

    assert sizes(found) == expected
    assert found["train_batch_size"] == 12


def test_a_config_that_fits_stays_as_it_is() -> None:
    """Nothing is rewritten on the same ranks."""
    assert refitted(TWO_RANKS, 12, 2) is TWO_RANKS


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    """The message names the ranks that will do."""
    with pytest.raises(SpecError) as raised:
        refitted(TWO_RANKS, 12, 5)

    (problem,) = raised.value.problems
    assert problem.message == "a global batch of 12 cannot be divided among 5 replicas"
    assert problem.hint == "resume on 1, 2, 3, 4, 6 or 12 of them"


def test_a_restart_keeps_the_batch_of_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a run that torchrun has started again may differ from its config."""
    assert batch_of_restart(TWO_RANKS) is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")

    assert batch_of_restart(TWO_RANKS) == 12
