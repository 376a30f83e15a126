"""Checkpoints through torch.distributed.checkpoint, as safetensors: each rank writes its shards.

torch's own format keeps an index that is a pickle; its writer of safetensors keeps the place of
each shard in the header of the file, so nothing that is read can run code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsforge.checkpoints.output.disk import drop_from_cache
from dsforge.checkpoints.sharded_tensors import OPTIMIZER
from dsforge.errors import DsforgeError, first_line
from dsforge.train.checkpoints.note import noted_file
from dsforge.train.checkpoints.written import OwnFiles, reason
from dsforge.train.engines.plain_torch.state import TrainingState

USE_ANOTHER = "use an older checkpoint"


def own_bytes(tensors: Mapping[str, Any], *, states_are_own: bool, stages: int = 1) -> int:
    """Bytes that this rank writes: its shards, and its part of what other ranks hold as well.

    `states_are_own`: no other rank has the optimizer states of this one, whole as they are.
    """
    import torch.distributed

    ranks, total = torch.distributed.get_world_size() // stages, 0.0
    for name, tensor in tensors.items():
        own = local(tensor)
        copies = ranks * own.numel() / max(1, tensor.numel())  # 1 where all ranks share it
        if states_are_own and name.startswith(OPTIMIZER):
            copies = 1.0
        total += own.numel() * own.element_size() / max(1.0, copies)
    return round(total)


def local(tensor: Any) -> Any:
    """The part of a tensor that is on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def write(tensors: Mapping[str, Any], folder: Path) -> OwnFiles:
    """Write the shards of this rank into a folder and compare them; all ranks call it."""
    import torch.distributed
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        checkpoint.save(dict(tensors), storage_writer=writer)
    except Exception as error:  # every rank gets the failures of all
        return OwnFiles({}, [reason(error, folder.parent)])
    rank = torch.distributed.get_rank()
    found = OwnFiles({}, [])
    for file in sorted(folder.glob(f"shard-{rank + 1:05d}-*.safetensors")):
        try:
            drop_from_cache(file)
            compare(tensors, file)
            found.files[file.name] = noted_file(file)
        except (OSError, DsforgeError) as error:
            found.failures.append(f"{file.name}: {reason(error, folder.parent)}")
    return found


def compare(tensors: Mapping[str, Any], file: Path) -> None:
    """Compare a file with the tensors that this rank holds. Raises DsforgeError, OSError."""
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a dict
                held, there = local(tensors[name]).cpu().contiguous(), stored.get_tensor(name)
                if held.shape != there.shape or held.dtype != there.dtype:
                    raise DsforgeError(f"`{name}` is {there.dtype} {tuple(there.shape)} on disk")
                flat = (t.reshape(-1).view(torch.uint8) for t in (held, there))
                if not torch.equal(*flat):
                    raise DsforgeError(f"`{name}` has different values on disk")
    except (SafetensorError, KeyError) as error:
        raise DsforgeError(f"cannot be read back: {first_line(error)}") from error


def load(path: Path, module: Any, state: TrainingState) -> None:
    """Load a checkpoint into a model and its optimizer, whatever ranks and strategy wrote it.

    All ranks call it. Raises DsforgeError.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(path))
    try:
        stored = reader.read_metadata().state_dict_metadata
        targets = state.targets(module, stored)
        checkpoint.load(targets, storage_reader=reader)
    except DsforgeError:
        raise
    except Exception as error:  # whatever torch and safetensors find in a file
        message = f"{path.name} cannot be loaded: {first_line(error)}"
        raise DsforgeError(message, USE_ANOTHER) from error
    state.take(module, targets)
