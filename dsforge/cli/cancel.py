"""`dsforge cancel`: a started run is asked to end."""

from __future__ import annotations

from pathlib import Path

import click

from dsforge.cli.paths import NamedPath


@click.command()
@click.argument("run", type=NamedPath(), help="Run folder that was submitted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def cancel(run: Path, *, as_json: bool) -> None:
    """End a submitted run; its ranks save a checkpoint."""
    from dsforge.api.jobs import cancel as ended
    from dsforge.cli.show import show_json

    found = ended(run)
    if as_json:
        show_json(found.model_dump(mode="json"))
        return
    print(f"{found.job.place} {found.job.id} was asked to end")
    print(f"it ends within minutes: dsforge status {run}")
