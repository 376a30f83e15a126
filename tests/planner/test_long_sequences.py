"""Answers that whole logits made wrong: of the review of planning, November 2026, finding A9."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from planning import GIB, ask, cluster, qlora_workload, workload

from dsforge import catalog
from dsforge.cli.main import app
from dsforge.constraints import check
from dsforge.planner import appraise, choose
from dsforge.planner.inverse import longest_sequence

FORTY = cluster(1, 1, "rtx-4090", intra="pcie-4", host_memory_bytes=64 * GIB)
H100 = cluster(1, 8, "h100-80gb", intra="nvlink-4")
SHARED = ("--model", "llama-3.1-8b", "--gpu", "h100-80gb", "--gpus-per-node", "8", "--nodes", "1")


def answered(*command: str) -> Any:
    """The JSON that a command prints."""
    answer = CliRunner().invoke(app, [*command, "--json"])
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_qlora_of_an_8b_on_8192_tokens_fits_a_4090_with_room() -> None:
    """It was 23.1 of 23.6 GiB, with offload."""
    choice = appraise(ask("llama-3.1-8b", FORTY, qlora_workload(8192))).choice

    assert choice.fits
    assert not choice.strategy.offloads
    assert choice.memory.device_bytes.high < FORTY.gpu.memory_bytes


def test_a_32b_on_eight_h100_needs_no_offload() -> None:
    """Logits of 8.1 GiB were too much for ZeRO-3, so the optimizer went to the CPU."""
    request = ask("qwen2.5-32b", H100, workload(4096), zero_stage=3)

    assert not choose(request.model_copy(update={"risk": True})).strategy.offloads
    assert appraise(ask("qwen2.5-32b", H100, workload(4096))).choice.fits


def test_the_longest_sequence_of_an_8b_on_eight_h100_is_the_models_own() -> None:
    """It was 28,160 tokens."""
    found = longest_sequence(ask("llama-3.1-8b", H100, workload(4096)))

    assert found.answer.value == 131_072
    assert found.plan.strategy.layout.context_parallel_size > 1


def test_context_parallel_ranks_of_deepspeed_are_planned_and_written(tmp_path: Path) -> None:
    """`--cp 8 --for deepspeed` was refused; the files say what was priced."""
    options = (*SHARED, "--seq-len", "65536", "--global-batch", "8")
    asked = ("--cp", "8", "--for", "deepspeed", "--out", str(tmp_path))
    plan = answered("gen", *options, *asked)["plan"]
    config = json.loads((tmp_path / "deepspeed/ds_config.json").read_text(encoding="utf-8"))

    assert plan["choice"]["strategy"]["layout"]["context_parallel_size"] == 8
    assert config["sequence_parallel_size"] == 8
    assert 'loss: "chunked"' in (tmp_path / "train.yaml").read_text(encoding="utf-8")
    assert answered("estimate", *options, "--ds-config", str(tmp_path / "deepspeed/ds_config.json"))


@pytest.mark.parametrize(("loss", "word"), [("plain", '"plain"'), ("chunked", '"chunked"')])
def test_the_run_has_the_loss_that_was_priced(loss: str, word: str, tmp_path: Path) -> None:
    """`--loss` reaches train.yaml."""
    answered("gen", *SHARED, "--for", "deepspeed", "--loss", loss, "--out", str(tmp_path))

    assert f"loss: {word}" in (tmp_path / "train.yaml").read_text(encoding="utf-8")


def test_a_config_of_ones_own_is_priced_with_whole_logits(tmp_path: Path) -> None:
    """Whoever trains under it; `--loss chunked` says otherwise."""
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**config, "bf16": {"enabled": True}}), encoding="utf-8")
    command = ("estimate", *SHARED, "--seq-len", "8192", "--ds-config", str(path))
    plain, chunked = answered(*command), answered(*command, "--loss", "chunked")

    assert (plain["loss"], chunked["loss"]) == ("plain", "chunked")
    assert plain["memory"]["terms"]["logits"] > 40 * GIB
    assert (
        chunked["memory"]["allocated_bytes"]["likely"]
        < 0.6 * (plain["memory"]["allocated_bytes"]["likely"])
    )


def test_ulysses_is_looked_for_where_sequences_are_long() -> None:
    """Not for short ones, and never where the heads forbid it."""
    only = {"back_end": "deepspeed"}
    long = choose(ask("llama-3.1-8b", H100, workload(131_072, 8), **only)).strategy
    short = choose(ask("llama-3.1-8b", H100, workload(2048), **only)).strategy

    assert long.layout.context_parallel_size > 1
    assert short.layout.context_parallel_size == 1
    for name in ("gemma-2-9b", "pythia-1b", "phi-3-mini-4k"):
        rules = {problem.rule for problem in check(catalog.model(name), H100, workload(2048), long)}
        assert rules & {"sequence-model", "sequence-window"}


@pytest.mark.parametrize(("tokens", "batch"), [(131072, 8), (65536, 64), (65536, 4)])
def test_shared_sequences_say_why(tokens: int, batch: int) -> None:
    """How many GPUs share one, and what whole ones would cost, with figures of their rows."""
    on = cluster(1, gpu="h100-80gb", intra="nvlink-4")
    request = ask("llama-3.1-8b", on, workload(tokens, batch), back_end="deepspeed")
    plan = choose(request)
    ranks = plan.strategy.layout.context_parallel_size
    said = {reason.rule: reason.message for reason in plan.choice.reasons}

    assert ("shared-sequences" in said) == (ranks > 1)
    if ranks > 1:
        head = f"{ranks} GPUs share each sequence (Ulysses), {tokens // ranks:,} tokens per GPU; "
        assert said["shared-sequences"].startswith(head)
        assert "without it" in said["shared-sequences"]
        assert "batch-product" not in said  # ZeRO does train the whole model


@pytest.mark.parametrize("tokens", [8192, 24_576, 49_152, 98_304])
@pytest.mark.parametrize("trainer", ["deepspeed", "fsdp"])
def test_scripts_of_others_share_no_sequence_unasked(tokens: int, trainer: str) -> None:
    """Who runs Ulysses says so: a run that does not fit without it does not fit."""
    on = cluster(1, 2, "rtx-4090", intra="pcie-4")
    said = {"software": "others", "trainer": trainer, "zero_stage": 3, "micro_batch_size": 1}
    work = qlora_workload(tokens, 2)
    found = appraise(ask("mistral-7b-v0.3", on, work, **said)).choice
    whole = appraise(ask("mistral-7b-v0.3", on, work, context_parallel_size=1, **said)).choice

    assert found.strategy == whole.strategy
    assert found.fits == whole.fits
