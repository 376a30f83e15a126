"""`dsforge import`: what configs and scripts of other programs say, cost, and lose elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.alive import alive
from dsforge.cli.asked import asked_of
from dsforge.cli.flags import Flags
from dsforge.cli.options import with_flags, with_verbose
from dsforge.cli.paths import NamedPath
from dsforge.cli.sections import Sections
from dsforge.cli.text import show, wrapped

if TYPE_CHECKING:
    from dsforge.api.importing import ImportResult
    from dsforge.importing.draft import Left

SHOWN_LOST = 12  # keys on one screen


@click.command(cls=Sections)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=NamedPath(),
    metavar="FILE...",
)
@with_flags
@click.option("--as", "program", metavar="NAME", help="Program whose files they are.")
@click.option("--out", "-o", type=NamedPath(), help="Run folder to write.")
@click.option("--force", is_flag=True, help="Overwrite files that were edited by hand.")
@with_verbose
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def importing(
    *,
    files: tuple[Path, ...],
    flags: Flags,
    program: str | None,
    out: Path | None,
    force: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Explain configs and scripts of other programs, with price and a better plan.

    Reads ds_config, accelerate, transformers, TRL, LLaMA-Factory, axolotl, ms-swift, torchtune,
    torchtitan, Lightning, NeMo, Megatron-LM, GPT-NeoX, OpenRLHF, Colossal-AI, shell and Slurm
    scripts. Nothing is run. --gpu or --cluster prices the setup; --out writes it as a run folder,
    with --for for another program. --as names the program where the keys do not tell.
    """
    from dsforge.api.importing import explained
    from dsforge.cli.show import show_json

    with alive("reading the files"):
        found = explained(files, asked_of(flags), program)
    if as_json:
        show_json(found.document.model_dump(mode="json"))
    else:
        show(lines_of(found, verbose=verbose))
    if out is not None:
        _write(found, flags, out, force=force, quiet=as_json)


def lines_of(found: ImportResult, *, verbose: bool) -> list[str]:
    """The setup as a table, what is lost, problems, findings, and the price."""
    imported = found.imported
    lines = [f"{imported.style} ({', '.join(imported.files)})", "", *_table(found)]
    lines += _left("known at run time only", imported.open, verbose=True)
    lines += _left("without a counterpart", imported.lost, verbose=verbose)
    if imported.problems:
        lines += ["", "problems"]
        lines += [line for each in imported.problems for line in wrapped(str(each), first="  ")]
    if found.findings:
        lines += ["", "findings of lint"]
        for each in found.findings:
            text = f"{each.file}:{each.line}: {each.severity}: {each.message}"
            lines += wrapped(text, first="  ")
    return [*lines, "", *_price(found)]


def _table(found: ImportResult) -> list[str]:
    """Each value with its place; defaults say so."""
    said = found.imported.said
    rows = [(held.field, str(held.value), held) for held in said]
    names = max((len(row[0]) for row in rows), default=0)
    values = min(30, max((len(row[1]) for row in rows), default=0))
    marks = {"said": "", "default": "default: ", "derived": "= ", "named": ""}
    return [
        f"  {name:<{names}}  {value:<{values}}  {marks[held.origin]}{held.place}"
        for name, value, held in rows
    ]


def _left(title: str, left: tuple[Left, ...], *, verbose: bool) -> list[str]:
    """Values that the setup does not have."""
    if not left:
        return []
    shown = left if verbose else left[:0]
    lines = [f"  {each.key} (={each.value}), {each.place}{_why(each)}" for each in shown]
    if not verbose:
        reasons = [each for each in left if each.reason]
        lines = [f"  {each.key} (={each.value}), {each.place}{_why(each)}" for each in reasons]
        rest = [each.key for each in left if not each.reason]
        more = f" and {len(rest) - SHOWN_LOST} more" if len(rest) > SHOWN_LOST else ""
        lines += wrapped(", ".join(rest[:SHOWN_LOST]) + more, first="  ") if rest else []
    return ["", title, *lines]


def _why(left: Left) -> str:
    return f": {left.reason}" if left.reason else ""


def _price(found: ImportResult) -> list[str]:
    """Memory and time of the setup, and what a better plan changes."""
    from dsforge.cli.brief import head

    if found.plan is None:
        return wrapped(f"not priced: {found.not_priced}")
    lines = ["as it stands", *head(found.plan)]
    if found.better is None:
        return [*lines, "", "no plan for this job is predicted to be faster"]
    lines += ["", "a better plan", *head(found.better), "", "changes"]
    return [*lines, *(f"  {c.field}: {c.before} -> {c.after}" for c in found.changes)]


def _write(found: ImportResult, flags: Flags, out: Path, *, force: bool, quiet: bool) -> None:
    """The run folder of the setup. Raises DsforgeError where it is not known enough."""
    from dsforge.api.planning import gen
    from dsforge.api.programs import MOVED, without
    from dsforge.cli.gen import targets_of, written_lines
    from dsforge.errors import LayoutError
    from dsforge.importing.request import imported_request

    request = imported_request(asked_of(flags, launches=True), found.imported, ours=True)
    while True:
        try:
            made = gen(request, out=out, targets=targets_of(flags), force=force)
            break
        except LayoutError as error:
            nearer = without(request, error.problems)
            if nearer is None:
                raise
            request = nearer
    if not quiet:
        lost = [reason.message for reason in request.reasons if reason.rule == MOVED]
        show(["", *(line for text in lost for line in wrapped(text)), *written_lines(made)])
