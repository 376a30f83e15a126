"""`dsforge plan` and `dsforge estimate` from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from dsforge.cli.main import app
from dsforge.errors import LayoutError

SEVEN = ("--model", "llama-2-7b", "--gpus-per-node", "8", "--gpu", "a100-80gb")


def run(*arguments: str) -> str:
    """Standard output of a command that succeeds."""
    found = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


def answer(*arguments: str) -> Any:
    """The JSON document of a command."""
    return json.loads(run(*arguments, "--json"))


def test_plan_shows_the_choice_first_and_why() -> None:
    """The figures start with the chosen strategy; `--verbose` has rules and the search."""
    shown, every = run("plan", *SEVEN), run("plan", *SEVEN, "--verbose")

    assert shown.startswith("llama-2-7b (6.74 B) on 1 x 8 a100-80gb")
    assert "ZeRO-" in shown.splitlines()[1]
    assert "  because  " in shown
    assert "[fits]" in every
    assert "candidates in" in every


def test_plan_keeps_the_top_in_json() -> None:
    """`--top 2` prints two plans, the best first."""
    document = answer("plan", *SEVEN, "--top", "2")

    assert len(document["plans"]) == 2
    assert document["plans"][0]["fits"]


def test_estimate_prices_what_is_given() -> None:
    """Fixed stage, micro batch and recomputation are in the answer."""
    strategy = answer(
        "estimate", *SEVEN, "--zero-stage", "3", "--micro-batch", "2", "--recompute", "full"
    )["strategy"]

    assert (strategy["zero_stage"], strategy["micro_batch_size"]) == (3, 2)
    assert strategy["recompute"] == "full"


def test_estimate_answers_when_it_does_not_fit() -> None:
    """Exit code 0, `fits` false, and the margin says how much is missing."""
    document = answer(
        "estimate",
        "--model",
        "llama-2-70b",
        "--gpu",
        "rtx-4090",
        "--gpus-per-node",
        "1",
        "--zero-stage",
        "0",
        "--seq-len",
        "2048",
    )

    assert not document["fits"]
    assert document["margin_bytes"] < 0


def test_estimate_shows_terms_and_a_verdict() -> None:
    """Whether it fits, and memory and time by term; `--verbose` has the phases, too."""
    shown = run("estimate", *SEVEN, "--zero-stage", "2")
    every = run("estimate", *SEVEN, "--zero-stage", "2", "--verbose")

    assert all(
        term in shown for term in ("memory is", "activations", "time is", "compute", " left")
    )
    assert all(term in every for term in ("optimizer state", "host RAM, step", "bubble"))


def test_a_stage_with_the_wrong_pipeline_is_refused_by_rule() -> None:
    """ZeRO-2 with two pipeline stages is DeepSpeed's own refusal, said before any launch."""
    with pytest.raises(LayoutError) as caught:
        run("plan", *SEVEN, "--zero-stage", "2", "--pp", "2")

    assert [problem.rule for problem in caught.value.problems] == ["zero-pipeline"]
