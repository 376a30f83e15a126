"""Write the flags of Megatron-LM and of its DeepSpeed fork, one a line, into dsforge/lint/schemas.

    git clone https://github.com/NVIDIA/Megatron-LM /tmp/Megatron-LM
    python scripts/megatron_flags.py /tmp/Megatron-LM core_v0.12.0 core_v0.13.0 core_v0.14.0 HEAD
    git clone https://github.com/deepspeedai/Megatron-DeepSpeed /tmp/Megatron-DeepSpeed
    git clone https://github.com/bigscience-workshop/Megatron-DeepSpeed /tmp/bigscience
    python scripts/megatron_flags.py /tmp/Megatron-DeepSpeed HEAD
    python scripts/megatron_flags.py --add /tmp/bigscience HEAD

Newer versions make part of their flags from config classes: a field `a_b` is `--a-b`, and a boolean
one `--no-a-b`, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCHEMAS = Path(__file__).resolve().parents[1] / "dsforge/lint/schemas"
OF_MEGATRON, OF_FORK = "megatron/training/arguments.py", "megatron/arguments.py"
TARGETS = {OF_MEGATRON: "megatron_flags.txt", OF_FORK: "megatron_deepspeed_flags.txt"}
FLAG = re.compile(r"""['"](--[a-z0-9][a-z0-9_-]+)['"]""")
FIELD = re.compile(r"^    ([a-z]\w+)[ \t]*:[ \t]*([^=\n]*)", re.MULTILINE)
CONFIG = re.compile(
    r"megatron/training/config/\w+\.py|megatron/core/(transformer/transformer_config"
    r"|model_parallel_config|optimizer/optimizer_config"
    r"|distributed/distributed_data_parallel_config)\.py"
)


def shown(clone: str, *arguments: str) -> str:
    """What git says about a clone; nothing where it has no such file."""
    command = ("git", "-C", clone, *arguments)
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    return done.stdout if done.returncode == 0 else ""


def flags_of(clone: str, revision: str, source: str) -> set[str]:
    """The flags in the arguments of a revision, and those that its config classes become."""
    flags = set(FLAG.findall(shown(clone, "show", f"{revision}:{source}")))
    names = shown(clone, "ls-tree", "-r", "--name-only", revision).splitlines()
    for name in filter(CONFIG.fullmatch, names):
        text = shown(clone, "show", f"{revision}:{name}")
        fields = FIELD.findall(text) if "@dataclass" in text else []
        flags |= {f"--{field.replace('_', '-')}" for field, _ in fields}
        flags |= {f"--no-{field.replace('_', '-')}" for field, kind in fields if "bool" in kind}
    return flags


def main() -> None:
    """Read the arguments at each revision and write the union."""
    add = sys.argv[1] == "--add"
    clone, *revisions = sys.argv[1 + add :]
    has_fork = bool(shown(clone, "cat-file", "-t", f"{revisions[-1]}:{OF_FORK}"))
    source = OF_FORK if has_fork else OF_MEGATRON
    target = SCHEMAS / TARGETS[source]
    flags = set(target.read_text(encoding="utf-8").split()) if add else set()
    for revision in revisions:
        flags |= flags_of(clone, revision, source)
    target.write_text("".join(f"{flag}\n" for flag in sorted(flags)), encoding="utf-8")


if __name__ == "__main__":
    main()
