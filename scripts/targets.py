"""Writes docs/targets.md, the table of programs that dsforge writes files for, from TARGETS.

Use: python scripts/targets.py [--check]; with --check it fails where the page is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dsforge.targets import TARGETS, Target

PAGE = Path(__file__).resolve().parents[1] / "docs" / "targets.md"
HEAD = """# Programs that dsforge writes files for

`dsforge gen --for NAME` (or several: `--for slurm,kubernetes`) adds files for other programs to a
run folder, in `for/NAME/`. They use the `ds_config`, the job and the hostfile of that folder, so
each fact stays in one place. What a program cannot express of a plan is printed by `gen`.

"Proof" is the most that a test has shown: **trains** and **launches** mean that ranks were started,
**parsed by its own code** that the program's own code or client has read the files, **published
schema** that they are valid for a schema of the program; an empty cell means that
the program itself was not at hand.

`dsforge gen` without `--for` writes the launchers that need no other program: `launch/deepspeed.sh`
(pdsh), `launch/torchrun.sh` and `launch/slurm.sbatch`. With `--for torch` these two start
`dsforge train` on plain torch ([how](how-to/train-torch.md)); so do the launchers below that start
any engine (`--for torch,slurm`), and those of DeepSpeed are refused. Made by
`python scripts/targets.py`.
"""
KINDS = {"launcher": "Launchers", "trainer": "Trainers"}
STARTS = {
    "any engine": "`dsforge train` on any engine",
    "deepspeed": "`dsforge train` on DeepSpeed",
    "none": "a script of your own",
}


def row(target: Target) -> tuple[str, ...]:
    """The cells of one line of the table, under the headings of its kind."""
    name, started = f"`{target.name}`", STARTS[target.starts]
    files = (target.summary, started) if target.kind == "launcher" else (target.summary,)
    return (name, target.label, *files, target.proof, target.proved_by)


def table(kind: str) -> str:
    """All targets of a kind."""
    starts = ("Starts",) if kind == "launcher" else ()
    head = ("Name", "Program", "Files", *starts, "Proof", "Test")
    rows = [head, ("---",) * len(head), *(row(each) for each in TARGETS if each.kind == kind)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows).replace(" --- ", "---")


def page() -> str:
    """The whole page."""
    parts = (f"## {title}\n\n{table(kind)}" for kind, title in KINDS.items())
    return "\n".join((HEAD, *parts))


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
