"""Failures of the corpus as parameters of tests."""

from __future__ import annotations

from typing import Any

import pytest
from scoring import Answer


def each_fifth(answers: list[Answer]) -> list[Any]:
    """All answers, each with its source as name; four of five are tried by the slow tests only."""
    return [
        pytest.param(
            answer, marks=[pytest.mark.slow] if place % 5 else [], id=answer.failure.source
        )
        for place, answer in enumerate(answers)
    ]
