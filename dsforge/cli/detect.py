"""`dsforge detect`: this machine as a cluster file."""

from __future__ import annotations

from pathlib import Path

import click

from dsforge.cli.paths import NamedPath


@click.command()
@click.option("--out", "-o", type=NamedPath(), help="File to write (default: stdout).")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option(
    "--measure-disk", is_flag=True, help="Write and read 256 MiB on each disk to measure it."
)
@click.option("--json", "as_json", is_flag=True, help="Print facts and cluster as JSON.")
def detect(*, out: Path | None, force: bool, measure_disk: bool, as_json: bool) -> None:
    """Describe this machine as a cluster file.

    GPUs or CPU ranks, RAM and cores with the limits of the container, disks, interfaces.
    """
    from dsforge.artifacts.whole import replaced
    from dsforge.cli.show import note, save, show_json
    from dsforge.masking import printable
    from dsforge.probe.detect import cluster_file, cluster_yaml
    from dsforge.probe.node import probe
    from dsforge.reading.refusals import refusal

    if out is not None and not out.absolute().parent.is_dir():
        raise refusal("file-unwritable", str(out), "cannot be written: its folder does not exist")
    if out is not None and replaced(out) and not force:
        raise refusal("file-exists", str(out), "exists", "`--force` overwrites it")
    facts = probe(measure_disk=measure_disk)
    file, notes = cluster_file(facts)
    text = cluster_yaml(file, notes)
    if out is not None:
        save(out, text)
        note(f"wrote {out}")
    if as_json:
        cluster = file.model_dump(mode="json", exclude_none=True)
        show_json({"cluster": cluster, "facts": facts.model_dump(mode="json"), "notes": notes})
    elif out is None:
        print(printable(text), end="")
