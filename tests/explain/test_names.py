"""Every name of a number that a command prints is known to `explain`, in text and in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dsforge
from dsforge.cli.explain import explanation_lines
from dsforge.cli.main import app

JOBS = {
    "two nodes with a budget": (
        "--model llama-3.1-8b --gpu h100 --gpus-per-node 8 --nodes 2 --tokens 2b --gpu-hour-price 2"
    ),
    "QLoRA on one card": "--model llama-2-7b --gpu rtx-4090 --method qlora",
    "experts": "--model mixtral-8x7b --gpu h100 --gpus-per-node 8 --nodes 4 --inter-node ib-ndr",
    "NVMe": (
        "--model llama-2-13b --gpu a100-40gb --gpus-per-node 8 --zero-stage 3 "
        "--offload-optimizer nvme --nvme-path /nvme --software dsforge"
    ),
    "CPU ranks": "--model gpt2 --gpu cpu --gpus-per-node 2",
}
# What labels text instead of a number.
TEXTS = {"strategy", "because", "assumed", "alternatives", "the choice, then the fastest"}
TEXTS |= {"also written"}
HEADS = {"Cluster", "File", "Model", "Term", "Variable", "Workload"}  # of tables in PLAN.md
PLAN_NAME = re.compile(r"(ZeRO-\d|Megatron|FSDP)\b|\w+/\S+\.(json|txt)$")  # or a file


def printed(*words: str) -> str:
    """The stdout of a command, which must succeed."""
    done = CliRunner(env={"COLUMNS": "100"}).invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def labels(text: str) -> set[str]:
    """The words before the values of an answer; names of plans in tables are none."""
    found = {m[1] for m in re.finditer(r"^  (\S(?:.*?\S)?)  +\S", text, re.MULTILINE)}
    return {label for label in found if not PLAN_NAME.match(label)} - TEXTS


def cells(markdown: str) -> set[str]:
    """The first cells of the tables of PLAN.md; files and variables stand in backticks."""
    found = {m[1] for m in re.finditer(r"^\| ([^|]+?) \|", markdown, re.MULTILINE)}
    return {cell for cell in found if "`" not in cell and not PLAN_NAME.match(cell)} - HEADS


def numbers(value: Any, path: str = "") -> Iterator[str]:
    """The dotted names of all numbers of a document; an interval is one."""
    if isinstance(value, dict):
        if set(value) == {"low", "likely", "high"}:
            yield path
            return
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


@pytest.mark.parametrize("name", JOBS)
def test_every_printed_name_is_explained(name: str, tmp_path: Path) -> None:
    """Of plan, estimate and gen, in their plain and long forms, in PLAN.md and in JSON."""
    words, run = JOBS[name].split(), str(tmp_path / "run")
    texts = [printed("plan", *words), printed("estimate", *words, "--verbose")]
    texts.append(printed("gen", *words, "--out", run))
    names = set().union(*map(labels, texts))
    names |= cells((tmp_path / "run/PLAN.md").read_text(encoding="utf-8"))
    names |= set(numbers(json.loads((tmp_path / "run/plan.json").read_text())["choice"]))
    estimated = json.loads(printed("estimate", *words, "--json"))
    names |= {each for each in numbers(estimated) if not each.startswith("schema_version")}
    plan = dsforge.load_plan(run)
    unknown = []
    for each in sorted(names):
        try:
            figures = dsforge.explain(plan, each).figures
        except dsforge.DsforgeError:
            unknown.append(each)
            continue
        assert figures[-1].source, each

    assert len(names) > 100
    assert unknown == [], unknown


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cluster.gpus_per_node", 8, "cluster.gpus_per_node"),
        ("gpus_per_node", 8, "cluster.gpus_per_node"),
        ("workload.sequence_length", 4096, "Tokens per sample"),
        ("peak_flops.bf16", 989e12, "cluster.gpu.peak_flops"),
        ("layers", 32, "model.layers"),
        ("margin_bytes", None, "tightest place"),
    ],
)
def test_an_input_is_explained_by_its_description(
    name: str, value: float | None, words: str
) -> None:
    """A number that no formula gives: where it stands, and what it is."""
    plan = dsforge.plan("llama-3.1-8b", {"gpu": "h100-80gb", "gpus_per_node": 8}).best
    (figure,) = dsforge.explain(plan, name).figures

    assert value is None or figure.value == pytest.approx(value, rel=1e-2)
    assert words in figure.source
    assert figure.formula == ""


@pytest.mark.parametrize("name", ["nosuch", "", ".", "model.nosuch", "schema_version.x", "[]"])
def test_a_name_of_nothing_is_refused(name: str) -> None:
    """Also where a part of it is the name of something."""
    plan = dsforge.estimate("gpt2", "v100-32gb").plan
    with pytest.raises(dsforge.DsforgeError, match="has no figure"):
        dsforge.explain(plan, name)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("kernels", "strategy.execution.kernels", "eager"),
        ("preference", "workload.preference", "none"),
        ("tied_embeddings", "model.tied_embeddings", "true"),
        ("strategy.recompute", "strategy.recompute", "none"),
        ("layer_mixers", "model.layer_mixers", "empty"),
    ],
)
def test_a_setting_that_is_no_number_is_said_with_its_meaning(
    name: str, place: str, value: str
) -> None:
    """By its value and description, and printed as an answer: not as a name of nothing."""
    plan = dsforge.estimate("gpt2", "v100-32gb").plan
    found = dsforge.explain(plan, name)
    (setting,) = found.settings

    assert (found.figures, setting.value) == ((), value)
    assert setting.name.endswith(place)
    assert setting.meaning
    assert f"{setting.name} = {value}" in "\n".join(explanation_lines(found))
