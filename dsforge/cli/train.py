"""`dsforge train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(train)


def train(
    job: Annotated[Path, typer.Argument(help="train.yaml, as `dsforge gen` writes it.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimizer steps, instead of train.yaml's.")
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option(help="Output folder, instead of train.yaml's.")
    ] = None,
    resume: Annotated[
        str, typer.Option(help="`auto` (newest checkpoint), `never`, or a checkpoint folder.")
    ] = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew: remove the earlier run in the output.")
    ] = False,
    export: Annotated[bool, typer.Option(help="Write the final weights for transformers.")] = True,
) -> None:
    """Fine-tune a model as train.yaml says; this process is one rank.

    Several ranks: `deepspeed --num_gpus N --module dsforge.train train.yaml`, or torchrun, with the
    same options. SIGTERM (exit code 0) and Ctrl-C (exit code 130) finish the step and save a
    checkpoint; the next start goes on from there.
    """
    from dsforge.train.loop import Options
    from dsforge.train.loop import train as run

    raise typer.Exit(run(job, Options(steps, output, resume, overwrite, export)))
