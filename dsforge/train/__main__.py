"""The entry for launchers: `deepspeed --module dsforge.train train.yaml`, torchrun, or python.

A mistake is usually the same on all ranks of a host, and the first of them reports it. The
others wait and are ended by the launcher meanwhile. A rank that is still there after that has
failed alone, and reports it.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsforge.error_report import error_report
from dsforge.errors import EXIT_USER, DsforgeError
from dsforge.masking import masked_traceback
from dsforge.train.options import TRAIN_OPTIONS, Options, TrainOption
from dsforge.train.parallel.launcher_variables import adopt_launcher_variables
from dsforge.train.run.heartbeat import IMPORTING, Heartbeat
from dsforge.train.run.process_tree import ATTENDED
from dsforge.train.run.signals import Attendant
from dsforge.train.run.streams import keep_writable

GRACE_S = 10.0  # launchers look at their ranks every second at the latest


def main() -> int:
    """The exit code of a run on this rank."""
    keep_writable()
    with Attendant() as attendant:  # before the imports, which take seconds
        given, heartbeat = _arguments(), Heartbeat(shown=False)
        try:
            adopt_launcher_variables()
            heartbeat = Heartbeat(shown=os.environ.get("RANK", "0") == "0")
            heartbeat.doing(IMPORTING)
            return _trained(given, attendant, heartbeat)
        except DsforgeError as error:
            if os.environ.get("LOCAL_RANK", "0") != "0":
                time.sleep(GRACE_S)
            _write(error_report(error, where=_where()))
            return error.exit_code
        finally:
            heartbeat.end()


def _arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="dsforge.train", description=__doc__)
    parser.add_argument("job", type=Path, help="train.yaml")
    for option in TRAIN_OPTIONS:
        parser.add_argument(option.flag, **_kind(option), default=option.default, help=option.help)
    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)  # from launchers
    parser.add_argument(ATTENDED, help=argparse.SUPPRESS)  # the name of the launch
    return parser.parse_args()


def _kind(option: TrainOption) -> dict[str, Any]:
    """What argparse needs to know of an option."""
    if option.kind == "pair":
        return {"action": argparse.BooleanOptionalAction}
    if option.kind == "flag":
        return {"action": "store_true"}
    if option.choices:
        return {"choices": option.choices}
    types: dict[str, Callable[[str], object]] = {"count": _steps, "path": Path, "text": str}
    return {"type": types[option.kind]}


def _trained(given: argparse.Namespace, attendant: Attendant, heartbeat: Heartbeat) -> int:
    """The exit code of the run that the command line asks for. Raises DsforgeError."""
    from dsforge.train.run.loop import train

    options = Options(**{option.field: getattr(given, option.field) for option in TRAIN_OPTIONS})
    try:
        return train(given.job, options, attendant, heartbeat)
    except DsforgeError:
        raise
    except Exception as error:  # of the engine, or a bug: the traceback, then what it means
        if attendant.is_orphaned:
            message = "the ranks could not save a checkpoint after their launcher ended"
            hint = "start again: the run resumes from the last checkpoint"
            raise DsforgeError(message, hint) from error
        from dsforge.diagnose import diagnose_error
        from dsforge.diagnose.report import shortly

        sys.stderr.write(masked_traceback(error))
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(GRACE_S)
        _write("".join(f"{line}\n" for line in shortly(diagnose_error(error))))
        return EXIT_USER


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _where() -> str:
    """Rank and host of a failure beyond the first rank."""
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f" on rank {rank}, {platform.node()}"


def _steps(text: str) -> int:
    """The number of steps in ASCII digits, as the command line of dsforge takes it."""
    if not re.fullmatch(r"\+?[0-9]{1,15}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!a} must be a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
