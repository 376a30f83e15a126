"""What would make a job fit: changes that really do, cheapest first, each with its cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator
from planning import GIB, ask, cluster, workload

from dsforge.cli.main import app
from dsforge.constraints import check
from dsforge.document import MisfitDocument
from dsforge.plan import Request
from dsforge.planner import appraise, price
from dsforge.planner.remedies import DEAREST, SHOWN, Remedy, remedies
from dsforge.strategy import Strategy

NARROW = cluster(1, 8, "rtx-4090", intra="pcie-4", host_memory_bytes=256 * GIB)
SEVEN = ("--model", "llama-2-7b", "--gpus-per-node", "8", "--gpu", "a100-80gb")
SEVENTY = ("--model", "llama-2-70b", "--gpus-per-node", "8", "--gpu", "rtx-4090")
CASES: dict[str, Request] = {
    "whole states on each card": ask("llama-2-7b", cluster(), workload(), zero_stage=0),
    "large micro batch": ask(
        "llama-2-7b", cluster(), workload(4096), micro_batch_size=8, recompute="none", zero_stage=2
    ),
    "two shortages at once": ask(
        "llama-2-7b", cluster(), workload(4096), micro_batch_size=8, recompute="none", zero_stage=0
    ),
    "no more than host RAM": ask(
        "llama-2-7b",
        cluster(1, 1, "rtx-4090", intra="pcie-4", host_memory_bytes=64 * GIB),
        workload(),
    ),
    "small cards": ask("llama-2-70b", NARROW, workload()),
    "Megatron without splits": ask(
        "llama-2-70b",
        cluster(2),
        workload(4096),
        back_end="megatron",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
    ),
}


def found_for(request: Request) -> tuple[Remedy, ...]:
    """The remedies of the strategy nearest to fitting."""
    return remedies(request, appraise(request).choice)


def typed(*arguments: str) -> Result:
    """What a command line answers."""
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("request_", CASES.values(), ids=CASES)
def test_few_changes_are_named_each_with_a_cost(request_: Request) -> None:
    """Nothing that is shown is without its cost or twice the same, or costs over three times."""
    found = found_for(request_)

    assert 1 <= len(found) <= SHOWN
    assert all(remedy.slowdown <= DEAREST for remedy in found)
    assert len({remedy.changes for remedy in found}) == len(found)
    assert all(remedy.cost for remedy in found)


def test_what_keeps_the_job_and_the_card_is_said_however_slow() -> None:
    """32 B on one card of 24 GiB: states on a disk need RAM for the rest, and nothing else."""
    card = ("--gpu", "rtx-4090", "--gpus-per-node", "1", "--host-memory", "64")
    command = ("plan", "--model", "qwen2.5-32b", *card, "--nvme-path", "/nvme", "--json")
    found = json.loads(typed(*command).stdout)["nearest"]["remedies"]

    ram = next(remedy for remedy in found if "GiB of RAM" in remedy["changes"][0])
    assert ram["slowdown"] > DEAREST


@pytest.mark.parametrize(
    ("model", "card", "ram"),
    [("llama-3.1-8b", "rtx-4090", "64"), ("qwen2.5-14b", "h100-80gb", "96")],
)
def test_the_disk_of_a_remedy_is_the_one_that_its_flag_means(
    model: str, card: str, ram: str
) -> None:
    """Whoever follows the advice gets the plan that was priced, and is told of the disk's rates."""
    asked = ("plan", "--model", model, "--gpu", card, "--gpus-per-node", "1", "--host-memory", ram)
    advised = json.loads(typed(*asked, "--json").stdout)["nearest"]["remedies"]
    remedy = next(r for r in advised if r["changes"][0].startswith("an NVMe disk"))
    followed = typed(*asked, "--nvme-path", "/nvme").output

    label = Strategy.model_validate(remedy["strategy"]).label()
    assert len(remedy["changes"]) == 1
    assert label in " ".join(followed.split())
    assert "on the disk of a node" in followed


@pytest.mark.parametrize("name", ["whole states on each card", "large micro batch"])
def test_a_change_of_the_strategy_is_legal_and_fits(name: str) -> None:
    """Priced again, by hand, the strategy after the change breaks no rule and fits."""
    request = CASES[name]
    changed = [r for r in found_for(request) if "LoRA" not in r.changes]
    inputs = request.model, request.cluster, request.workload

    same_job = [remedy for remedy in changed if "sequence" not in remedy.changes[0]]
    assert same_job
    for remedy in same_job:
        assert check(*inputs, remedy.strategy) == ()
        assert price(*inputs, remedy.strategy).fits


def test_recomputation_states_its_saving_and_its_compute() -> None:
    """`recompute full: saves 164 GiB`: about the same step time.

    It computes a third more, but what is nearest to fitting without it has its optimizer on the
    CPU, which is no longer needed.
    """
    found = found_for(CASES["large micro batch"])
    recompute = next(remedy for remedy in found if remedy.changes == ("recompute full",))

    assert recompute.saved_bytes > 100 * GIB
    assert 0.9 < recompute.slowdown < 1.4
    assert str(recompute).startswith("recompute full: saves 1")
    assert "step time" in str(recompute)


def test_changes_of_the_strategy_come_first_and_the_cheaper_before_the_dearer() -> None:
    """Another job is the last thing to offer; among strategies the faster one wins."""
    found = found_for(CASES["large micro batch"])

    kinds = [remedy.changes[0].split()[0] for remedy in found]
    assert sorted(kinds[:2]) == ["micro", "recompute"]
    assert kinds[2:] == ["Megatron", "sequence"]
    assert found[0].slowdown < found[1].slowdown


def test_two_changes_are_combined_where_no_single_one_suffices() -> None:
    """Weights and activations both too large: a stage and a smaller micro batch together."""
    found = found_for(CASES["two shortages at once"])

    pairs = [remedy.changes for remedy in found if len(remedy.changes) == 2]
    assert len(found) - len(pairs) <= 1  # the ZeRO stage left open
    assert any("ZeRO" in " ".join(pair) for pair in pairs)


def test_host_memory_that_is_missing_is_offered() -> None:
    """The amount of RAM that is named is enough."""
    request = CASES["no more than host RAM"]
    ram = next(r.changes[0] for r in found_for(request) if "of RAM" in r.changes[0])
    gib = int(ram.split()[0].replace(",", "")) + 1  # rounded for people
    roomy = request.cluster.model_copy(update={"host_memory_bytes": gib * GIB})

    assert not appraise(request).choice.fits
    assert appraise(request.model_copy(update={"cluster": roomy})).choice.fits


def test_estimate_shows_the_gap_and_the_changes_in_order() -> None:
    """The verdict has the missing GiB and the dominant term; numbered lines follow."""
    shown = typed("estimate", *SEVEN, "--zero-stage", "0").stdout

    assert "GiB too much: DOES NOT FIT" in " ".join(shown.split())
    assert "largest: optimizer state" in " ".join(shown.split())
    assert "\n  1. ZeRO-1: saves" in shown
    assert "\n  3. " in shown


def test_estimate_has_them_in_json() -> None:
    """Changes, saving, slowdown, cost and the strategy after it; none where it fits."""
    misfit = json.loads(typed("estimate", *SEVEN, "--zero-stage", "0", "--json").stdout)
    fit = json.loads(typed("estimate", *SEVEN, "--zero-stage", "2", "--json").stdout)

    assert set(misfit["remedies"][0]) == {"changes", "saved_bytes", "slowdown", "cost", "strategy"}
    assert fit["remedies"] == []


@pytest.mark.parametrize("command", [("plan",), ("gen", "--out", "run")], ids=["plan", "gen"])
def test_plan_and_gen_say_them_too(
    command: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message carries them; `--json` prints the nearest strategy with them; exit code 1."""
    monkeypatch.chdir(tmp_path)
    answer = typed(*command, *SEVENTY, "--json")
    document = json.loads(answer.stdout)

    Draft202012Validator(MisfitDocument.model_json_schema(mode="serialization")).validate(document)
    assert answer.exit_code != 0
    assert "QLoRA: saves" in getattr(answer.exception, "hint", "")
    assert document["nearest"]["remedies"][0]["changes"][0].startswith("1,847 GiB of RAM")
    assert not list(tmp_path.iterdir())


def test_the_nearest_of_a_plan_is_a_run_of_dsforge() -> None:
    """With a ZeRO stage an estimate is anybody's; a plan is what dsforge writes."""
    document = json.loads(typed("plan", *SEVENTY, "--zero-stage", "3", "--json").stdout)
    said = [reason["rule"] for reason in document["nearest"]["reasons"]]

    assert document["nearest"]["strategy"]["execution"] is None
    assert "estimate-others" not in said


def test_qlora_is_named_where_lora_is_not_enough() -> None:
    """13 B on one card of 24 GB that may not offload: ZeRO stage 3 takes packed matrices too."""
    small = cluster(1, 1, "rtx-4090", intra="pcie-4", host_memory_bytes=64 * GIB)
    kept = {"zero_stage": 3, "offload_optimizer": "none", "offload_parameters": "none"}
    request = ask("llama-2-13b", small, workload(1024), **kept)
    (remedy,) = (r for r in found_for(request) if r.changes == ("QLoRA",))

    assert remedy.strategy.zero_stage == 3
    assert "frozen matrices in 4 bits" in remedy.cost
