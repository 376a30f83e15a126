"""Checkpoints of `dsforge train` on plain torch: shards of tensors in safetensors files.

torch.distributed.checkpoint writes one file a rank, and the place of each shard in its header. Here
the shards of a tensor are put together again, without torch, so that an engine of another kind can
take them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsforge.checkpoints.files import opened, parse_json, read_at
from dsforge.checkpoints.path_names import check_parameters, check_states
from dsforge.checkpoints.pickles.values import Storage, StoredTensor
from dsforge.checkpoints.weights.bit_types import BITS
from dsforge.checkpoints.weights.safetensors_header import Entry, read_entries, read_metadata
from dsforge.checkpoints.zero.atoms import WEIGHTS, Atom, Piece
from dsforge.checkpoints.zero.parameters import Saved
from dsforge.errors import DsforgeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLACES, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # torch's names in the header
# Names of what `dsforge train` stores: weights and optimizer states by parameter, progress.
MODEL, OPTIMIZER, PROGRESS = "model.", "optimizer.", "progress."
STEP = "step"  # the state that is one number
SCHEDULE, SCALE, GROWTH = (f"{PROGRESS}{name}" for name in ("schedule", "scale", "growth"))
MAX_DIMENSIONS = 64  # of numpy
AGAIN = "use another checkpoint"


class Shard(NamedTuple):
    """A part of a tensor in a file, and where it begins in each dimension."""

    file: Path
    entry: Entry
    offsets: tuple[int, ...]


@dataclass(slots=True)
class ShardedTensors:
    """Tensors of a folder of shards; the last one that was read stays in memory."""

    shards: Mapping[str, list[Shard]]
    _name: str = ""
    _whole: Any = field(default=None)

    def stored(self, name: str) -> StoredTensor:
        """A tensor by its name: its type and whole shape. Raises DsforgeError."""
        parts = self.shards[name]
        kinds = {part.entry.dtype for part in parts}
        depths = {len(part.entry.shape) for part in parts}
        if len(kinds) > 1 or len(depths) > 1 or not kinds <= BITS.keys():
            raise DsforgeError(f"the shards of `{name[:80]}` do not fit together", AGAIN)
        ends = [
            [at + size for at, size in zip(part.offsets, part.entry.shape, strict=True)]
            for part in parts
        ]
        shape = tuple(map(max, *ends)) if len(ends) > 1 else tuple(ends[0])
        count = math.prod(shape)
        if sum(math.prod(part.entry.shape) for part in parts) != count:
            raise DsforgeError(f"`{name[:80]}` lacks elements of its {count}", AGAIN)
        strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
        return StoredTensor(Storage(name, kinds.pop(), count), 0, shape, strides)

    def elements(self, tensor: StoredTensor, begin: int, end: int) -> NDArray[Any]:
        """The bits of elements `begin` to `end` of a tensor. Raises DsforgeError."""
        if tensor.storage.key != self._name:
            self._whole, self._name = self._read(tensor), tensor.storage.key
        return self._whole[begin:end]  # type: ignore[no-any-return]

    def _read(self, tensor: StoredTensor) -> NDArray[Any]:
        """The bits of a whole tensor, flat."""
        import numpy as np

        bits = np.dtype(BITS[tensor.storage.dtype])
        whole = np.empty(tensor.shape, dtype=bits)
        covered = np.zeros(tensor.shape, dtype=bool)
        for file, entry, offsets in self.shards[tensor.storage.key]:
            with opened(file) as descriptor:
                content = read_at(descriptor, entry.begin, entry.end - entry.begin)
            part = np.frombuffer(content, dtype=bits)
            if part.size != math.prod(entry.shape):
                raise DsforgeError(f"{file.name} ends within `{entry.name[:80]}`", AGAIN)
            places = tuple(
                slice(at, at + size) for at, size in zip(offsets, entry.shape, strict=True)
            )
            whole[places], covered[places] = part.reshape(entry.shape), True
        if not covered.all():
            raise DsforgeError(f"shards of `{tensor.storage.key[:80]}` overlap", AGAIN)
        return whole.reshape(-1)


def read_shards(folder: Path) -> ShardedTensors:
    """The tensors in the files of all ranks. Raises DsforgeError."""
    found: dict[str, list[Shard]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        places = parse_json(file.name, read_metadata(file).get(PLACES, "{}").encode())
        for entry in read_entries(file):
            found.setdefault(entry.name, []).append(Shard(file, entry, _offsets(places, entry)))
    if not found:
        raise DsforgeError(f"{folder} contains no file of shards (*.safetensors)", AGAIN)
    return ShardedTensors(found)


def _offsets(places: Any, entry: Entry) -> tuple[int, ...]:
    """Where a shard begins, as its file says. Raises DsforgeError."""
    own = places.get(entry.name) if isinstance(places, dict) else None
    offsets = own.get(OFFSETS) if isinstance(own, dict) else None
    found = tuple(offsets) if isinstance(offsets, list) else ()
    fits = len(found) == len(entry.shape) <= MAX_DIMENSIONS and isinstance(offsets, list)
    if not fits or not all(type(at) is int and at >= 0 for at in found):
        raise DsforgeError(f"nothing says where `{entry.name[:80]}` belongs", AGAIN)
    return found


def read_sharded(folder: Path) -> Saved:
    """A checkpoint of plain torch, parameter by parameter. Raises DsforgeError."""
    tensors = read_shards(folder)
    states: dict[str, dict[str, tuple[Piece, ...]]] = {}
    numbers: dict[str, float] = {}
    for name in tensors.shards:
        stored = tensors.stored(name)
        parameter, state = _parameter_and_state(name)
        if name.startswith(PROGRESS) or state == STEP:
            numbers[STEP if state == STEP else name] = _number(tensors, stored)
        else:
            piece = Piece(tensors, stored, 0, stored.elements)
            states.setdefault(parameter, {})[state] = (piece,)
    check_parameters(states)
    check_states({state for own in states.values() for state in own if state != WEIGHTS})
    if any(WEIGHTS not in own for own in states.values()):
        raise DsforgeError(f"{folder.name} has optimizer states of parameters without weights")
    trained = {
        name: Atom(own[WEIGHTS][0].tensor.shape, {WEIGHTS: own[WEIGHTS], **own})
        for name, own in states.items()
    }
    done = int(numbers.get(SCHEDULE, 0))
    return Saved(
        zero_stage=0,
        world_size=1,
        trained=trained,
        frozen={},
        buffers={},
        aliases={},
        scalars={STEP: numbers[STEP]} if STEP in numbers else {},
        groups=({},),
        scaler={"cur_scale": numbers[SCALE]} if SCALE in numbers else {},
        trained_in="float32",
        progress={"lr_scheduler": {"last_epoch": done, "lr_lambdas": [None]}},
    )


def _parameter_and_state(name: str) -> tuple[str, str]:
    """The parameter that a tensor belongs to, and which of its states it is."""
    if name.startswith(MODEL):
        return name.removeprefix(MODEL), WEIGHTS
    parameter, _, state = name.removeprefix(OPTIMIZER).rpartition(".")
    return parameter, state


def _number(tensors: ShardedTensors, stored: StoredTensor) -> float:
    """A number that is stored as a tensor. Raises DsforgeError."""
    if stored.shape != (1,) or stored.storage.dtype not in ("float64", "float32"):
        raise DsforgeError(f"`{stored.storage.key[:80]}` is not one number", AGAIN)
    value = float(tensors.elements(stored, 0, 1)[0])
    if not 0 <= value <= float(1 << 53):
        raise DsforgeError(f"`{stored.storage.key[:80]}` (={value:g}) is out of range", AGAIN)
    return value
