"""Write dsforge/lint/schemas/accelerate.json: keys and words of accelerate's configuration file.

    python scripts/accelerate_schema.py SITE_PACKAGES

The sources of the installed accelerate are read and nothing in them is imported.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "dsforge/lint/schemas/accelerate.json"
CONFIG, LAUNCH = "commands/config/config_args.py", "commands/launch.py"
ENUMS = (
    *("ComputeEnvironment", "DistributedType", "SageMakerDistributedType"),
    *("DynamoBackend", "PrecisionType"),
)
CONSTANTS = re.compile(
    r"FSDP_(?:SHARDING|AUTO_WRAP|BACKWARD|STATE)\w+|DEEPSPEED_MULTINODE_LAUNCHERS"
)
READ = re.compile(r"""args(?:\.|, ['"])(fsdp_\w+)""")
FORMER = re.compile(r"""(?:del config_dict\[|config_dict\.pop\()['"](\w+)['"]""")


def classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    """The classes of a module by name."""
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def fields(*owners: ast.ClassDef) -> dict[str, str]:
    """The annotated fields of dataclasses with their types."""
    return {
        node.target.id: ast.unparse(node.annotation)
        for owner in owners
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def words(owner: ast.ClassDef) -> list[str]:
    """The values of an enum."""
    values = [node.value for node in owner.body if isinstance(node, ast.Assign)]
    return [value.value for value in values if isinstance(value, ast.Constant)]


def flags(tree: ast.Module, group: str) -> dict[str, Any]:
    """The flags that a group of the parser adds, with their defaults."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{group}.add_argument":
            default = next((k.value for k in node.keywords if k.arg == "default"), None)
            name = ast.literal_eval(node.args[0]).removeprefix("--")
            found[name] = default.value if isinstance(default, ast.Constant) else None
    return found


def constants(tree: ast.Module) -> dict[str, list[str]]:
    """The lists of words that a module has under names of interest."""
    return {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and CONSTANTS.fullmatch(ast.unparse(node.targets[0]))
    }


def schema(site: Path) -> dict[str, Any]:
    """What is frozen of an installed accelerate."""
    package = site / "accelerate"
    texts = {n: (package / n).read_text("utf-8") for n in (CONFIG, LAUNCH, "utils/launch.py")}
    config, launch = classes(ast.parse(texts[CONFIG])), ast.parse(texts[LAUNCH])
    enums = classes(ast.parse((package / "utils/dataclasses.py").read_text("utf-8")))
    (folder,) = site.glob("accelerate-*.dist-info")
    return {
        "release": folder.name.removesuffix(".dist-info").partition("-")[2],
        "keys": fields(config["BaseConfig"], config["ClusterConfig"]),
        "sagemaker": fields(config["SageMakerConfig"]),
        "former": sorted(set(FORMER.findall(texts[CONFIG]))),
        "enums": {name: words(enums[name]) for name in ENUMS},
        "deepspeed": flags(launch, "deepspeed_args"),
        "fsdp": dict.fromkeys(sorted(set(READ.findall(texts["utils/launch.py"]))))
        | flags(launch, "fsdp_args"),
        "constants": constants(ast.parse((package / "utils/constants.py").read_text("utf-8"))),
    }


if __name__ == "__main__":
    text = json.dumps(schema(Path(sys.argv[1])), indent=1) + "\n"
    TARGET.write_text(text, encoding="utf-8")
