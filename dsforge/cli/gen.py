"""`dsforge gen`: plan, render, write the run folder, say what was chosen and what was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.flags import (
    Flags,
    to_request,
    with_flags,
    with_verbose,
)
from dsforge.cli.sections import Sections
from dsforge.cli.wish import Wish, with_wish

if TYPE_CHECKING:
    from dsforge.artifacts import Written
    from dsforge.plan import Plan

SHOWN_DIFF = 60  # lines of what changed in files that nobody had edited


@click.command(cls=Sections)
@with_flags
@with_wish
@click.option(
    "--out", "-o", required=True, type=click.Path(path_type=Path), help="Run folder to write."
)
@click.option(
    "--templates",
    type=click.Path(path_type=Path),
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

    request = to_request(flags, launches=True)
    try:
        made = generate(request, out=out, templates=templates, force=force, **wish)
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
        steps = _next(made.plan, {a.path for a in made.artifacts}, out)
        _show(made.plan, [f"{_files(made.written, out)}", *steps], verbose=verbose)


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


def _next(plan: Plan, paths: set[str], out: Path) -> list[str]:
    """What a person does now."""
    from dsforge.api.training_data import data_paths
    from dsforge.cli.text import wrapped
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
    if plan.strategy.back_end == "megatron":
        every = " on every host" if plan.cluster.nodes > 1 else ""
        steps.append("export MEGATRON_PATH and DATA_PATH")
        steps.append(f"launch: {out / PRETRAIN}{every}, or `sbatch launch/slurm.sbatch`")
    else:
        steps.append(f"launch: {out / 'launch/deepspeed.sh'}")
    return [
        line
        for number, step in enumerate(steps, start=1)
        for line in wrapped(step, first=f"  {number}. ")
    ]
