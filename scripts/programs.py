"""Writes docs/programs.md, the table of what each trainer can do, from PROGRAMS.

Use: python scripts/programs.py [--check]; with --check it fails where the page is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dsforge.programs import PROGRAMS, Program, Way

PAGE = Path(__file__).resolve().parents[1] / "docs" / "programs.md"
HEAD = """# What each trainer can do

With `--for NAME` the planner searches only what the program can do, and prices it with the kernels,
the loss and the types of states that the program has. Whatever else is asked for is refused by
name (`program-...` in the error), with what the program has instead. "Sharding" counts in ZeRO
stages: FSDP's full sharding is 3, its sharding of gradients and optimizer alone is 2.
Made by `python scripts/programs.py` from `dsforge/programs`.

| Program | Engine | Sharding | Also splits by | Offload | Methods | Precision | Priced as |
|---|---|---|---|---|---|---|---|
"""
AXES = ("tensor", "pipeline", "context", "expert")


def row(program: Program, way: Way) -> str:
    """One line of the table: a program on one engine."""
    run = way.execution
    axes = [axis for axis in AXES if getattr(way, axis)]
    states = "states in fp32" if run.master_weights else "states in bf16"
    loss = {"plain": "whole logits", "softmax": "fused softmax", None: "whole logits"}
    kernels = f"{run.kernels} kernels, {loss.get(run.loss, 'loss in chunks')}, {states}"
    moved = sorted({*way.offload_optimizer, *way.offload_parameters} - {"none"})
    cells = (
        f"`{program.name}`",
        run.trainer,
        ", ".join(map(str, way.stages)),
        ", ".join(axes) + (" (together)" if way.combines and len(axes) > 1 else ""),
        ", ".join(moved),
        ", ".join(way.methods),
        ", ".join(way.precisions),
        kernels,
    )
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """The whole page: the table, then the sources."""
    ways = [(program, way) for program in PROGRAMS for way in program.ways]
    table = "\n".join(row(program, way) for program, way in ways)
    sources = "\n".join(
        f"- `{program.name}` on {way.execution.trainer}: {way.source}" for program, way in ways
    )
    return f"{HEAD}{table}\n\n## Sources\n\n{sources}\n"


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
