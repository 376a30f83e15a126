"""Verification of plain weight files and of the files beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dsforge.checkpoints.files import read_json
from dsforge.checkpoints.findings import error, listed
from dsforge.checkpoints.folder import MAX_DEPTH, PICKLED, Folder, files_below
from dsforge.checkpoints.path_names import is_plain
from dsforge.checkpoints.verify.expected_shapes import Wanted, shape_findings
from dsforge.checkpoints.verify.torch_file import (
    GATHER,
    Depth,
    content_findings,
    file_findings,
    nonfinite_findings,
    opened_archive,
)
from dsforge.checkpoints.weights.weight_files import (
    Weight,
    nonfinite_weights,
    weight_files,
    weights_in,
    weights_of,
)
from dsforge.errors import DsforgeError
from dsforge.findings import Finding

MAX_INDEX_BYTES = 100_000_000


def weight_findings(folder: Folder, depth: Depth, wanted: Wanted) -> list[Finding]:
    """What is wrong with a folder or file of plain weights."""
    single = folder.kind == "file"
    files = [folder.path] if single else weight_files(folder.path)
    found: list[Finding] = []
    seen: dict[str, Weight] = {}
    for file in files:
        weights, own = _weights(file, depth)
        found += own
        empty = [weight.name for weight in weights if weight.elements == 0]
        if empty:
            many = f"{len(empty)} of {len(weights)} tensors are empty: {listed(empty)}"
            found.append(error("tensor-empty", file.name, many, GATHER))
        seen |= {weight.name: weight for weight in weights}
    if not single:
        found += _index(folder.path, seen)
    adapter = (folder.path / "adapter_config.json").is_file()
    if not adapter and not any(finding.severity == "error" for finding in found):
        held = {weight.name: weight.shape for weight in seen.values()}
        found += shape_findings(folder.path.name, held, wanted)
    return found


def _weights(file: Path, depth: Depth) -> tuple[list[Weight], list[Finding]]:
    """The tensors of a file of weights, and what is wrong with it."""
    if file.suffix != ".safetensors":
        archive, found = opened_archive(file)
        if archive is None:
            return [], found
        return weights_in(archive), [*found, *content_findings(archive, depth)]
    try:
        weights = weights_of(file)
        counts = nonfinite_weights(file) if depth.values else {}
    except DsforgeError as failure:
        return [], [error("file-unreadable", file.name, failure.message, failure.hint)]
    return weights, [*nonfinite_findings(file.name, counts)]


def other_file_findings(
    folder: Path, known: set[Path], depth: Depth, *, below: bool = True
) -> list[Finding]:
    """What is wrong with the torch files in a folder and below that are none of the known ones.

    The Trainer of transformers leaves its optimizer, schedule, random states and arguments beside
    the weights, and loads them with torch when it resumes.
    """
    found: list[Finding] = []
    for file in files_below(folder, PICKLED, depth=MAX_DEPTH if below else 0):
        if file not in known:
            found += file_findings(file, depth, str(file.relative_to(folder)))
    return found


def _index(folder: Path, seen: dict[str, Weight]) -> Iterator[Finding]:
    """Every weight of the index is in the shard that it names."""
    for index in sorted(folder.glob("*.index.json")):
        try:
            where = _weight_map(index)
        except DsforgeError as failure:
            yield error("index-unreadable", index.name, f"is not an index: {failure.message}")
            continue
        odd = sorted({repr(name)[:80] for name in where.values() if not is_plain(name)})
        if odd:
            yield error(
                "index-unreadable", index.name, f"{listed(odd)} is not a file of this folder"
            )
            continue
        files = sorted({name for name in where.values() if not (folder / name).is_file()})
        if files:
            message = f"names missing shards: {listed(files)}"
            yield error("shard-missing", index.name, message)
        away = set(files)
        lost = [
            n
            for n, f in where.items()
            if f not in away and (n not in seen or seen[n].file.name != f)
        ]
        if lost:
            message = f"names missing tensors: {listed(lost)}"
            yield error("tensor-missing", index.name, message)


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor by its name. Raises DsforgeError."""
    content = read_json(index, MAX_INDEX_BYTES)
    where = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(where, dict):
        raise DsforgeError("it has no `weight_map`")
    return where
