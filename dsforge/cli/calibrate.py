"""`dsforge calibrate`: a cluster card from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.paths import NamedPath

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsforge.validate.calibration import CalibratedRun, CalibrationDocument


@click.command()
@click.argument("runs", type=NamedPath(), nargs=-1, required=True)
@click.option("--out", type=NamedPath(), help="Card to write; none: only shown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def calibrate(*, runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Fit a cluster card on finished runs.

    RUNS are folders with plan.json and metrics.jsonl (`dsforge train`) or trainer_state.json
    (Hugging Face), or CSV tables of runs as `dsforge validate` takes them.
    """
    from dsforge.api.calibrating import calibrate as calibrated
    from dsforge.artifacts.whole import write_whole
    from dsforge.cli.show import note, show_json

    found = calibrated(runs)
    if as_json:
        show_json(found.document.model_dump(mode="json"))
    else:
        print("\n".join(_lines(found.document)))
    if out is not None:
        write_whole(out, found.yaml)
        note(f"{out} written: `dsforge plan --cluster {out}` takes it")


def _lines(found: CalibrationDocument) -> Iterator[str]:
    """Every run, then the factors."""
    yield f"{'run':<28} {'step':>10} {'before':>10} {'after':>10}"
    yield from map(_line, found.runs)
    by = found.calibration
    yield f"compute  x{by.compute:.3g} ({found.compute[0]:.3g} to {found.compute[1]:.3g})"
    yield f"waiting  x{by.waiting:.3g} ({found.waiting[0]:.3g} to {found.waiting[1]:.3g})"
    if found.memory_runs:
        yield f"memory   {by.memory_overhead_gib:+.2f} GiB on each rank"
    else:
        yield "memory   not measured: unchanged"
    yield (
        f"error    {found.error_before:.1%} before, {found.error_after:.1%} after (median of "
        f"{by.runs} runs)"
    )


def _line(run: CalibratedRun) -> str:
    from dsforge.units import seconds

    took = "-" if run.step_s is None else seconds(run.step_s)
    line = f"{run.name[-28:]:<28} {took:>10} {seconds(run.before_s):>10} {seconds(run.after_s):>10}"
    return f"{line}  {run.kept_out}".rstrip()
