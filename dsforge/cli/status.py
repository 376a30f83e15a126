"""`dsforge status`: whether a started run is queued, running or over, and what it died of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.paths import NamedPath

if TYPE_CHECKING:
    from dsforge.api.jobs import StatusDocument


@click.command()
@click.argument("run", type=NamedPath(), help="Run folder that was submitted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(run: Path, *, as_json: bool) -> None:
    """Show how a submitted run is doing, and what it died of where it failed.

    The exit code is 0 while it is queued or running and where it finished, 3 where it failed.
    """
    import sys

    from dsforge.api.jobs import status as looked_at
    from dsforge.cli.show import show_json
    from dsforge.errors import EXIT_FINDINGS

    found = looked_at(run)
    if as_json:
        show_json(found.model_dump(mode="json"))
    else:
        print("\n".join(lines(found)))
    if found.state == "failed":
        sys.exit(EXIT_FINDINGS)


def lines(found: StatusDocument) -> list[str]:
    """State, progress and causes as text."""
    from dsforge.masking import printable
    from dsforge.units import seconds

    starts = f", start {found.attempt}" if found.attempt > 1 else ""
    said = f"  {found.reason}" if found.reason else ""
    shown = [printable(f"{found.state}  {found.job.place} {found.job.id}{starts}{said}")]
    if found.step is not None:
        of = f"/{found.steps}" if found.steps else ""
        loss = "" if found.loss is None else f"  loss {found.loss:.4f}"
        left = "" if found.left_s is None else f"  {seconds(found.left_s)} left"
        shown.append(f"step {found.step}{of}{loss}{left}")
    for number, cause in enumerate(found.causes, start=1):
        shown.append(printable(f"cause {number} of {len(found.causes)}: {cause.message}"))
        shown += [printable(f"  {line}") for line in cause.fix.splitlines()]
    return shown
