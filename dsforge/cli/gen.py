"""`dsforge gen`: plan, render, write the run folder, say what was chosen and what was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.asked import to_request
from dsforge.cli.flags import Flags
from dsforge.cli.options import with_flags, with_verbose
from dsforge.cli.paths import NamedPath
from dsforge.cli.programs import programs_of
from dsforge.cli.sections import Sections
from dsforge.cli.wish import Wish, with_wish

if TYPE_CHECKING:
    from dsforge.api.results import GenResult
    from dsforge.artifacts import Written
    from dsforge.plan import Plan
    from dsforge.programs import Program

SHOWN_DIFF = 60  # lines of what changed in files that nobody had edited


@click.command(cls=Sections)
@with_flags
@with_wish
@click.option("--out", "-o", required=True, type=NamedPath(), help="Run folder to write.")
@click.option(
    "--templates",
    type=NamedPath(),
    help="Folder of templates that replace the built-in ones.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Overwrite files that were edited by hand; else edits are merged.",
)
@with_verbose
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def gen(
    *,
    flags: Flags,
    wish: Wish,
    out: Path,
    templates: Path | None,
    force: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Choose a strategy and write all files of the run."""
    from dsforge.api.planning import gen as generate
    from dsforge.cli.show import show_json, show_nearest
    from dsforge.errors import DoesNotFitError, EditedError
    from dsforge.masking import printable

    request, targets = to_request(flags, launches=True), targets_of(flags)
    try:
        made = generate(request, out=out, templates=templates, targets=targets, force=force, **wish)
    except DoesNotFitError as error:
        if as_json:
            show_nearest(request, error)
        raise
    except EditedError as error:
        if not as_json:
            print(printable(error.diff), end="")
        raise
    if as_json:
        show_json(made.document.model_dump(mode="json"))
    else:
        _show_diff(made.written)
        _show(made.plan, written_lines(made), verbose=verbose)


def _show_diff(written: Written) -> None:
    """What changes in files that nobody had edited."""
    from dsforge.masking import printable

    diff = printable(written.diff).splitlines()
    if diff:
        print("\n".join(diff[:SHOWN_DIFF]))
        rest = len(diff) - SHOWN_DIFF
        print(f"... {rest} more lines\n" if rest > 0 else "")


def _show(plan: Plan, last: list[str], *, verbose: bool) -> None:
    """The choice, its price, the files and the next step."""
    from dsforge.cli.brief import Other, defaults, every_reason, head, screen, table
    from dsforge.cli.text import show
    from dsforge.render.report import file_of

    others = [
        Other(file_of(variant.name), variant.priced)
        for variant in plan.variants
        if variant.priced and variant.priced.fits and variant.priced.strategy != plan.strategy
    ]

    def below(most: int) -> list[str]:
        return table(plan, others, "also written", most)

    if verbose:
        every = every_reason(plan.choice.reasons)
        lines = [*head(plan), *every, "", *below(len(others)), "", *last]
    else:
        lines = screen(plan, below=below, last=[*defaults(plan), "", *last])
    show(lines)


def targets_of(flags: Flags) -> tuple[str, ...]:
    """The programs that `--for` names beside the engine."""
    return programs_of(flags.back_end or "").targets


def written_lines(made: GenResult) -> list[str]:
    """What was written, the next steps, and what other programs lose."""
    paths = {artifact.path for artifact in made.artifacts}
    return [_files(made.written, made.out), *_next(made.plan, paths, made.out), *_lost(made.lost)]


def _lost(lost: dict[str, tuple[str, ...]]) -> list[str]:
    """What the files of other programs cannot say."""
    return [f"not in for/{name}: {what}" for name, each in lost.items() for what in each]


def _files(written: Written, out: Path) -> str:
    """How many files were created, updated, removed or left."""
    counts = {
        "created": len(written.created),
        "updated": len(written.updated),
        "removed": len(written.removed),
        "unchanged": len(written.unchanged),
    }
    said = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    kept = f"; your edits are kept in {', '.join(written.merged)}" if written.merged else ""
    return f"{out}: {said} (PLAN.md explains them){kept}"


def _way_to_start(program: Program) -> str:
    """What a person does with the file that starts a program."""
    if program.is_own:
        return "launch"
    return "read and launch" if program.start.endswith(".sh") else "start your script as this says"


def _next(plan: Plan, paths: set[str], out: Path) -> list[str]:
    """What a person does now."""
    from dsforge.api.training_data import data_paths
    from dsforge.cli.text import wrapped
    from dsforge.programs import BY_NAME as PROGRAMS
    from dsforge.render.launch import PRETRAIN, has_placeholders

    steps = []
    if has_placeholders(plan.cluster):
        steps.append(
            f"write the addresses of your hosts into {out / 'hostfile'}, or use --hostfile"
        )
    if plan.workload.data is None and "train.yaml" in paths:
        steps.append(f"set the path of your data in {out / 'train.yaml'}, or use --data")
    steps += [
        f"copy the data to {path} on every host: it is not on this machine"
        for path in data_paths(plan, out)
        if not path.exists()
    ]
    program = plan.strategy.runs_as.program
    each = " on every host" if plan.cluster.nodes > 1 else ""
    if program is not None:
        own = PROGRAMS[program]
        folder = "launch" if own.is_own else f"for/{program}"
        where = "" if own.starts_all else each
        steps.append(f"{_way_to_start(own)}: {out / folder / own.start}{where}")
    elif plan.strategy.back_end == "megatron":
        steps.append(f"export MEGATRON_PATH and DATA_PATH{_and_weights(plan)}")
        steps.append(f"launch: {out / PRETRAIN}{each}, or `sbatch launch/slurm.sbatch`")
    else:
        steps.append(f"launch: {out / 'launch/deepspeed.sh'}")
    return [
        line
        for number, step in enumerate(steps, start=1)
        for line in wrapped(step, first=f"  {number}. ")
    ]


def _and_weights(plan: Plan) -> str:
    """The variable of the converted weights, where the run continues from such."""
    from dsforge.programs.converters import converter_of

    continues = any(r.rule == "megatron-needs-conversion" for r in plan.choice.reasons)
    if not continues or converter_of(plan.model.model_type) is None:
        return ""
    return ", and PRETRAINED_PATH, the converted weights"
