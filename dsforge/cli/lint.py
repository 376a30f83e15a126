"""`dsforge lint`: what is wrong with configs, hostfiles and arguments, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.errors import EXIT_FINDINGS

if TYPE_CHECKING:
    from dsforge.findings import Finding
    from dsforge.lint.files import Against
    from dsforge.lint.reading.document import Document

KINDS = ("ds_config", "hostfile", "env", "megatron", "accelerate", "train")
FORMATS = ("text", "json", "sarif", "github")


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--kind", type=click.Choice(KINDS), help="What the files are; told from each.")
@click.option("--model", help="Check against this model too: name, folder, config.json, 7b.")
@click.option("--cluster", type=click.Path(path_type=Path), help="And against this cluster file.")
@click.option("--deepspeed", metavar="RELEASE", help="0.14 to 0.19, or `installed`.")
@click.option("--fix", is_flag=True, help="Write the safe repairs; comments and order stay.")
@click.option("--ignore", multiple=True, metavar="RULE", help="Leave a rule out.")
@click.option("--format", "shape", type=click.Choice(FORMATS), default="text", help="Output.")
@click.option("--brief", is_flag=True, help="Text without reasons: one line for each finding.")
@click.option("--rules", "list_rules", is_flag=True, help="List all rules.")
@click.option("--explain", metavar="RULE", help="Why there is a rule, and how it is known.")
def lint(
    *,
    paths: tuple[Path, ...],
    kind: str | None,
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
    """Say what is wrong with configs, hostfiles and arguments, before anything starts.

    Takes files and folders: ds_config (JSON, YAML), hostfile, .deepspeed_env, Megatron arguments,
    accelerate YAML, train.yaml. The exit code is 3 where an error was found.
    """
    from dsforge.cli.show import note
    from dsforge.findings import has_errors
    from dsforge.findings.writers import WRITERS, as_brief, counted, summary
    from dsforge.lint.check import BY_ID, current_ids

    if list_rules or explain:
        print(_explanation(explain), end="")
        return
    ignored = current_ids(ignore)
    against = _against(model, cluster, deepspeed)
    found, files = _findings(paths or (Path(),), kind, against, fix=fix)
    found = [finding for finding in found if finding.rule not in ignored]
    write = as_brief if brief and shape == "text" else WRITERS[shape]
    print(write(found, BY_ID), end="", flush=True)
    note(f"{summary(found)} in {counted(files, 'file')}")
    if has_errors(found):
        sys.exit(EXIT_FINDINGS)


def _findings(
    paths: tuple[Path, ...], kind: str | None, against: Against, *, fix: bool
) -> tuple[list[Finding], int]:
    """What is wrong with all files, and how many there were; repaired first where asked."""
    from dsforge.cli.show import note
    from dsforge.lint.files import checked, found, read_document

    findings: list[Finding] = []
    files = 0
    left_out: list[str] = []
    for file in found(paths, left_out):
        document = read_document(file.path, kind)  # type: ignore[arg-type]
        if document.kind == "unknown" and not file.named:
            continue
        files += 1
        if fix:
            document = _repaired(file.path, document, against)
        findings += map(_masked, checked(document, against))
    for what in left_out:
        note(f"left out: {what}; name a smaller folder")
    return findings, files


def _masked(finding: Finding) -> Finding:
    """A finding that quotes no secret of the file."""
    from dsforge.masking import masked

    return finding._replace(
        message=masked(finding.message), fix=masked(finding.fix), path=masked(finding.path)
    )


def _repaired(path: Path, document: Document, against: Against) -> Document:
    """The document after its repairs, or as it is where they could not be written."""
    from dsforge.cli.show import note
    from dsforge.lint.files import NotRepairedError, repaired

    try:
        now = repaired(path, document, against)
    except NotRepairedError as error:
        note(f"not repaired: {error.message}" + (f" ({error.hint})" if error.hint else ""))
        return document
    if now is not document:
        note(f"repaired {path}")
    return now


def _against(model: str | None, cluster: Path | None, deepspeed: str | None) -> Against:
    """The release, and the model and cluster where they are named. Raises DsforgeError."""
    from dsforge.lint.files import Against, release_named

    against = Against(*release_named(deepspeed))
    if model is not None:
        from dsforge.reading.model import read_model

        against = against._replace(model=read_model(model)[0])
    if cluster is not None:
        from dsforge.reading.cluster import read_cluster

        against = against._replace(cluster=read_cluster(cluster)[0])
    return against


def _explanation(name: str | None) -> str:
    """What is known about a rule, or a line for each. Raises DsforgeError, with the nearest one."""
    from dsforge.findings.writers import listed
    from dsforge.lint.check import BY_ID, RULES, current_ids
    from dsforge.lint.rule_pages import explained

    if name is None:
        return listed(RULES)
    return "\n".join(explained(BY_ID[rule]) for rule in current_ids((name,)))
