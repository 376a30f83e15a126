"""Verification of a whole checkpoint, to be run before the machines are released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dsforge.checkpoints.findings import error
from dsforge.checkpoints.folder import Folder, find_checkpoint
from dsforge.checkpoints.verify.expected_shapes import (
    Wanted,
    adapter_findings,
    are_adapters_alone,
    plain_name,
    shape_findings,
)
from dsforge.checkpoints.verify.plain_weights import other_file_findings, weight_findings
from dsforge.checkpoints.verify.rank_files import CHECKS, Opened
from dsforge.checkpoints.verify.sharded_folder import sharded_findings
from dsforge.checkpoints.verify.torch_file import Depth, content_findings, opened_archive
from dsforge.checkpoints.verify.universal_folder import universal_findings
from dsforge.checkpoints.weights.weight_files import weight_files
from dsforge.checkpoints.zero.split_ranks import is_split, read_ranks, states_shares
from dsforge.checkpoints.zero.stated_values import MISFITS
from dsforge.errors import DsforgeError
from dsforge.findings import Finding, worst_first

__all__ = ["Wanted", "verify", "verify_folder"]
MAX_FINDINGS_PER_RULE = 20  # findings of one rule that are listed one by one


def verify(
    path: Path, *, checksums: bool = True, values: bool = False, wanted: Wanted | None = None
) -> list[Finding]:
    """Everything that is wrong with the checkpoint at a path; errors first.

    `checksums` reads all bytes; without it only what the files say of themselves. `values` counts
    NaN and infinity in every tensor. Raises DsforgeError where there is no checkpoint at all.
    """
    return verify_folder(find_checkpoint(path), checksums=checksums, values=values, wanted=wanted)


def verify_folder(
    folder: Folder, *, checksums: bool = True, values: bool = False, wanted: Wanted | None = None
) -> list[Finding]:
    """Everything that is wrong with a checkpoint that was found, and not with another one.

    A path would be looked up again, and a `latest` in the folder itself would lead elsewhere.
    """
    wanted, depth = wanted or Wanted(), Depth(checksums, values)
    if folder.kind == "file":
        found = weight_findings(folder, depth, wanted)
    elif folder.kind == "huggingface":
        found = _huggingface(folder.path, depth, wanted)
    elif folder.kind == "torch":
        found = sharded_findings(folder, depth, wanted)
    elif folder.kind == "universal":
        found = universal_findings(folder, depth)
    else:
        found = _deepspeed(folder, depth, wanted)
    if folder.pointer:
        found += _pointer_folder(folder.pointer.parent, depth, wanted)
    return shortened(list(worst_first(found)))


def shortened(found: list[Finding]) -> list[Finding]:
    """Findings, with a limit on the number of those of one rule."""
    counts = Counter(finding.rule for finding in found)
    shown: Counter[str] = Counter()
    kept = []
    for finding in found:
        rule = finding.rule
        shown[rule] += 1
        if shown[rule] <= MAX_FINDINGS_PER_RULE:
            kept.append(finding)
        elif shown[rule] == counts[rule]:
            more = f"and {counts[rule] - MAX_FINDINGS_PER_RULE:,} more like this"
            kept.append(Finding(rule, finding.severity, more, file="..."))
    return kept


def _huggingface(folder: Path, depth: Depth, wanted: Wanted) -> list[Finding]:
    """A folder of transformers: the weights, and what the Trainer left beside them."""
    found = weight_findings(Folder(folder, "huggingface"), depth, wanted)
    return found + other_file_findings(folder, {*weight_files(folder)}, depth)


def _pointer_folder(folder: Path, depth: Depth, wanted: Wanted) -> list[Finding]:
    """The folder with `latest`: weights, as the Trainer saves both, and what else torch loads."""
    found: list[Finding] = []
    known = {*weight_files(folder)}
    if known:
        found += weight_findings(Folder(folder, "huggingface"), depth, wanted)
    return found + other_file_findings(folder, known, depth, below=False)


def _deepspeed(folder: Folder, depth: Depth, wanted: Wanted) -> list[Finding]:
    """A folder with the files of ranks."""
    opened, found = Opened(folder), []
    for file in folder.files:
        archive, own = opened_archive(file.path)
        found += own
        if archive is not None:
            opened.archives[file] = archive
    for check in CHECKS:
        try:
            found += check(opened)
        except (*MISFITS, DsforgeError) as failure:
            why = f"differs from what was saved: {type(failure).__name__}: {str(failure)[:200]}"
            found.append(error("content-unknown", folder.path.name, why))
    for archive in opened.archives.values():
        found += content_findings(archive, depth)
    found += other_file_findings(folder.path, {file.path for file in folder.files}, depth)
    if not any(finding.severity == "error" for finding in found):
        found += _whole_parameters(opened, wanted)
    return found


def _whole_parameters(opened: Opened, wanted: Wanted) -> Iterator[Finding]:
    """The parts of all ranks make up every parameter, and those the model."""
    folder = opened.folder
    archives = {file.path: archive for file, archive in opened.archives.items()}
    told = not is_split(folder) or states_shares(folder, archives.__getitem__)
    if folder.of("expert") or not told:
        return
    try:
        saved = read_ranks(folder, archives.__getitem__)
    except DsforgeError as failure:
        yield error("parts-lacking", folder.path.name, failure.message)
        return
    atoms = {**saved.trained, **saved.frozen}
    if not atoms:
        yield error("weights-missing", folder.path.name, "contains no weights")
    shapes = {name: atom.shape for name, atom in atoms.items()}
    if are_adapters_alone(shapes):
        yield from adapter_findings(folder.path.name, shapes, wanted)
        return
    held = {plain_name(name): shape for name, shape in shapes.items() if ".lora_" not in name}
    yield from shape_findings(folder.path.name, held, wanted)
