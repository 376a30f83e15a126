"""What a command line can add to train.yaml, declared once for both entries.

`dsforge train` makes click options of these rows, `python -m dsforge.train` arguments of argparse:
launchers start the latter on every rank, and it must not import the command line of dsforge.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from dsforge.job import OnBadRow

Kind = Literal["count", "path", "text", "flag", "pair"]  # pair: --export and --no-export


class TrainOption(NamedTuple):
    """A field of `Options` on a command line."""

    field: str
    help: str
    kind: Kind
    default: str | bool | None = None
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """How it is written: `--on-bad-row`."""
        return "--" + self.field.replace("_", "-")


TRAIN_OPTIONS = (
    TrainOption("steps", "Optimizer steps (default: from train.yaml).", "count"),
    TrainOption("output", "Output folder (default: from train.yaml).", "path"),
    TrainOption(
        "resume", "Checkpoint to resume: `auto` (newest), `never`, or a folder.", "text", "auto"
    ),
    TrainOption(
        "overwrite", "Remove the earlier run in the output folder and start again.", "flag", False
    ),
    TrainOption("export", "Export the final weights for transformers.", "pair", True),
    TrainOption(
        "on_bad_row",
        "What to do with invalid rows (default: from train.yaml).",
        "text",
        choices=("stop", "skip"),
    ),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line adds to train.yaml."""

    steps: int | None = None
    output: Path | None = None
    resume: str = "auto"
    overwrite: bool = False
    export: bool = True
    on_bad_row: OnBadRow | None = None

    @property
    def changes(self) -> dict[str, object]:
        """Fields of the job that the command line sets."""
        given = {"steps": self.steps, "on_bad_row": self.on_bad_row}
        return {name: value for name, value in given.items() if value is not None}
