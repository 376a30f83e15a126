"""`dsforge probe`: the cluster measured by its own ranks, as a cluster card."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.numbers import Real
from dsforge.cli.paths import NamedPath

if TYPE_CHECKING:
    from dsforge.findings import Finding
    from dsforge.probe.launch import Launcher
    from dsforge.probe.messages import Answer
    from dsforge.probe.session import Measured, ProbeJob
    from dsforge.reading.files import ClusterFile

CARD = "card.yaml"


@click.command()
@click.argument("run", type=NamedPath(), required=False, help="Run folder of `dsforge gen`.")
@click.option(
    "--hostfile",
    type=NamedPath(),
    help="DeepSpeed hostfile, instead of a run folder.",
)
@click.option("--cluster", type=NamedPath(), help="Cluster YAML file that the card describes.")
@click.option(
    "--launcher",
    type=click.Choice(["deepspeed", "torchrun", "python"]),
    help="Launcher of the ranks (default: deepspeed; for one rank, python).",
)
@click.option(
    "--out",
    "-o",
    type=NamedPath(),
    help=f"Card to write (default: {CARD} in the run folder).",
)
@click.option("--force", is_flag=True, help="Overwrite the card.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Real(min=10, max=3600),
    default=180,
    help="Time limit of the ranks in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print card and findings as JSON.")
def probe(
    *,
    run: Path | None,
    hostfile: Path | None,
    cluster: Path | None,
    launcher: Launcher | None,
    out: Path | None,
    force: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Benchmark the cluster and write a card for --cluster.

    The ranks time collectives at the payloads of the plan, matrix products, copies, CPU Adam and
    the disk of NVMe offload. The launcher of the job starts them. Without a run folder or a
    hostfile this machine is measured. The exit code is 3 if something is wrong, such as NCCL over
    sockets although there is InfiniBand.
    """
    from dsforge.cli.show import note, save, show_json
    from dsforge.errors import EXIT_FINDINGS
    from dsforge.findings import has_errors
    from dsforge.probe import session

    path = out or (run or Path()) / CARD
    _check(path, force=force)
    begin = time.monotonic()
    job = session.probe_job(run, hostfile=hostfile, cluster=cluster)
    note(f"measuring {job.name}; a launch takes about 20 s, the rest at most two minutes")
    measured = _measured(job, begin, launcher=launcher, timeout_s=timeout_s)
    save(path, measured.text)
    note(f"wrote {path} after {time.monotonic() - begin:.0f} s")
    if as_json:
        show_json(_document(measured.card, measured.findings))
    else:
        _show(measured.text, measured.findings, path)
    if has_errors(measured.findings):
        sys.exit(EXIT_FINDINGS)


def _check(path: Path, *, force: bool) -> None:
    """Raises SpecError before minutes are spent on a card that could not be written."""
    from dsforge.artifacts.whole import replaced
    from dsforge.reading.refusals import refusal

    if replaced(path) and not force:
        raise refusal("file-exists", str(path), "exists", "`--force` overwrites it")
    if not path.absolute().parent.is_dir():
        raise refusal("file-unwritable", str(path), "cannot be written: its folder does not exist")


def _measured(
    job: ProbeJob, begin: float, *, launcher: Launcher | None, timeout_s: float
) -> Measured:
    """What the ranks answer, each answer shown as it comes."""
    from dsforge.cli.alive import alive
    from dsforge.probe import session

    with alive("waiting for the ranks") as beat:

        def show(answer: Answer) -> None:
            _progress(begin, answer)
            beat.spoke()

        return session.measured(job, launcher=launcher, timeout_s=timeout_s, on_answer=show)


def _progress(begin: float, answer: Answer) -> None:
    """One line for each answer, with the seconds since the beginning."""
    from dsforge.cli.show import note
    from dsforge.probe.answer_lines import line

    note(f"{time.monotonic() - begin:6.0f} s  {line(answer)}")


def _document(card: ClusterFile, findings: tuple[Finding, ...]) -> dict[str, object]:
    from dsforge.findings.writers import row

    values = card.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return {"card": values, "findings": [row(finding) for finding in findings]}


def _show(text: str, findings: tuple[Finding, ...], path: Path) -> None:
    """The measured section, what is wrong, and what to do next."""
    from dsforge.findings.writers import as_lines
    from dsforge.masking import printable

    print(printable(text[text.index("measured:") :]), end="")
    for line in as_lines(findings):
        print(printable(line))
    print(f"next: dsforge gen --cluster {path} ...")
