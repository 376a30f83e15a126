"""Which files of a run folder a report shows, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

from dsforge.artifacts.artifact import is_generated
from dsforge.masking import masked
from dsforge.report.blocks import TextFile

FIRST = ("train.yaml", "deepspeed/ds_config.json", "megatron/args.txt")
NOT_SHOWN = ("plan.json", "PLAN.md", ".deepspeed_env", "report.")  # data, reports, private values


def is_shown(name: str) -> bool:
    """Whether a report shows the file of that name."""
    return is_generated(name) and not name.startswith(NOT_SHOWN)


def place_of(name: str) -> tuple[int, str]:
    """The order of files: the job and its config first."""
    return FIRST.index(name) if name in FIRST else len(FIRST), name


def text_file(name: str, text: str) -> TextFile:
    """A file as readers may see it."""
    return TextFile(name=name, text=masked(text))


def shown_files(texts: Iterable[tuple[str, str]]) -> tuple[TextFile, ...]:
    """Of files that are about to be written those that a report shows, in its order."""
    found = [text_file(name, text) for name, text in texts if is_shown(name)]
    return tuple(sorted(found, key=lambda file: place_of(file.name)))
