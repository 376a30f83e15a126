"""`dsforge train`: one rank of the fine-tuning loop in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from dsforge.cli.numbers import Whole
from dsforge.cli.paths import NamedPath
from dsforge.train.options import TRAIN_OPTIONS, Options, TrainOption


def _option(row: TrainOption) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A row of `TRAIN_OPTIONS` as an option of click."""
    if row.kind == "pair":
        return click.option(f"{row.flag}/--no-{row.field}", default=row.default, help=row.help)
    if row.kind == "flag":
        return click.option(row.flag, is_flag=True, help=row.help)
    types: dict[str, click.ParamType[Any]] = {
        "count": Whole(min=1),
        "path": NamedPath(),
    }
    kind = click.Choice(row.choices) if row.choices else types.get(row.kind)
    return click.option(row.flag, type=kind, default=row.default, help=row.help)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its `options: Options` parameter filled from its flags."""

    @wraps(command)
    def filled(*, job: Path, **values: Any) -> None:
        command(job=job, options=Options(**values))

    made: Callable[..., None] = filled
    for row in reversed(TRAIN_OPTIONS):
        made = _option(row)(made)
    return made


@click.command()
@click.argument("job", type=NamedPath(), help="train.yaml, as `dsforge gen` writes it.")
@_with_options
def train(*, job: Path, options: Options) -> None:
    """Fine-tune a model from train.yaml; this process is one rank.

    Several ranks: `deepspeed --num_gpus N --module dsforge.train train.yaml`, or torchrun, with the
    same options. SIGTERM and SIGHUP (exit code 0) and Ctrl-C (exit code 130) finish the step and
    save a checkpoint; the next start resumes from it.
    """
    from dsforge.train.run.heartbeat import IMPORTING, Heartbeat
    from dsforge.train.run.signals import Attendant
    from dsforge.train.run.streams import keep_writable

    keep_writable()
    heartbeat = Heartbeat(shown=True)
    heartbeat.doing(IMPORTING)
    with Attendant() as attendant:  # before the imports, which take seconds
        from dsforge.cli.show import note
        from dsforge.diagnose import diagnose_error
        from dsforge.diagnose.report import shortly
        from dsforge.errors import EXIT_USER, DsforgeError
        from dsforge.masking import masked_traceback
        from dsforge.train.run.loop import train as run

        try:
            sys.exit(run(job, options, attendant, heartbeat))
        except DsforgeError:
            raise
        except Exception as error:  # the traceback, then what it means
            sys.stderr.write(masked_traceback(error))
            note("\n".join(shortly(diagnose_error(error))))
            sys.exit(EXIT_USER)
        finally:
            heartbeat.end()
