"""`dsforge rehearse`: the unmodified engine as one rank of N, and the bytes that it holds."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.alive import alive
from dsforge.cli.asked import asked_of
from dsforge.cli.flags import Flags
from dsforge.cli.numbers import Whole
from dsforge.cli.options import with_flags
from dsforge.cli.paths import NamedPath
from dsforge.cli.sections import Sections
from dsforge.cli.show import note, save, show_json
from dsforge.errors import EXIT_FINDINGS

if TYPE_CHECKING:
    from dsforge.rehearse.report import PhaseAccount, RehearsalDocument
    from dsforge.rehearse.timeline import Timeline


@click.command(cls=Sections)
@with_flags
@click.option("--ds-config", type=NamedPath(), help="Existing ds_config.json to run.")
@click.option("--world-size", type=Whole(1, 100_000), help="Number of ranks of the job.")
@click.option("--rank", type=Whole(0), default=0, help="Rank to run.")
@click.option(
    "--picture",
    type=NamedPath(),
    help="Write the memory timeline as SVG to this file.",
)
@click.option("--trace", type=NamedPath(), help="Write a trace for Perfetto to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def rehearse(
    *,
    flags: Flags,
    ds_config: Path | None,
    world_size: int | None,
    rank: int,
    picture: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Run the real DeepSpeed engine as one rank of the job and measure its memory.

    Needs no GPU, no other ranks and no weights: tensors have sizes but no data. The config is the
    one that `gen` would write, or yours with --ds-config. The exit code is 3 if the engine refuses
    it.
    """
    from dsforge.api.rehearsal import rehearsed, scene_of

    scene = scene_of(asked_of(flags), ds_config, world_size)
    with alive("starting") as beat, redirect_stdout(sys.stderr):  # libraries print

        def say(phase: str) -> None:
            note(phase)
            beat.spoke()
            beat.doing(phase)

        found = rehearsed(scene, rank, say)
    document = found.document
    if not document.refused:
        _write(found.timeline, document, picture, trace)
    if as_json:
        show_json(document.model_dump(mode="json"))
    else:
        print("\n".join(_lines(document)))
    if document.refused:
        sys.exit(EXIT_FINDINGS)


def _write(
    timeline: Timeline, document: RehearsalDocument, picture: Path | None, trace: Path | None
) -> None:
    """The files that were asked for."""
    from dsforge.rehearse import timeline_export as drawing

    title = f"{document.model}, rank {document.rank} of {document.world_size}"
    texts = []
    if picture is not None:
        texts.append((picture, drawing.picture(timeline, title)))
    if trace is not None:
        texts.append((trace, drawing.trace(timeline)))
    for path, text in texts:
        save(path, text)


def _lines(document: RehearsalDocument) -> list[str]:
    """A table of the phases for people, or what was refused."""
    lines = [f"{document.model}, rank {document.rank} of {document.world_size}"]
    lines += _table(document.phases) if document.phases else []
    for refusal in document.refused:
        lines.append(f"rejected by the engine in {refusal.phase}: {refusal.message}")
        lines.append(f"  {refusal.source}")
    lines.append(f"{document.seconds:.1f} s")
    return lines


def _table(phases: dict[str, PhaseAccount]) -> list[str]:
    """One line a phase; small models in MiB."""
    from dsforge.units import GIB, MIB

    large = max(phase.peak_bytes for phase in phases.values()) >= GIB
    unit, name = (GIB, "GiB") if large else (MIB, "MiB")
    titles = ("resident", "peak", "parameter", "gradient", "optimizer", "buffer", "activation")
    rows = [_row(name, *titles, "host")]
    for phase, found in phases.items():
        owners = (value for _, value in found.peak_by_owner)
        sizes = found.resident_bytes, found.peak_bytes, *owners, found.host_resident_bytes
        rows.append(_row(phase, *(f"{size / unit:.2f}" for size in sizes)))
    return [*rows, "  owners at the peak; host at the end"]


def _row(name: str, *cells: str) -> str:
    return f"  {name:19}" + "".join(f"{cell:>11}" for cell in cells)
