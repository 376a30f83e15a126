"""Verification of a checkpoint of plain torch: shards of tensors in safetensors files."""

from __future__ import annotations

from dsforge.checkpoints.findings import error
from dsforge.checkpoints.folder import Folder
from dsforge.checkpoints.sharded_tensors import read_sharded
from dsforge.checkpoints.verify.expected_shapes import Wanted, plain_name, shape_findings
from dsforge.checkpoints.verify.plain_weights import other_file_findings
from dsforge.checkpoints.verify.torch_file import Depth, nonfinite_findings
from dsforge.checkpoints.weights.weight_files import nonfinite_weights, weight_files
from dsforge.errors import DsforgeError
from dsforge.findings import Finding


def sharded_findings(folder: Folder, depth: Depth, wanted: Wanted) -> list[Finding]:
    """What is wrong with the files, with the tensors that they make up, and with their values."""
    files = weight_files(folder.path)
    found = other_file_findings(folder.path, {*files}, depth)
    try:
        saved = read_sharded(folder.path)
    except DsforgeError as failure:
        return [*found, error("parts-lacking", folder.path.name, failure.message, failure.hint)]
    for file in files if depth.values else ():
        found += nonfinite_findings(file.name, nonfinite_weights(file))
    held = {plain_name(n): a.shape for n, a in saved.trained.items() if ".lora_" not in n}
    if held:
        found += shape_findings(folder.path.name, held, wanted)
    return found
