"""Universal checkpoints: one folder for each parameter, as DeepSpeed's converter writes them."""

from __future__ import annotations

from pathlib import Path

from dsforge.ckpt.archive import Archive, tensors_in
from dsforge.ckpt.findings import Finding, error, listed
from dsforge.ckpt.folder import Folder
from dsforge.errors import DsforgeError


def atom_folders(folder: Path) -> dict[str, dict[str, Path]]:
    """The files of each parameter, by its name and then by the name of the state."""
    found: dict[str, dict[str, Path]] = {}
    for inside in sorted(p for p in (folder / "zero").iterdir() if p.is_dir()):
        found[inside.name] = {file.stem: file for file in sorted(inside.glob("*.pt"))}
    return found


def universal_findings(folder: Folder, *, checksums: bool) -> list[Finding]:
    """What is wrong with a universal checkpoint."""
    atoms = atom_folders(folder.path)
    found: list[Finding] = []
    common = folder.path / "zero" / "optimizer_state.pt"
    if not common.is_file():
        found.append(error("file-missing", "zero/optimizer_state.pt", "is not there"))
    if not folder.files:
        found.append(error("model-missing", folder.path.name, "no *_model_states.pt"))
    weightless = [name for name, files in atoms.items() if "fp32" not in files]
    if weightless or not atoms:
        many = listed(weightless) if atoms else "any parameter"
        found.append(error("weights-missing", "zero", f"no fp32.pt of {many}"))
    usual = max((set(files) for files in atoms.values()), key=len, default=set())
    partial = [n for n, files in atoms.items() if len(files) > 1 and set(files) != usual]
    if partial:
        found.append(error("states-missing", "zero", f"not all states of {listed(partial)}"))
    for name, files in atoms.items():
        for file in files.values():
            found += _atom(name, file, checksums=checksums)
    return found


def _atom(name: str, file: Path, *, checksums: bool) -> list[Finding]:
    """What is wrong with one state of one parameter."""
    place = f"zero/{name}/{file.name}"
    try:
        archive = Archive(file)
        tensors = [tensor for _, tensor in tensors_in(archive.value)]
        lacking = [*archive.lacking()]
    except DsforgeError as failure:
        return [error("file-unreadable", place, failure.message)]
    found = [error("tensor-cut", place, line) for line in lacking]
    if file.stem != "step" and any(tensor.elements == 0 for tensor in tensors):
        found.append(error("tensor-empty", place, "is empty"))
    if checksums:
        found += [error("bytes-changed", place, line) for line in archive.damage()]
    return found
