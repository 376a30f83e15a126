"""Parameters of the weights beside a config.json, to check what was read from it.

A config that is misread plans another model. The weights say how many parameters there are: in the
index of a sharded checkpoint, or in the header of a single safetensors file. Neither needs torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsforge.checkpoints.weights.safetensors_header import read_header
from dsforge.errors import DsforgeError, Problem, SpecError
from dsforge.estimate.params import parameter_counts
from dsforge.specs import ModelSpec
from dsforge.units import count

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAX_INDEX_BYTES = 64 << 20
TOLERANCE = 0.02
BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = ("float64", "float32", "float16", "bfloat16")


def check_stored(model: ModelSpec, config: Mapping[str, Any], folder: Path) -> None:
    """Compare the parameters read from a config with those stored. SpecError where they differ.

    Nothing is compared where nothing usable is stored, or packed in fewer bits.
    """
    found = None if "quantization_config" in config else _stored(folder, config)
    if found is None:
        return
    stored, place = found
    most = _with_extras(model, config)
    least = parameter_counts(model).total
    if any(least * (1 - TOLERANCE) <= size <= most * (1 + TOLERANCE) for size in stored):
        return
    sizes = " or ".join(f"{size:,} ({count(size)})" for size in stored)
    message = (
        f"config.json describes {least:,} parameters ({count(least)}), but {place} contains {sizes}"
    )
    hint = "they belong to different models, or the architecture is not supported: check both files"
    raise SpecError((Problem("model-size-contradiction", message, hint, str(folder)),), message)


def _with_extras(model: ModelSpec, config: Mapping[str, Any]) -> int:
    """Parameters with a tied head stored twice, and with multi-token-prediction layers."""
    counts = parameter_counts(model)
    head = counts.embedding if model.tied_embeddings else 0
    stated = config.get("num_nextn_predict_layers")
    extra = stated if isinstance(stated, int) and not isinstance(stated, bool) else 0
    extra = max(0, min(extra, model.layers))  # each with a projection, and its own embeddings
    each = counts.layers[-1].total + 2 * model.hidden_size**2 + 2 * counts.embedding
    return counts.total + head + extra * each


def _stored(folder: Path, config: Mapping[str, Any]) -> tuple[tuple[int, ...], str] | None:
    """Parameters that the weights may have, and the file that says so; none where none does."""
    index = _object(folder / INDEX, MAX_INDEX_BYTES)
    metadata = index.get("metadata") if index else None
    if not isinstance(metadata, Mapping):
        size = _in_header(folder / SINGLE)
        return None if size is None else ((size,), SINGLE)
    total = _count(metadata.get("total_parameters"))
    size_bytes = _count(metadata.get("total_size"))
    if total is not None:
        return (total,), INDEX
    if size_bytes is None:
        return None
    dtype = config.get("dtype", config.get("torch_dtype"))
    widths = (BYTES_OF[dtype],) if dtype in BYTES_OF else tuple(sorted(set(BYTES_OF.values())))
    return tuple(size_bytes // width for width in widths), INDEX


def _count(value: object) -> int | None:
    """The value where it is a whole number above 0."""
    right = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if right and isinstance(value, int) else None


def _object(path: Path, most_bytes: int) -> dict[str, Any] | None:
    """The JSON object of a regular file of bounded size; none where it is none."""
    try:
        if not path.is_file() or path.stat().st_size > most_bytes:
            return None
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _in_header(path: Path) -> int | None:
    """Elements of the floating-point tensors of a safetensors file; none where it is no such."""
    try:
        tensors, _, _ = read_header(path)
    except DsforgeError:
        return None
    if any(tensor.dtype not in FLOATS for tensor in tensors):
        return None
    return _count(sum(math.prod(tensor.shape) for tensor in tensors))
