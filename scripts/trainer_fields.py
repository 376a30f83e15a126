"""Writes tests/targets/trainer_fields.json: names of settings that trainers have, by source.

Tests compare the files that dsforge writes with these names where a trainer is not installed. A
folder of installed packages is read and nothing in it is imported; trainers without a package are
read in a checkout, and only the names that dsforge writes are kept.

Use: python scripts/trainer_fields.py SITE_PACKAGES [NAME=CHECKOUT ...]; names are gpt-neox and
megatron-deepspeed.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "tests" / "targets" / "trainer_fields.json"
ARGUMENTS = "transformers/training_args.py"
# Files whose classes have the settings as fields.
FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "transformers": ("transformers", (ARGUMENTS,)),
    "trl": (
        "trl",
        (
            ARGUMENTS,
            "trl/trainer/base_config.py",
            "trl/trainer/sft_config.py",
            "trl/trainer/model_config.py",
            "trl/scripts/utils.py",
        ),
    ),
    "axolotl": ("axolotl", ("axolotl/utils/schemas/*.py",)),
    "llama-factory": ("llamafactory", (ARGUMENTS, "llamafactory/hparams/*.py")),
    "ms-swift": (
        "ms_swift",
        (
            ARGUMENTS,
            "swift/trainers/arguments.py",
            "swift/arguments/*.py",
            "swift/arguments/base_args/*.py",
            "swift/megatron/arguments/*.py",
        ),
    ),
    "torchtitan": ("torchtitan", ("torchtitan/config/configs.py", "torchtitan/trainer.py")),
    "accelerate-fsdp": (
        "accelerate",
        ("accelerate/commands/config/config_args.py", "accelerate/parallelism_config.py"),
    ),
}
# Functions and classes that scripts call, by the file that defines them.
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lightning": (
        "lightning",
        (
            "lightning/pytorch/trainer/trainer.py",
            "lightning/pytorch/strategies/deepspeed.py",
            "lightning/pytorch/strategies/fsdp.py",
            "lightning/pytorch/strategies/model_parallel.py",
        ),
    ),
    "colossalai": ("colossalai", ("colossalai/booster/plugin/*_plugin.py",)),
    "megatron-bridge": (
        "megatron_bridge",
        (
            "megatron/core/datasets/blended_megatron_dataset_config.py",
            "megatron/core/datasets/gpt_dataset.py",
            "megatron/core/distributed/distributed_data_parallel_config.py",
            "megatron/bridge/training/tokenizers/config.py",
            "megatron/bridge/training/config.py",
            "megatron/bridge/peft/lora.py",
            "megatron/bridge/recipes/utils/optimizer_utils.py",
        ),
    ),
    "torchtune": (
        "torchtune",
        ("torchtune/models/*/_model_builders.py", "torchtune/datasets/_*.py"),
    ),
}
FILES = {"gpt-neox": "megatron/neox_arguments/*.py", "megatron-deepspeed": "megatron/arguments.py"}


def parsed(root: Path, patterns: tuple[str, ...]) -> Iterator[ast.Module]:
    """The trees of all files of some patterns."""
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            yield ast.parse(path.read_text(encoding="utf-8"))


def fields(trees: Iterator[ast.Module]) -> list[str]:
    """Names that classes annotate."""
    return sorted(
        {
            node.target.id
            for tree in trees
            for owner in ast.walk(tree)
            if isinstance(owner, ast.ClassDef)
            for node in owner.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
    )


def calls(trees: Iterator[ast.Module]) -> dict[str, list[str]]:
    """Parameters of functions and classes by name."""
    found: dict[str, list[str]] = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = parameters(node)
            elif isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).removeprefix("MCore") for base in node.bases]
                above = {name for base in bases for name in found.get(base, ())}
                found[node.name] = sorted({*_made_of(node), *above})
    return {name: names for name, names in sorted(found.items()) if names}


def _made_of(node: ast.ClassDef) -> Iterator[str]:
    """Fields of a dataclass and parameters of `__init__`."""
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner.target.id
        elif isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            yield from parameters(inner)


def parameters(node: ast.FunctionDef) -> list[str]:
    """Names of the parameters of a function; `*`: it takes any."""
    every = [*node.args.args, *node.args.kwonlyargs]
    names = [each.arg for each in every if each.arg != "self"]
    return [*names, "*"] if node.args.kwarg else names


def version(root: Path, package: str) -> str:
    """The version of an installed package."""
    (folder,) = root.glob(f"{package}-*.dist-info")
    return folder.name.removesuffix(".dist-info").partition("-")[2]


def written_names(name: str) -> set[str]:
    """Names that dsforge writes for a trainer, in the cases of the tests."""
    sys.path[:0] = [str(OUT.parent)]
    from tempfile import TemporaryDirectory

    from target_cases import cases_of, written
    from test_trainer_fields import names_in

    found: set[str] = set()
    for case in cases_of(name):
        with TemporaryDirectory() as folder:
            found |= names_in(written(case, Path(folder)))
    return found


def main() -> int:
    """Write the file."""
    root, *checkouts = sys.argv[1:]
    site = Path(root)
    known: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for name, (package, patterns) in FIELDS.items():
        source = f"{package} {version(site, package)}: {', '.join(patterns)}"
        known[name] = {"source": source, "fields": fields(parsed(site, patterns))}
    for name, (package, patterns) in CALLS.items():
        source = f"{package} {version(site, package)}: {', '.join(patterns)}"
        known[name] = {"source": source, "calls": calls(parsed(site, patterns))}
    for checkout in checkouts:
        name, _, folder = checkout.partition("=")
        texts = [path.read_text(encoding="utf-8") for path in Path(folder).glob(FILES[name])]
        words = set(re.findall(r"[\w-]+", "\n".join(texts)))
        names = sorted(key for key in written_names(name) if key in words or f"--{key}" in words)
        known[name] = {"source": f"{name}: {FILES[name]}", "fields": names}
    OUT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
