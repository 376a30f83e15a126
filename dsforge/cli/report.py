"""`dsforge report`: one page of plans, runs and comparisons, to be passed on."""

from __future__ import annotations

from pathlib import Path

import click

from dsforge.cli.paths import NamedPath


@click.command()
@click.argument(
    "sources",
    nargs=-1,
    required=True,
    type=NamedPath(),
    help="plan.json files, run folders, output folders of train, folders of bench.",
)
@click.option(
    "--out",
    "-o",
    type=NamedPath(),
    default="report",
    help="Folder of report.html, report.md, report.json and figures/.",
)
@click.option("--force", is_flag=True, help="Overwrite files that were edited by hand.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; writes no files.")
def report(*, sources: tuple[Path, ...], out: Path, force: bool, as_json: bool) -> None:
    """Write a report of plans, runs and comparisons as one HTML page.

    SOURCES are plan.json files, run folders of `dsforge gen`, output folders of `dsforge train` and
    folders of `dsforge bench`; the first is the summary. The page needs no network.
    """
    from dsforge.api.reporting import report as made
    from dsforge.cli.show import show_json

    found = made(sources)
    if as_json:
        show_json(found.document.model_dump(mode="json"))
        return
    written = found.write(out, force=force)
    figures = sum(name.endswith(".svg") for name in written)
    size_kb = (out / "report.html").stat().st_size / 1000
    print(f"{found.page.title}: {found.page.choice}")
    print(f"{out / 'report.html'} ({size_kb:,.0f} kB), report.md, report.json, {figures} figures")
