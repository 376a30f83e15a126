"""`dsforge train`: one rank of the fine-tuning loop in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.numbers import Whole

if TYPE_CHECKING:
    from dsforge.job import OnBadRow


@click.command()
@click.argument(
    "job", type=click.Path(path_type=Path), help="train.yaml, as `dsforge gen` writes it."
)
@click.option("--steps", type=Whole(min=1), help="Optimizer steps (default: from train.yaml).")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Output folder (default: from train.yaml)."
)
@click.option(
    "--resume", default="auto", help="Checkpoint to resume: `auto` (newest), `never`, or a folder."
)
@click.option(
    "--overwrite", is_flag=True, help="Remove the earlier run in the output folder and start again."
)
@click.option(
    "--export/--no-export", default=True, help="Export the final weights for transformers."
)
@click.option(
    "--on-bad-row",
    type=click.Choice(["stop", "skip"]),
    help="What to do with invalid rows (default: from train.yaml).",
)
def train(
    *,
    job: Path,
    steps: int | None,
    output: Path | None,
    resume: str,
    overwrite: bool,
    export: bool,
    on_bad_row: OnBadRow | None,
) -> None:
    """Fine-tune a model from train.yaml; this process is one rank.

    Several ranks: `deepspeed --num_gpus N --module dsforge.train train.yaml`, or torchrun, with the
    same options. SIGTERM and SIGHUP (exit code 0) and Ctrl-C (exit code 130) finish the step and
    save a checkpoint; the next start resumes from it.
    """
    from dsforge.train.run.signals import Attendant
    from dsforge.train.run.streams import keep_writable

    keep_writable()
    with Attendant() as attendant:  # before the imports, which take seconds
        from dsforge.cli.show import note
        from dsforge.diagnose import diagnose_error
        from dsforge.diagnose.report import shortly
        from dsforge.errors import EXIT_USER, DsforgeError
        from dsforge.masking import masked_traceback
        from dsforge.train.run.loop import Options
        from dsforge.train.run.loop import train as run

        options = Options(steps, output, resume, overwrite, export, on_bad_row)
        try:
            sys.exit(run(job, options, attendant))
        except DsforgeError:
            raise
        except Exception as error:  # the traceback, then what it means
            sys.stderr.write(masked_traceback(error))
            note("\n".join(shortly(diagnose_error(error))))
            sys.exit(EXIT_USER)
