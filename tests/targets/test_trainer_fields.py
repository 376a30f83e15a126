"""Settings that dsforge writes for trainers are settings that those trainers have.

Names are those of `trainer_fields.json`, which `scripts/trainer_fields.py` reads in their source:
trainers themselves are too large to install here. `test_real_parsers.py` asks them where they are.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from target_cases import CASES, TargetCase, cases_of, written

KNOWN = json.loads(Path(__file__).with_name("trainer_fields.json").read_text(encoding="utf-8"))
SETTINGS = ("transformers", "trl", "axolotl", "llama-factory", "ms-swift", "gpt-neox")
FILES = {
    "transformers": "training_arguments.json",
    "llama-factory": "train.yaml",
    "trl": "sft.yaml",
    "axolotl": "axolotl.yaml",
    "gpt-neox": "neox.yml",
    "megatron-deepspeed": "args.txt",
}
# Beside TrainingArguments: what train.py of ours reads; quantisation of ms-swift's model arguments.
OURS = {"transformers": "model random_weights data sequence_length attention base double_quant"}
SCRIPTS = ("lightning", "colossalai", "megatron-bridge")
TITAN = ("training", "parallelism", "compile", "debug")


def names_in(folder: Path) -> set[str]:
    """Names of the settings in the files of a trainer."""
    path = folder / FILES.get(folder.name, "")
    if folder.name == "ms-swift":
        path = next(folder.glob("*.yaml"))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        return {line.split()[0].removeprefix("--") for line in text.splitlines() if line}
    return set(yaml.safe_load(text))


def ids(case: TargetCase) -> str:
    """The name of a case."""
    return case.id


@pytest.mark.parametrize("case", cases_of(*SETTINGS, "megatron-deepspeed"), ids=ids)
def test_every_setting_is_one_of_the_trainer(case: TargetCase, tmp_path: Path) -> None:
    """No key is misspelt, or of another version."""
    own = set(OURS.get(case.program, "").split())

    found = {name for name in names_in(written(case, tmp_path)) if not name.startswith("lora_")}

    assert found - own - set(KNOWN[case.program]["fields"]) == set()
    assert len(found) > len(own)


@pytest.mark.parametrize("case", cases_of(*SCRIPTS), ids=ids)
def test_every_argument_of_a_call_is_one_of_the_trainer(case: TargetCase, tmp_path: Path) -> None:
    """Calls of the scripts name parameters that the called classes have."""
    known = KNOWN[case.program]["calls"]
    tree = ast.parse((written(case, tmp_path) / "train.py").read_text(encoding="utf-8"))
    seen = 0

    for node in ast.walk(tree):
        name = _called(node)
        if isinstance(node, ast.Call) and name in known and node.keywords:
            seen += 1
            if "*" in known[name]:
                continue
            assert {keyword.arg for keyword in node.keywords} - set(known[name]) == set(), name
    assert seen > 0 or "TorchDDPPlugin" in ast.unparse(tree)


def _called(node: ast.AST) -> str:
    """The last part of the name of a call."""
    function = getattr(node, "func", None)
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


@pytest.mark.parametrize("case", cases_of("torchtitan"), ids=ids)
def test_every_field_of_torchtitan_exists(case: TargetCase, tmp_path: Path) -> None:
    """Assignments to `config.SECTION.FIELD` are to fields that its dataclasses have."""
    tree = ast.parse((written(case, tmp_path) / "planned.py").read_text(encoding="utf-8"))
    names = {
        node.targets[0].attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and isinstance(node.targets[0].value, ast.Attribute)
        and node.targets[0].value.attr in TITAN
    }

    assert len(names) > len(TITAN)
    assert names <= set(KNOWN["torchtitan"]["fields"])


@pytest.mark.parametrize("case", cases_of("torchtune"), ids=ids)
def test_every_component_of_torchtune_takes_its_arguments(case: TargetCase, tmp_path: Path) -> None:
    """Builders and datasets exist, and have the parameters that the recipe gives them."""
    recipe = yaml.safe_load((written(case, tmp_path) / "recipe.yaml").read_text(encoding="utf-8"))
    known: dict[str, Any] = KNOWN["torchtune"]["calls"]
    model, data = dict(recipe["model"]), dict(recipe["dataset"])
    builder = model.pop("_component_").rpartition(".")[2]
    base = builder.removeprefix("q") if builder.startswith("qlora_") else builder
    dataset = data.pop("_component_").rpartition(".")[2]

    assert set(model) <= set(known.get(base, ()))
    own = {"source", "column", "packed", "split"}
    assert own & set(data) <= set(known[dataset])
    assert isinstance(recipe["optimizer"]["lr"], float)


def test_every_trainer_is_compared() -> None:
    """Each program of the cases has names to compare, or is one of accelerate's."""
    assert {case.program for case in CASES} - set(KNOWN) == {"accelerate-fsdp1"}
