"""Questions about what is there already: files, logs, and tables of measured runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, get_args

from dsforge.api.results import DiagnoseResult, LintResult
from dsforge.errors import DsforgeError, quoted

if TYPE_CHECKING:
    from dsforge.api.inputs import ClusterInput, ModelInput, PathInput
    from dsforge.findings import Finding
    from dsforge.lint.files import Against
    from dsforge.lint.reading.document import Document
    from dsforge.plan import Plan
    from dsforge.validate.document import Quantity, ValidationDocument

FileKind = Literal["ds_config", "hostfile", "env", "megatron", "accelerate", "train"]
FILE_KINDS: tuple[FileKind, ...] = get_args(FileKind)
TABLE_BYTES = 64 * 1024 * 1024


def lint(
    paths: PathInput | Sequence[PathInput],
    *,
    kind: FileKind | None = None,
    model: ModelInput | None = None,
    cluster: ClusterInput | None = None,
    deepspeed: str | None = None,
    fix: bool = False,
    ignore: Iterable[str] = (),
) -> LintResult:
    """What is wrong with configs, hostfiles and arguments, before anything starts.

    Args:
        paths: Files, and folders that stand for the files of known kinds below them.
        kind: What the files are: `ds_config`, `hostfile`, `env`, `megatron`, `accelerate` or
            `train`; told from each without it.
        model: Check against this model, too; as for `load_model`.
        cluster: Check against this cluster, too; as for `load_cluster`.
        deepspeed: Release of DeepSpeed, such as `0.16`, or `installed`; the newest without it.
        fix: Write the safe repairs into the files; comments and order stay.
        ignore: Ids of rules that are left out.

    Returns:
        The findings by file and line, how many files were read, and notes on repairs. What a
        folder holds beyond the bounds of lint is a finding (`files-left-out`).

    Raises:
        DsforgeError: A rule or a release does not exist, or model or cluster cannot be read. What
            is wrong with a file itself is a finding.

    Examples:
        >>> import dsforge, tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     config = Path(folder, "ds_config.json")
        ...     _ = config.write_text('{"zero_optimization": {"stage": 5}, "train_batch_size": 8}')
        ...     result = dsforge.lint(config)
        >>> [finding.rule for finding in result.findings if finding.severity == "error"]
        ['value-choice']

    """
    from dsforge.lint.bounds import Bounds, is_passed_over
    from dsforge.lint.check import current_ids
    from dsforge.lint.files import checked, read_document

    left_out = current_ids(ignore)
    if kind is not None and kind not in FILE_KINDS:
        message = f"`kind` (={quoted(kind)}) must be one of {', '.join(FILE_KINDS)}"
        raise DsforgeError(message)
    against = against_of(model, cluster, deepspeed)
    findings: list[Finding] = []
    notes: list[str] = []
    bounds = Bounds()
    files = 0
    for file in bounds.found(_paths(paths)):
        document = read_document(file.path, kind)
        if is_passed_over(file, document):
            continue
        files += 1
        bounds.checked(document)
        if fix:
            document, note = _repaired(file.path, document, against)
            notes += [note] if note else []
        findings += map(masked_finding, checked(document, against))
    for rest in bounds.left_out:
        findings += map(masked_finding, checked(rest, against))
    kept = tuple(finding for finding in findings if finding.rule not in left_out)
    return LintResult(kept, files, tuple(notes))


def diagnose(
    logs: PathInput | Sequence[PathInput] = (),
    *,
    text: str | None = None,
    error: BaseException | None = None,
    stream: BinaryIO | None = None,
    plan: Plan | PathInput | None = None,
) -> DiagnoseResult:
    """The causes of a failed run, from its logs, a text, an exception or a stream.

    Args:
        logs: Logs of one run, and folders that stand for the logs in them.
        text: A log or traceback as text, instead.
        error: A Python exception with its traceback, instead.
        stream: A log as a binary stream, instead; memory does not grow with its length.
        plan: The plan of the run, or the path of its `plan.json`: memory errors are put into its
            terms, and slow steps are held against it.

    Returns:
        The causes, likeliest first; none where nothing wrong was found.

    Raises:
        DsforgeError: A log is not there or cannot be read, or none or two sources were given.

    Examples:
        >>> import dsforge
        >>> text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
        >>> [cause.confidence > 0.5 for cause in dsforge.diagnose(text=text).causes]
        [True]

    """
    from traceback import format_exception

    from dsforge.diagnose import diagnose_files, diagnose_stream
    from dsforge.diagnose.log_sources import stream_chunks

    paths = _paths(logs)
    given = sum((bool(paths), text is not None, error is not None, stream is not None))
    if given != 1:
        raise DsforgeError("give one of `logs`, `text`, `error` and `stream`")
    known = None if plan is None else _plan(plan)
    if paths:
        return DiagnoseResult(diagnose_files(paths, known))
    if stream is not None:
        return DiagnoseResult(diagnose_stream(stream_chunks(stream), "stdin", known))
    if error is not None:
        text, name = "".join(format_exception(error)), "traceback"
    else:
        name = "log"
    return DiagnoseResult(diagnose_stream([(text or "").encode("utf-8", "replace")], name, known))


def validate(
    table: PathInput,
    *,
    what: Quantity | None = None,
    sources: Iterable[str] = (),
    every: bool = False,
) -> ValidationDocument:
    """Predictions for the measured runs of a table, and how far off they are.

    Args:
        table: CSV of measured runs, one a row, with the columns of `benchmarks/published`.
        what: `memory` or `step_time`; both without it.
        sources: Only rows of these sources; all without it.
        every: Rows tagged incomplete, suspect, approximate or unverified, too.

    Returns:
        Every prediction beside its measurement (GiB, s), rows that were skipped, and the score.

    Raises:
        DsforgeError: The table cannot be read, or has no row of a source.

    Examples:
        >>> import dsforge
        >>> found = dsforge.validate("benchmarks/published/training.csv", what="memory")
        >>> found.summary.memory.overall.median < 0.1
        True

    """
    from dsforge.reading.source import path_of, read_text
    from dsforge.validate import parse_table, validation
    from dsforge.validate.document import QUANTITIES

    rows = parse_table(read_text(path_of(table, "table"), TABLE_BYTES), str(table))
    wanted = [name for name in map(str.strip, sources) if name]
    unknown = sorted(set(wanted) - {row.source for row in rows})
    if unknown:
        known = ", ".join(sorted({row.source for row in rows}))
        raise DsforgeError(f"{table} has no rows of {', '.join(unknown)}", f"it has {known}")
    if what is not None and what not in QUANTITIES:
        raise DsforgeError(f"`what` (={quoted(what)}) must be one of {', '.join(QUANTITIES)}")
    quantities = [quantity for quantity in QUANTITIES if what in (None, quantity)]
    return validation(rows, what=quantities, sources=wanted, every=every)


def _paths(paths: PathInput | Sequence[PathInput]) -> tuple[Path, ...]:
    """One path or several. Raises SpecError for what is none."""
    from dsforge.reading.source import path_of

    if isinstance(paths, Sequence) and not isinstance(paths, str | bytes):
        return tuple(path_of(path, "path") for path in paths)
    return (path_of(paths, "path"),)


def _plan(plan: Plan | PathInput) -> Plan:
    """The plan, or that of a file. Raises DsforgeError."""
    from dsforge.api.inputs import load_plan
    from dsforge.plan import Plan

    return plan if isinstance(plan, Plan) else load_plan(plan)


def against_of(
    model: ModelInput | None, cluster: ClusterInput | None, deepspeed: str | None
) -> Against:
    """The release, and the model and cluster where they are named. Raises DsforgeError."""
    from dsforge.lint.files import Against, release_named

    if deepspeed is not None and not isinstance(deepspeed, str):
        raise DsforgeError(f"`deepspeed` (={quoted(deepspeed)}) must be text, such as 0.16")
    against = Against(*release_named(deepspeed))
    if model is not None:
        from dsforge.api.inputs import load_model

        against = against._replace(model=load_model(model))
    if cluster is not None:
        from dsforge.api.inputs import load_cluster

        against = against._replace(cluster=load_cluster(cluster))
    return against


def masked_finding(finding: Finding) -> Finding:
    """A finding that quotes no secret of the file."""
    from dsforge.masking import masked

    return finding._replace(
        message=masked(finding.message), fix=masked(finding.fix), path=masked(finding.path)
    )


def _repaired(path: Path, document: Document, against: Against) -> tuple[Document, str]:
    """The document after its repairs, or as it is where they could not be written; with a note."""
    from dsforge.lint.files import NotRepairedError, repaired
    from dsforge.train.config_check import is_broken_by, is_installed

    try:
        now = repaired(path, document, against, is_broken_by if is_installed() else None)
    except NotRepairedError as error:
        return document, f"not repaired: {error.message}" + (
            f" ({error.hint})" if error.hint else ""
        )
    return now, "" if now is document else f"repaired {path}"
