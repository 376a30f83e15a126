"""The only place that loads files of a checkpoint with torch: without running what is in them.

A pickle can call anything by its name. So a file is read by `Archive` first, which knows the names
that checkpoints need, and then by torch with `weights_only=True` and the few classes of DeepSpeed
in its list. Both have to agree. DeepSpeed itself loads with `weights_only=False`: within
`strict_loading` its calls come here as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from dsforge.checkpoints.pickles.allowed_names import check_names
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.errors import DsforgeError, first_line

# What DeepSpeed 0.14 to 0.19 writes into its files; some are not in every release.
CLASSES = (
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "LossScalerBase"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
    ("deepspeed.checkpoint.universal_checkpoint", "SubparamShape"),
    ("argparse", "Namespace"),
)


@contextmanager
def strict_loading() -> Iterator[None]:
    """Everything that is loaded with torch within goes through the same checks."""
    import torch

    original = torch.load

    def load(f: Any, map_location: Any = None, *_: Any, mmap: bool = False, **__: Any) -> Any:
        return _load(original, f, map_location=map_location, mmap=mmap)

    torch.load = load
    try:
        yield
    finally:
        torch.load = original


def check_file(path: Path) -> None:
    """Raises DsforgeError where a file names anything that no checkpoint needs."""
    check_names(Archive(path).pickled, path.name)


def _load(load: Any, path: Any, **options: Any) -> Any:
    """The values in a file, where both readers find nothing but what checkpoints need."""
    from torch.serialization import safe_globals

    if not isinstance(path, str | Path):
        raise DsforgeError("checkpoints are loaded from files only")
    check_file(Path(path))
    options["mmap"] = options["mmap"] or None
    try:
        with safe_globals([*_known_classes()]):
            return load(path, weights_only=True, **options)
    except Exception as error:  # pickle's, zip's, tensors that do not fit: all of them mean no
        message = f"{Path(path).name} cannot be loaded: {first_line(error)}"
        raise DsforgeError(message, "`dsforge ckpt verify` lists its problems") from error


def _known_classes() -> Iterator[Any]:
    """The classes of DeepSpeed that are in this release, and a way to the members of one."""
    for module, name in CLASSES:
        found = getattr(import_module(module), name, None)
        if found is not None:
            yield found
    # Python 3.11.2 writes members of an enum as getattr(ZeroStageEnum, "gradients").
    yield (_member, "builtins.getattr")
    yield (_member, "__builtin__.getattr")


def _member(of: Any, name: str) -> Any:
    """The member of DeepSpeed's enum of stages. Raises TypeError for anything else."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    if of is not ZeroStageEnum or not isinstance(name, str) or name not in of.__members__:
        raise TypeError("the checkpoint uses an attribute that is not a ZeRO stage")
    return of.__members__[name]
