"""`dsforge submit`: a run folder started in the background, here, over ssh or under a scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dsforge.cli.numbers import Whole
from dsforge.cli.paths import NamedPath

PLACES = ("local", "ssh", "slurm", "kubernetes")
MOST_RETRIES = 1000


@click.command()
@click.argument("run", type=NamedPath(), help="Run folder of `dsforge gen`.")
@click.option(
    "--on",
    type=click.Choice(PLACES),
    default="local",
    help="Where it runs: this machine, the first host of the hostfile, or a scheduler.",
)
@click.option("--resume", is_flag=True, help="Go on from the newest complete checkpoint.")
@click.option(
    "--retries",
    type=Whole(min=0, max=MOST_RETRIES),
    default=0,
    help="Restarts where a restart can cure what it died of.",
)
@click.option("--namespace", help="Namespace of Kubernetes (default: the current one).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def submit(run: Path, *, as_json: bool, **wish: Any) -> None:
    """Start a run folder in the background: here, over ssh, by Slurm or Kubernetes.

    It survives this terminal. The files are checked first. `--on slurm` calls sbatch; `--on
    kubernetes` applies the manifest of `dsforge gen --for kubernetes`; `--on ssh` needs this folder
    and dsforge at the same paths there.
    """
    from dsforge.api.jobs import submit as started
    from dsforge.cli.show import show_json

    made = started(run, **wish)
    if as_json:
        show_json(made.model_dump(mode="json"))
        return
    where = f" on {made.job.host}" if made.job.host else ""
    print(f"{made.job.place} {made.job.id}{where}: {made.job.script}, {made.begins}")
    print(f"follow: dsforge logs -f {run}")
    print(f"state:  dsforge status {run}")
    print(f"end:    dsforge cancel {run}")
