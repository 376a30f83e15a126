"""`dsforge logs`: the log of a started run, wherever it runs."""

from __future__ import annotations

from pathlib import Path

import click

from dsforge.cli.paths import NamedPath


@click.command()
@click.argument("run", type=NamedPath(), help="Run folder that was submitted.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more until the run has ended.")
def logs(run: Path, *, follow: bool) -> None:
    """Print the log of a submitted run, or follow it.

    -f waits for more, and says how the run ended. Steps are lines with the time that is left.
    Ctrl-C ends this command, not the run.
    """
    from dsforge.api.jobs import logs as read
    from dsforge.api.jobs import status
    from dsforge.cli.show import note
    from dsforge.cli.status import lines
    from dsforge.masking import masked

    for text in read(run, follow=follow):
        print(masked(text), end="", flush=True)
    if follow:
        note("\n".join(lines(status(run))))
