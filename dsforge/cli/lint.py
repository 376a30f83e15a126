"""`dsforge lint`: what is wrong with configs, hostfiles and arguments, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.paths import NamedPath
from dsforge.errors import EXIT_FINDINGS

if TYPE_CHECKING:
    from dsforge.api.checking import FileKind
    from dsforge.api.results import LintResult

KINDS = ("ds_config", "hostfile", "env", "megatron", "accelerate", "train")
FORMATS = ("text", "json", "sarif", "github")


@click.command()
@click.argument("paths", nargs=-1, type=NamedPath(), metavar="[PATH]...")
@click.option(
    "--kind", type=click.Choice(KINDS), help="Kind of the files (default: detected for each file)."
)
@click.option("--model", help="Also check against this model: name, folder, config.json, 7b.")
@click.option("--cluster", type=NamedPath(), help="Also check against this cluster file.")
@click.option(
    "--deepspeed",
    metavar="RELEASE",
    help="DeepSpeed release: 0.14 to 0.19, or `installed` (default: newest).",
)
@click.option(
    "--fix", is_flag=True, help="Apply safe fixes to the files; comments and order are preserved."
)
@click.option("--ignore", multiple=True, metavar="RULE", help="Rule to ignore; may be repeated.")
@click.option(
    "--format", "shape", type=click.Choice(FORMATS), default="text", help="Output format."
)
@click.option("--brief", is_flag=True, help="Print one line per finding, without reasons.")
@click.option("--rules", "list_rules", is_flag=True, help="List all rules.")
@click.option("--explain", metavar="RULE", help="Explain one rule: the reason and the evidence.")
def lint(
    *,
    paths: tuple[Path, ...],
    kind: FileKind | None,
    model: str | None,
    cluster: Path | None,
    deepspeed: str | None,
    fix: bool,
    ignore: tuple[str, ...],
    shape: str,
    brief: bool,
    list_rules: bool,
    explain: str | None,
) -> None:
    """Check configs, hostfiles and arguments before launch.

    Reads files and folders: ds_config (JSON, YAML), hostfile, .deepspeed_env, Megatron arguments
    (in files and launch scripts), accelerate YAML, train.yaml. The exit code is 3 if an error was
    found.
    """
    from dsforge.api.checking import lint as linted

    if list_rules or explain:
        print(_explanation(explain), end="")
        return
    found = linted(
        paths or (Path(),),
        kind=kind,
        model=model,
        cluster=cluster,
        deepspeed=deepspeed,
        fix=fix,
        ignore=ignore,
    )
    _show(found, "brief" if brief and shape == "text" else shape)
    if found.has_errors:
        sys.exit(EXIT_FINDINGS)


def _show(found: LintResult, shape: str) -> None:
    """The findings in that shape on stdout, notes and a summary on stderr."""
    from dsforge.cli.show import note
    from dsforge.findings.writers import WRITERS, as_brief, counted, summary
    from dsforge.lint.check import BY_ID

    for line in found.notes:
        note(line)
    write = as_brief if shape == "brief" else WRITERS[shape]
    print(write(found.findings, BY_ID), end="", flush=True)
    note(f"{summary(found.findings)} in {counted(found.files, 'file')}")


def _explanation(name: str | None) -> str:
    """What is known about a rule, or a line for each. Raises DsforgeError, with the nearest one."""
    from dsforge.findings.writers import listed
    from dsforge.lint.check import BY_ID, RULES, current_ids
    from dsforge.lint.rule_pages import explained

    if name is None:
        return listed(RULES)
    return "\n".join(explained(BY_ID[rule]) for rule in current_ids((name,)))
