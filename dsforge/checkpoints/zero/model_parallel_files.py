"""Checks of what files of tensor and pipeline ranks state, before DeepSpeed's converter uses it.

It makes folders and files of names, matches names with patterns from the files, and takes memory
for the shapes that they state. Where they do not say how tensor ranks share the weights, it puts
shards one behind the other, which is wrong for half of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from dsforge.checkpoints.folder import Folder
from dsforge.checkpoints.path_names import check_parameters, check_states
from dsforge.checkpoints.pickles.values import Foreign
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.zero.stated_values import MISFITS, inner_optimizer, shape_of
from dsforge.errors import DsforgeError

INFO = "universal_checkpoint_info"
MAX_LETTERS, MAX_REPEATS = 1_000, 3  # of a pattern; each repeat multiplies the time to match
# Letters, classes and groups; what repeats is one character, so that no pattern takes for ever.
_ONE = r"(?:\\[^\W\d]|\\[\W_]|\.|[\w\-/: ,=]|\[\^?[\w\-.]+\])"
PATTERN = re.compile(rf"(?:{_ONE}(?:[+*?]\??)?|[\^$|()]|\(\?:)*", re.ASCII)
REPEAT = re.compile(r"(?<!\\)[+*]")


def check_split(folder: Folder) -> None:
    """Raises DsforgeError where DeepSpeed's converter cannot be given a folder.

    A name that is none of a file, a pattern or a shape that costs too much, or tensor ranks that do
    not say how they share the weights.
    """
    if not any(file.kind == "optimizer" for file in folder.files):
        hint = (
            "resume it with the number of ranks that wrote it; only runs under ZeRO are converted"
        )
        raise DsforgeError(f"{folder.path} contains no optimizer states of ZeRO ranks", hint)
    size = sum(file.path.stat().st_size for file in folder.files)
    told = False
    for file in folder.files:
        value = Archive(file.path).value
        try:
            for parameters, states in _named(value, file.kind):
                check_parameters(parameters)
                check_states(states)
            told |= _check_layout(value, size)
        except MISFITS as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            raise DsforgeError(
                f"{file.path.name} does not have the format of DeepSpeed ({why})"
            ) from error
    if not told and _tensor_ranks(folder) > 1:
        message = f"{folder.path} does not describe how its tensor-parallel ranks shard the weights"
        raise DsforgeError(
            f"{message} (`{INFO}`)", "resume it with the number of ranks that wrote it"
        )


def _tensor_ranks(folder: Folder) -> int:
    """Tensor ranks by the names of files; with a pipeline, its layers tell them from stages."""
    files = folder.of("layer") or folder.of("model")
    return 1 + max((file.model_rank for file in files), default=0)


def _check_layout(value: dict[str, Any], size: int) -> bool:
    """Whether a file says how weights are shared. Raises ValueError where that costs too much."""
    state = value.get("optimizer_state_dict")
    told = False
    for info in (value.get(INFO), state.get(INFO) if isinstance(state, dict) else None):
        if info is None:
            continue
        if not isinstance(info, dict):
            raise ValueError(f"`{INFO}` is not a dict")  # noqa: TRY004 - what callers expect
        told |= bool(info)
        for text in _texts(info):
            if len(text) > MAX_LETTERS or not PATTERN.fullmatch(text):
                raise ValueError(
                    f"a pattern that could take exponential time to match: {text[:80]!a}"
                )
            if len(REPEAT.findall(text)) > MAX_REPEATS:
                raise ValueError(f"a pattern of more than {MAX_REPEATS} repeats: {text[:80]!a}")
        for shape in _shapes(info):
            if math.prod(shape_of(shape)) > size:
                raise ValueError("a shape of more elements than the files have bytes")
    return told


def _texts(value: Any) -> Iterator[str]:
    """All texts in nested values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, Foreign):
        yield from _texts((value.arguments, value.state, value.items))


def _shapes(value: Any) -> Iterator[Any]:
    """All values in nested dicts that are named as shapes of whole tensors."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("logical_shape", "shard_shape"):
                yield inner
            else:
                yield from _shapes(inner)


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
