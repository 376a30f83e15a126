"""Names in the files of tensor and pipeline ranks, before DeepSpeed's converter uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsforge.ckpt.archive import Archive
from dsforge.ckpt.folder import Folder
from dsforge.ckpt.path_names import check_parameters, check_states
from dsforge.ckpt.stated import MISFITS, inner_optimizer
from dsforge.errors import DsforgeError


def check_split(folder: Folder) -> None:
    """Raises DsforgeError where files of tensor or pipeline ranks hold names that are no files'.

    DeepSpeed's converter makes folders and files of them.
    """
    for file in folder.files:
        value = Archive(file.path).value
        try:
            for parameters, states in _named(value, file.kind):
                check_parameters(parameters)
                check_states(states)
        except MISFITS as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            raise DsforgeError(f"{file.path.name} is not as DeepSpeed saves it ({why})") from error


def _named(value: dict[str, Any], kind: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """Names of parameters and of their states in the file of a rank."""
    if kind == "optimizer":
        state = value["optimizer_state_dict"]
        mappings = state.get("param_slice_mappings") or ()
        inner = inner_optimizer(state)["state"]
        own = [k for flat in inner.values() for k, t in flat.items() if k != "step"]
        yield [name for mapping in mappings for name in mapping], own
        return
    shapes = value.get("param_shapes") or ()
    groups = shapes if isinstance(shapes, list | tuple) else [shapes]
    weights = value.get("module") if kind == "model" else value
    yield [name for group in groups for name in group], []
    yield [*(weights if isinstance(weights, dict) else ())], []
    yield [*(value.get("shared_params") or ()), *(value.get("frozen_param_shapes") or ())], []
