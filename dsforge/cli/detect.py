"""`dsforge detect`: this machine as a cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(detect)


def detect(
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; otherwise it is shown.")
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    measure_disk: Annotated[
        bool, typer.Option("--measure-disk", help="Write and read 256 MiB on each disk.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Facts and cluster as JSON.")] = False,
) -> None:
    """Describe this machine as a cluster file: GPUs or CPU ranks, RAM, cores, disk, network."""
    from dsforge.cli.show import note, show_json
    from dsforge.doctor.detect import cluster_file, cluster_yaml
    from dsforge.doctor.probe import probe
    from dsforge.reading.source import refusal

    if out is not None and not out.absolute().parent.is_dir():
        raise refusal("file-unwritable", str(out), "cannot be written: its folder does not exist")
    if out is not None and out.exists() and not force:
        raise refusal("file-exists", str(out), "exists", "`--force` overwrites it")
    facts = probe(measure_disk=measure_disk)
    file, notes = cluster_file(facts)
    text = cluster_yaml(file, notes)
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            message = f"cannot be written: {error.strerror}"
            raise refusal("file-unwritable", str(out), message) from error
        note(f"wrote {out}")
    if as_json:
        cluster = file.model_dump(mode="json", exclude_none=True)
        show_json({"cluster": cluster, "facts": facts.model_dump(mode="json"), "notes": notes})
    elif out is None:
        typer.echo(text, nl=False)
