"""Verification of one torch file: its format, its names, its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dsforge.checkpoints.files import opened, read_at
from dsforge.checkpoints.findings import error, listed, warning
from dsforge.checkpoints.folder import PLAIN_PICKLES
from dsforge.checkpoints.pickles.allowed_names import (
    HELD_HINT,
    NO_LOAD,
    TRAINER,
    called_unknown,
    held_unknown,
)
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.weights.non_finite import nonfinite
from dsforge.errors import DsforgeError, UntrustedError
from dsforge.findings import Finding

COPY = "copy the file again"
GATHER = "save through the engine (`save_checkpoint`), or gather first: GatheredParameters"
TRAINER_FILE = "training_args.bin"  # the arguments of the Hugging Face Trainer, and no weights


class Depth(NamedTuple):
    """How deep files are looked at: all bytes against their checksums, all numbers for NaN."""

    checksums: bool = True
    values: bool = False


def opened_archive(file: Path, place: str = "") -> tuple[Archive | None, list[Finding]]:
    """A torch file, none where it cannot be read or must not be loaded, and why."""
    place = place or file.name
    try:
        archive = Archive(file)
        pickled = archive.pickled
    except UntrustedError as failure:
        return None, [error("runs-code", place, failure.message, failure.hint)]
    except DsforgeError as failure:
        message = failure.message.removeprefix(f"{file.name} ")
        return None, [error("file-unreadable", place, message, failure.hint)]
    called = called_unknown(pickled)
    if file.name == TRAINER_FILE:
        return None, [*_trainer(place, called, held_unknown(pickled))]
    if called:
        return None, [error("runs-code", place, f"would call {listed(called)}", NO_LOAD)]
    held = held_unknown(pickled)
    message = f"would import {listed(held)}"
    return archive, [warning("foreign-names", place, message, HELD_HINT)] if held else []


def _trainer(place: str, called: list[str], names: list[str]) -> Iterator[Finding]:
    """The Trainer's arguments are objects of transformers and accelerate, which torch builds."""
    odd = [name for name in called if not TRAINER.fullmatch(name)]
    if odd:
        yield error("runs-code", place, f"would call {listed(odd)}", NO_LOAD)
    elif names:
        message = f"contains objects of the Trainer that torch.load creates: {listed(names)}"
        hint = "the weights do not need this file; load it only with weights_only=True"
        yield warning("foreign-names", place, message, hint)


def content_findings(archive: Archive, depth: Depth, place: str = "") -> Iterator[Finding]:
    """Bytes of a torch file that are missing or changed; NaN and infinity where asked for."""
    place = place or archive.path.name
    lacking = [*archive.lacking()]
    for line in lacking:
        yield error("tensor-cut", place, line, COPY)
    if depth.checksums and not archive.has_sums:
        message = "contains no checksums: changed bytes cannot be detected"
        hint = "save with torch.serialization.set_crc32_options(True), torch's default"
        yield warning("sums-missing", place, message, hint)
    elif depth.checksums:
        for line in archive.damage():
            yield error("bytes-changed", place, line, COPY)
    if depth.values and not lacking:
        yield from nonfinite_findings(place, nonfinite(archive))


def nonfinite_findings(place: str, counts: dict[str, tuple[int, int]]) -> Iterator[Finding]:
    """Tensors with NaN or infinity, from the counts of both by name."""
    for kind, (rule, what) in enumerate((("values-nan", "NaN"), ("values-infinite", "infinite"))):
        odd = {name: found[kind] for name, found in counts.items() if found[kind]}
        if odd:
            shown = listed([f"{name} ({count:,})" for name, count in odd.items()])
            message = f"{sum(odd.values()):,} values are {what}, in {len(odd)} tensors: {shown}"
            hint = "training diverged before this save; use an older checkpoint"
            yield error(rule, place, message, hint)


def _is_archive(file: Path) -> bool:
    """Whether a file begins as an archive, or cannot be read at all."""
    try:
        with opened(file) as descriptor:
            return read_at(descriptor, 0, 2) == b"PK"
    except DsforgeError:
        return True


def file_findings(file: Path, depth: Depth, place: str = "") -> list[Finding]:
    """Everything that is wrong with a torch file of which no more is known."""
    if file.suffix in PLAIN_PICKLES and not _is_archive(file):
        message = "a plain Python pickle, which is not checked: loading it may run code"
        return [warning("foreign-names", place or file.name, message, "the weights do not need it")]
    archive, found = opened_archive(file, place)
    if archive is not None:
        found += content_findings(archive, depth, place)
    return found
