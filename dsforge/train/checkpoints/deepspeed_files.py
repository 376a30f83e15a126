"""DeepSpeed's files of a checkpoint: written by its engine, compared with what it held.

Also how many bytes they will take, by what the engine holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsforge.checkpoints.output.disk import drop_from_cache
from dsforge.checkpoints.torch_files.archive import Archive, tensors_in
from dsforge.checkpoints.zero.shares import SHARES, written_shares
from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.note import FileNote, noted_file
from dsforge.train.checkpoints.reshape import shares_states
from dsforge.train.checkpoints.written import OwnFiles, reason
from dsforge.train.model.trained_state import saves_trained_state_only
from dsforge.train.parallel.autotp import shares_of


@dataclass(slots=True)
class CheckedFiles:
    """DeepSpeed's writer of files, each compared after it was written; failures are kept.

    A failure is not raised where it happens: the other ranks would wait in a barrier for this one.
    """

    inner: Any
    files: dict[str, FileNote] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file and read it back."""
        file = Path(path)
        try:
            self.inner.save(state_dict, path)
            drop_from_cache(file)
            compare(state_dict, file)
            self.files[file.name] = noted_file(file)
        except (OSError, RuntimeError, DsforgeError) as error:
            self.failures.append(f"{file.name}: {reason(error, file.parent)}")


def checkpoint_bytes(engine: Any) -> int:
    """Bytes that this rank's part of a checkpoint of a DeepSpeed engine will take.

    The states and master weights of every rank, and the weights in use once: stage 3 saves only
    the frozen ones of those, adapters are saved alone. What else is in the files is small.
    """
    import torch.distributed

    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    states = [t for own in inner.state.values() for t in own.values()]
    flats = getattr(optimizer, "fp32_partitioned_groups_flat", None)
    masters = flats or [p for group in inner.param_groups for p in group["params"]]
    sharded = engine.zero_optimization_partition_weights()
    weights = [p for p in engine.module.parameters() if not (sharded and p.requires_grad)]
    if saves_trained_state_only(engine.module):
        weights = [p for p in weights if p.requires_grad]
    writes = torch.distributed.get_rank(engine.seq_data_parallel_group) == 0
    own = sum(map(_bytes, weights)) if writes or sharded else 0
    if engine.zero_optimization() or writes:
        apart = {t.data_ptr() for t in weights if t.numel()}
        own += sum(_bytes(t) for t in (*states, *masters) if _address(t) not in apart)
    return own


def _bytes(value: Any) -> int:
    """Bytes of a tensor on this rank; of a parameter under stage 3, of its part."""
    part = getattr(value, "ds_tensor", value)
    return int(part.numel() * part.element_size()) if hasattr(part, "numel") else 0


def _address(value: Any) -> int:
    """Where a tensor begins in memory, so that none is counted twice."""
    return int(value.data_ptr()) if hasattr(value, "data_ptr") and value.numel() else -1


def write(engine: Any, folder: Path, tag: str) -> OwnFiles:
    """Have DeepSpeed write its files into `folder/tag`, and compare them. All ranks call it."""
    checked = engine.checkpoint_engine
    if not isinstance(checked, CheckedFiles):
        checked = engine.checkpoint_engine = CheckedFiles(engine.checkpoint_engine)
        # DeepSpeed copies a script beside each checkpoint on one rank only, and where the disk is
        # full that rank leaves the others in a barrier. `dsforge ckpt export` does its work.
        engine._copy_recovery_script = lambda _: None  # noqa: SLF001
    checked.files, checked.failures = {}, []
    engine.save_checkpoint(
        str(folder),
        tag=tag,
        save_latest=False,
        client_state=_shares(engine),
        exclude_frozen_parameters=saves_trained_state_only(engine.module),
    )
    return OwnFiles(checked.files, checked.failures)


def names_parts(engine: Any) -> bool:
    """Whether a checkpoint of this engine can be resumed on other tensor and pipeline ranks.

    In fp32 without ZeRO, DeepSpeed's pipeline numbers its optimizer states and does not say whose
    they are.
    """
    try:
        shares_of(engine.module)
    except DsforgeError:
        return False
    return shares_states(engine) or not hasattr(engine.module, "names_in_model")


def _shares(engine: Any) -> dict[str, Any]:
    """What the files say of the parts that tensor and pipeline ranks hold; nothing if none do."""
    if engine.mp_world_size == 1 or not names_parts(engine):
        return {}
    return {SHARES: written_shares(shares_of(engine.module))}


def compare(state_dict: Any, file: Path) -> None:
    """Compare a file with the tensors that were to be in it. Raises DsforgeError."""
    import numpy as np
    import torch

    archive = Archive(file)
    stored = dict(tensors_in(archive.value))
    held = dict(_named_tensors(state_dict, ""))
    if stored.keys() != held.keys():
        odd = sorted(stored.keys() ^ held.keys())
        raise DsforgeError(f"does not contain the tensors of the engine: {', '.join(odd[:3])}")
    for name, tensor in held.items():
        found = stored[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if found.shape != tuple(tensor.shape) or found.storage.dtype != dtype:
            raise DsforgeError(f"`{name}` is {found.storage.dtype} {found.shape} on the disk")
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if not np.array_equal(archive.flat(found).view(np.uint8), flat):
            raise DsforgeError(f"`{name}` has different values on disk")


def _named_tensors(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every tensor in a state dict, under the names that `tensors_in` gives those in a file."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _named_tensors(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _named_tensors(inner, f"{path}[{number}]")
