"""Whole parameters from the shards that ZeRO ranks wrote: the location of each element.

ZeRO flattens the parameters of a group, shards the flat vector and saves each shard: stages 1
and 2 shard the whole vector (`param_slice_mappings` says where each parameter is in a shard),
stage 3 shards every parameter separately into equal parts and packs those. This module finds
places in files only; nothing is read until elements of a parameter are asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsforge.checkpoints.folder import Folder
from dsforge.checkpoints.path_names import check_parameters, check_states
from dsforge.checkpoints.pickles.machine import MAX_COUNT
from dsforge.checkpoints.pickles.values import Foreign, StoredTensor
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.weights.bit_types import FLOATS
from dsforge.checkpoints.zero.atoms import WEIGHTS, Atom, Parameter, Piece
from dsforge.checkpoints.zero.shares import SHARES, read_shares
from dsforge.checkpoints.zero.stated_values import (
    MISFITS,
    inner_optimizer,
    partition_count,
    shape_of,
    stage_of,
    whole_number,
)
from dsforge.checkpoints.zero.unsharded_optimizer import located, settings
from dsforge.errors import DsforgeError


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint, parameter by parameter.

    `scalars` are states that a whole group shares (`step`); `groups` the optimizer's settings of
    each group of parameters; `aliases` tied names and what they are tied to; `trained_in` the type
    of the weights in use. `states_told` is false where nothing says whose the optimizer states are;
    `trained` then has the weights alone.
    """

    zero_stage: int
    world_size: int
    trained: Mapping[str, Parameter]
    frozen: Mapping[str, Parameter]
    buffers: Mapping[str, Parameter]
    aliases: Mapping[str, str]
    scalars: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    scaler: Mapping[str, Any]
    trained_in: str
    progress: Mapping[str, Any]
    states_told: bool = True

    def check_states(self) -> None:
        """Raise DsforgeError where optimizer states cannot be given to their parameters."""
        if not self.states_told:
            message = "without ZeRO, no file maps optimizer states to parameters"
            hint = "resume on the same ranks, or take the weights with `dsforge ckpt export`"
            raise DsforgeError(f"{message}, where there are several groups or frozen ones", hint)


def read_saved(folder: Folder, archive: Callable[[Path], Archive] = Archive) -> Saved:
    """The checkpoint in a folder. Raises DsforgeError where it is not whole or of another kind.

    `archive` is what opens a file: CheckedArchive gives out only bytes that fit their checksums,
    and files that are open already need not be read again.
    """
    beyond = [f for f in folder.files if f.kind in ("layer", "expert") or f.model_rank > 0]
    if folder.kind != "deepspeed" or beyond:
        what = beyond[0].path.name if beyond else folder.kind
        raise DsforgeError(
            f"{folder.path.name} was written by more than data-parallel ranks ({what})",
            "merge tensor, pipeline and expert ranks with `dsforge ckpt convert` first",
        )
    models = [archive(file.path) for file in _by_rank(folder, "model")]
    parts = [archive(file.path) for file in _by_rank(folder, "optimizer")]
    if not models:
        raise DsforgeError(f"{folder.path} contains no file of weights (*_model_states.pt)")
    try:
        saved = _sharded(models, parts) if parts else _unsharded(models[0])
    except MISFITS as error:
        hint = "`dsforge ckpt verify` lists its problems"
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise DsforgeError(f"{folder.path} cannot be merged ({why})", hint) from error
    check_parameters((*saved.trained, *saved.frozen, *saved.buffers, *saved.aliases))
    return saved


def _by_rank(folder: Folder, kind: Any) -> list[Any]:
    return sorted(folder.of(kind), key=lambda file: (file.data_rank or 0, file.path.name))


def _sharded(models: list[Archive], parts: list[Archive]) -> Saved:
    """A checkpoint whose optimizer states are cut by ranks."""
    first = models[0].value
    states = [part.value["optimizer_state_dict"] for part in parts]
    stage = stage_of(states[0])
    _check_count(states[0], len(parts))
    groups = [[*_groups(state)] for state in states]
    stated = first["param_shapes"] or _shapes_of_parts(first, states)
    shapes = [{n: shape_of(s) for n, s in group.items()} for group in stated]
    place = _places_equal if stage == 3 else _places_cut  # noqa: PLR2004 - the stage is its name
    trained: dict[str, Atom] = {}
    for index, named in enumerate(shapes):
        flats = [rank[index] for rank in groups]
        for name, cuts in place(states, index, named).items():
            trained[name] = Atom(named[name], _states(parts, flats, cuts, math.prod(named[name])))
    base = inner_optimizer(states[0])
    module = first.get("module") or {}
    buffers = {n: _single_atom(models[0], module[n]) for n in first["buffer_names"] if n in module}
    frozen, aliases = _frozen(models, stage), dict(first.get("shared_params") or {})
    if stage < 3:  # noqa: PLR2004 - the whole model; stage 1 does not list what is frozen
        known = {*trained, *frozen, *buffers, *aliases}
        rest = {n: t for n, t in module.items() if n not in known and isinstance(t, StoredTensor)}
        frozen |= {name: _single_atom(models[0], tensor) for name, tensor in rest.items()}
    return Saved(
        zero_stage=stage,
        world_size=len(parts),
        trained=trained,
        frozen=frozen,
        buffers=buffers,
        aliases=aliases,
        scalars=_scalars(parts[0], base),
        groups=settings(base),
        scaler=_scaler(states[0]),
        trained_in=trained_in(module),
        progress=_progress(first),
    )


def _shapes_of_parts(
    model: dict[str, Any], states: list[dict[str, Any]]
) -> list[dict[str, tuple[int, ...]]]:
    """Shapes by group where the engine states none: in bf16, a pipeline without ZeRO."""
    shares = read_shares(model.get(SHARES), "the file of weights")
    groups = len(states[0]["param_slice_mappings"])
    names = [{n for s in states for n in s["param_slice_mappings"][i]} for i in range(groups)]
    return [{n: share.local_shape for n, share in shares.items() if n in own} for own in names]


def _check_count(state: dict[str, Any], found: int) -> None:
    wanted = partition_count(state)
    if wanted != found:
        hint = "`dsforge ckpt verify` lists the missing ones"
        raise DsforgeError(
            f"{wanted} ranks wrote this checkpoint, but only files of {found} exist", hint
        )


def _groups(state: dict[str, Any]) -> Iterator[dict[str, StoredTensor]]:
    """The flat tensors of each group of one rank, by the name of the state."""
    weights = state.get("fp32_flat_groups") or state["single_partition_of_fp32_groups"]
    inner = inner_optimizer(state)["state"]
    for index, flat in enumerate(weights):
        own = inner.get(index, {})
        like = {k: t for k, t in own.items() if isinstance(t, StoredTensor) and t.shape}
        check_states(like)
        yield {WEIGHTS: flat, **like}


Cut = tuple[int, int, int]  # rank, start in its flat tensor, elements


def _places_cut(
    states: list[dict[str, Any]], index: int, shapes: dict[str, Any]
) -> dict[str, list[Cut]]:
    """Stages 1 and 2: each rank says which fragments of which parameters it holds."""
    found: dict[str, list[Cut]] = {name: [] for name in shapes}
    for rank, state in enumerate(states):
        for name, fragment in state["param_slice_mappings"][index].items():
            where = fragment.state
            begin = whole_number(where["start"], "start", most=MAX_COUNT)
            found[name].append((rank, begin, whole_number(where["numel"], "numel", most=MAX_COUNT)))
    return found


def _places_equal(
    states: list[dict[str, Any]], _: int, shapes: dict[str, Any]
) -> dict[str, list[Cut]]:
    """Stage 3: each parameter is cut into as many equal parts as there are ranks, padded."""
    found: dict[str, list[Cut]] = {}
    ranks, start = len(states), 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        part = -(-count // ranks)
        own = [max(0, min(part, count - rank * part)) for rank in range(ranks)]
        found[name] = [(rank, start, own[rank]) for rank in range(ranks) if own[rank]]
        start += part
    return found


def _states(
    parts: list[Archive], flats: list[dict[str, StoredTensor]], cuts: list[Cut], count: int
) -> dict[str, tuple[Piece, ...]]:
    """The pieces of every state of one parameter. Raises ValueError where elements lack."""
    if sum(cut[2] for cut in cuts) != count:
        raise ValueError(f"{sum(cut[2] for cut in cuts)} of {count} elements exist")
    for rank, start, elements in cuts:
        if start + elements > flats[rank][WEIGHTS].elements:
            raise ValueError(f"rank {rank} has fewer elements than it declares")
    return {
        state: tuple(Piece(parts[r], flats[r][state], start, n) for r, start, n in cuts)
        for state in flats[0]
    }


def _frozen(models: list[Archive], stage: int) -> dict[str, Atom]:
    """Parameters that were not trained: whole, or cut by ranks under stage 3."""
    shapes = models[0].value.get("frozen_param_shapes") or {}
    owners = models if stage == 3 else models[:1]  # noqa: PLR2004
    found = {}
    for name, shape in shapes.items():
        left, pieces = math.prod(shape_of(shape)), []
        for archive in owners:
            tensor = archive.value["frozen_param_fragments"][name]
            pieces.append(Piece(archive, tensor, 0, min(left, tensor.elements)))
            left -= pieces[-1].elements
        found[name] = Atom(shape_of(shape), {WEIGHTS: tuple(pieces)})
    return found


def _single_atom(archive: Archive, tensor: StoredTensor) -> Atom:
    """A tensor that lies in one place."""
    return Atom(tensor.shape, {WEIGHTS: (Piece(archive, tensor, 0, tensor.elements),)})


def _unsharded(archive: Archive) -> Saved:
    """A checkpoint without ZeRO: one file holds everything."""
    value = archive.value
    module, optimizer = value["module"], value.get("optimizer") or {}
    seen: dict[tuple[str, int], str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in module.items():
        key = (tensor.storage.key, tensor.offset)
        if key in seen and tensor.elements:
            aliases[name] = seen[key]
        seen.setdefault(key, name)
    buffers = {
        n: _single_atom(archive, module[n]) for n in value.get("buffer_names") or () if n in module
    }
    names = [name for name in module if name not in aliases and name not in buffers]
    inner = optimizer.get("optimizer_state_dict", optimizer)
    trained, told = _trained(archive, names, optimizer)
    return Saved(
        zero_stage=0,
        world_size=whole_number(value.get("dp_world_size", 1), "dp_world_size"),
        trained=trained,
        frozen={name: _single_atom(archive, module[name]) for name in names if name not in trained},
        buffers=buffers,
        aliases=aliases,
        scalars=_scalars(archive, inner) if inner else {},
        groups=settings(inner),
        scaler={k: v for k, v in optimizer.items() if k in SCALER},
        trained_in=trained_in(module),
        progress=_progress(value),
        states_told=told,
    )


def trained_in(module: Mapping[str, StoredTensor]) -> str:
    """The floating-point type of most weights: a buffer may come first, and hold whole numbers."""
    counts: Counter[str] = Counter()
    for tensor in module.values():
        if tensor.storage.dtype in FLOATS:
            counts[tensor.storage.dtype] += 1 + tensor.elements
    return counts.most_common(1)[0][0] if counts else "float32"


def _trained(
    archive: Archive, names: list[str], optimizer: dict[str, Any]
) -> tuple[dict[str, Atom], bool]:
    """Parameters with their optimizer states, and whether it is told which are whose.

    Adapters alone where only they were trained; the weights alone where it is not told.
    """
    module = archive.value["module"]
    if not optimizer:
        return {}, True
    adapters = [name for name in names if ".lora_" in name] or names
    places = located(module, chosen := names, optimizer, WEIGHTS)
    if places is None:  # not all of them trained
        places = located(module, chosen := adapters, optimizer, WEIGHTS)
    if places is None:
        return {name: _single_atom(archive, module[name]) for name in chosen}, False
    found = {}
    for name, own in places.items():
        check_states(state for state in own if state != WEIGHTS)
        count = module[name].elements
        pieces = {k: (Piece(archive, t, start, count),) for k, (t, start) in own.items()}
        found[name] = Atom(module[name].shape, pieces)
    return found, True


SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def _scaler(state: dict[str, Any]) -> dict[str, Any]:
    """The loss scaler's own figures; none where the loss is not scaled."""
    scaler = state.get("loss_scaler")
    figures = scaler.state if isinstance(scaler, Foreign) and scaler.state else {}
    return {k: v for k, v in figures.items() if k in SCALER} if figures.get("dynamic") else {}


def _scalars(archive: Archive, inner: dict[str, Any]) -> dict[str, Any]:
    """States of the first parameter or group that are one number."""
    own: dict[str, Any] = next(iter(inner.get("state", {}).values()), {})
    found = {}
    for key, value in own.items():
        if isinstance(value, StoredTensor) and not value.shape:
            one = StoredTensor(value.storage, value.offset, (1,), (1,))
            found[key] = float(archive.elements(one, 0, 1)[0])
        elif isinstance(value, int | float):
            found[key] = value
    return found


def _progress(value: dict[str, Any]) -> dict[str, Any]:
    """How far training had come."""
    names = ("global_steps", "global_samples", "skipped_steps", "ds_version")
    plain = {name: v for name in names if isinstance(v := value.get(name), int | str)}
    return {**dict.fromkeys(names), **plain, "lr_scheduler": value.get("lr_scheduler")}
