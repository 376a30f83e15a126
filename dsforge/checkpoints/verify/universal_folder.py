"""Universal checkpoints: one folder for each parameter, as DeepSpeed's converter writes them."""

from __future__ import annotations

from pathlib import Path

from dsforge.checkpoints.findings import error, listed
from dsforge.checkpoints.folder import PICKLED, Folder, files_below
from dsforge.checkpoints.torch_files.archive import tensors_in
from dsforge.checkpoints.verify.torch_file import (
    Depth,
    content_findings,
    file_findings,
    opened_archive,
)
from dsforge.findings import Finding


def atom_folders(folder: Path) -> dict[str, dict[str, Path]]:
    """The files of each parameter, by its name and then by the name of the state."""
    found: dict[str, dict[str, Path]] = {}
    for inside in sorted(p for p in (folder / "zero").iterdir() if p.is_dir()):
        found[inside.name] = {file.stem: file for file in sorted(inside.glob("*.pt"))}
    return found


def universal_findings(folder: Folder, depth: Depth) -> list[Finding]:
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
        found.append(error("states-missing", "zero", f"states are missing for {listed(partial)}"))
    inside = {file for files in atoms.values() for file in files.values()}
    for file in files_below(folder.path, PICKLED):
        place = str(file.relative_to(folder.path))
        found += _atom(place, file, depth) if file in inside else file_findings(file, depth, place)
    return found


def _atom(place: str, file: Path, depth: Depth) -> list[Finding]:
    """What is wrong with one state of one parameter."""
    archive, found = opened_archive(file, place)
    if archive is None:
        return found
    tensors = [tensor for _, tensor in tensors_in(archive.value)]
    if file.stem != "step" and any(tensor.elements == 0 for tensor in tensors):
        found.append(error("tensor-empty", place, "is empty"))
    return [*found, *content_findings(archive, depth, place)]
