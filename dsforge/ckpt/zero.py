"""Whole parameters out of the parts that ZeRO ranks wrote: where each element lies.

ZeRO flattens the parameters of a group, cuts the flat vector by ranks and saves each cut: stages 1
and 2 cut the whole vector once (`param_slice_mappings` says where each parameter lies in a cut),
stage 3 cuts every parameter by itself into equal parts and packs those. What is found here is only
places in files; nothing is read until somebody asks for elements of a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsforge.ckpt.archive import Archive
from dsforge.ckpt.folder import Folder
from dsforge.ckpt.pickled import Foreign, Name, StoredTensor
from dsforge.errors import DsforgeError

STAGES = {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3}  # as DeepSpeed's enum
WEIGHTS = "fp32"  # the name of the master weights among the states of a parameter


class Piece(NamedTuple):
    """`elements` of a flat tensor in a file, from `start`."""

    archive: Archive
    tensor: StoredTensor
    start: int
    elements: int


class Atom(NamedTuple):
    """A whole parameter: its shape, and for each state the pieces that make it up, in order."""

    shape: tuple[int, ...]
    states: Mapping[str, tuple[Piece, ...]]

    @property
    def elements(self) -> int:
        """Elements of the parameter."""
        return math.prod(self.shape)

    def dtype(self, state: str = WEIGHTS) -> str:
        """Type of a state, by torch's name."""
        return self.states[state][0].tensor.storage.dtype

    def read(self, state: str, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """The bits of elements `begin` to `end` of a state, piece by piece."""
        at = 0
        for piece in self.states[state]:
            first, last = max(begin, at), min(end, at + piece.elements)
            if first < last:
                flat = piece.archive.flat(piece.tensor)
                yield flat[piece.start + first - at : piece.start + last - at]
            at += piece.elements


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of data-parallel ranks, parameter by parameter.

    `scalars` are states that a whole group shares (`step`); `group` the optimizer's settings;
    `aliases` tied names and what they are tied to; `trained_in` the type of the weights in use.
    """

    zero_stage: int
    world_size: int
    trained: Mapping[str, Atom]
    frozen: Mapping[str, Atom]
    buffers: Mapping[str, Atom]
    aliases: Mapping[str, str]
    scalars: Mapping[str, Any]
    group: Mapping[str, Any]
    scaler: Mapping[str, Any]
    trained_in: str
    progress: Mapping[str, Any]


def read_saved(folder: Folder) -> Saved:
    """The checkpoint in a folder. Raises DsforgeError where it is not whole or of another kind."""
    beyond = [f for f in folder.files if f.kind in ("layer", "expert") or f.model_rank > 0]
    if folder.kind != "deepspeed" or beyond:
        what = beyond[0].path.name if beyond else folder.kind
        raise DsforgeError(
            f"{folder.path.name} was not written by data-parallel ranks alone ({what})",
            "merge tensor, pipeline and expert ranks with `dsforge ckpt convert` first",
        )
    models = [Archive(file.path) for file in _by_rank(folder, "model")]
    parts = [Archive(file.path) for file in _by_rank(folder, "optimizer")]
    if not models:
        raise DsforgeError(f"{folder.path} holds no file of weights (*_model_states.pt)")
    try:
        return _sharded(models, parts) if parts else _whole(models[0])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        hint = "`dsforge ckpt verify` names what is wrong with it"
        raise DsforgeError(f"{folder.path} cannot be put together: {error!r}", hint) from error


def _by_rank(folder: Folder, kind: Any) -> list[Any]:
    return sorted(folder.of(kind), key=lambda file: (file.data_rank or 0, file.path.name))


def _sharded(models: list[Archive], parts: list[Archive]) -> Saved:
    """A checkpoint whose optimizer states are cut by ranks."""
    first = models[0].value
    states = [part.value["optimizer_state_dict"] for part in parts]
    stage = stage_of(states[0])
    _check_count(states[0], len(parts))
    groups = [[*_groups(state)] for state in states]
    shapes = [dict(group) for group in first["param_shapes"]]
    place = _places_equal if stage == 3 else _places_cut  # noqa: PLR2004 - the stage is its name
    trained: dict[str, Atom] = {}
    for index, named in enumerate(shapes):
        flats = [rank[index] for rank in groups]
        for name, cuts in place(states, index, named).items():
            trained[name] = Atom(named[name], _states(parts, flats, cuts, math.prod(named[name])))
    base = _optimizer(states[0])
    module = first.get("module") or {}
    return Saved(
        zero_stage=stage,
        world_size=len(parts),
        trained=trained,
        frozen=_frozen(models, stage),
        buffers={n: _one(models[0], module[n]) for n in first["buffer_names"] if n in module},
        aliases=dict(first.get("shared_params") or {}),
        scalars=_scalars(parts[0], base),
        group={k: v for k, v in base["param_groups"][0].items() if k != "params"},
        scaler=_scaler(states[0]),
        trained_in=next((t.storage.dtype for t in module.values()), "float32"),
        progress=_progress(first),
    )


def stage_of(state: dict[str, Any]) -> int:
    """The ZeRO stage that an optimizer file says; 1 where it says none (bf16 master weights)."""
    stage = state.get("zero_stage", 1)
    if isinstance(stage, Name):  # a member of DeepSpeed's enum by its name
        name = stage.path.rpartition(".")[2]
        if name not in STAGES:
            raise DsforgeError(
                f"{name!r} is no ZeRO stage", "the file is damaged, or no checkpoint"
            )
        return STAGES[name]
    return int(stage.arguments[0]) if isinstance(stage, Foreign) else int(stage)


def partition_count(state: dict[str, Any]) -> int:
    """The number of ranks that share the optimizer states, as a file of one of them says."""
    count = state["partition_count"]
    return int(max(count)) if isinstance(count, list | tuple) else int(count)


def _check_count(state: dict[str, Any], found: int) -> None:
    wanted = partition_count(state)
    if wanted != found:
        hint = "`dsforge ckpt verify` names the missing ones"
        raise DsforgeError(f"{wanted} ranks wrote this checkpoint, files of {found} are here", hint)


def _optimizer(state: dict[str, Any]) -> dict[str, Any]:
    """The inner optimizer's own state dict."""
    base = state.get("base_optimizer_state") or state["optimizer_state_dict"]
    if isinstance(base, list):  # elastic checkpoints of stages 1 and 2
        return {"state": dict(enumerate(base)), "param_groups": [{}]}
    return dict(base)


def _groups(state: dict[str, Any]) -> Iterator[dict[str, StoredTensor]]:
    """The flat tensors of each group of one rank, by the name of the state."""
    weights = state.get("fp32_flat_groups") or state["single_partition_of_fp32_groups"]
    inner = _optimizer(state)["state"]
    for index, flat in enumerate(weights):
        own = inner.get(index, {})
        like = {k: t for k, t in own.items() if isinstance(t, StoredTensor) and t.shape}
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
            found[name].append((rank, int(where["start"]), int(where["numel"])))
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
        raise ValueError(f"{sum(cut[2] for cut in cuts)} of {count} elements are there")
    for rank, start, elements in cuts:
        if start + elements > flats[rank][WEIGHTS].elements:
            raise ValueError(f"rank {rank} holds fewer elements than it says")
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
        left, pieces = math.prod(shape), []
        for archive in owners:
            tensor = archive.value["frozen_param_fragments"][name]
            pieces.append(Piece(archive, tensor, 0, min(left, tensor.elements)))
            left -= pieces[-1].elements
        found[name] = Atom(tuple(shape), {WEIGHTS: tuple(pieces)})
    return found


def _one(archive: Archive, tensor: StoredTensor) -> Atom:
    """A tensor that lies in one place."""
    return Atom(tensor.shape, {WEIGHTS: (Piece(archive, tensor, 0, tensor.elements),)})


def _whole(archive: Archive) -> Saved:
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
    buffers = {n: _one(archive, module[n]) for n in value.get("buffer_names") or () if n in module}
    names = [name for name in module if name not in aliases and name not in buffers]
    inner = optimizer.get("optimizer_state_dict", optimizer)
    trained = _trained(archive, names, optimizer)
    return Saved(
        zero_stage=0,
        world_size=int(value.get("dp_world_size", 1)),
        trained=trained,
        frozen={name: _one(archive, module[name]) for name in names if name not in trained},
        buffers=buffers,
        aliases=aliases,
        scalars=_scalars(archive, inner) if inner else {},
        group={k: v for k, v in inner.get("param_groups", [{}])[0].items() if k != "params"},
        scaler={k: v for k, v in optimizer.items() if k in SCALER},
        trained_in=next((t.storage.dtype for t in module.values()), "float32"),
        progress=_progress(value),
    )


def _trained(archive: Archive, names: list[str], optimizer: dict[str, Any]) -> dict[str, Atom]:
    """Parameters with their optimizer states; adapters alone where only they were trained."""
    module = archive.value["module"]
    if not optimizer:
        return {}
    adapters = [name for name in names if ".lora_" in name]
    chosen = adapters or names
    if "fp32_groups_flat" in optimizer:
        return _packed(archive, chosen, optimizer)
    state = optimizer.get("optimizer_state_dict", optimizer)["state"]
    masters = optimizer.get("fp32_groups")  # where training is in 16 bits, without ZeRO
    if state and len(state) != len(chosen):
        raise ValueError(f"{len(state)} optimizer states for {len(chosen)} parameters")
    found = {}
    for index, name in enumerate(chosen):
        own = {k: t for k, t in state.get(index, {}).items() if isinstance(t, StoredTensor)}
        weights = masters[0][index] if masters else module[name]
        tensors = {WEIGHTS: weights, **{k: t for k, t in own.items() if t.shape}}
        pieces = {k: (Piece(archive, t, 0, t.elements),) for k, t in tensors.items()}
        found[name] = Atom(module[name].shape, pieces)
    return found


def _packed(archive: Archive, names: list[str], optimizer: dict[str, Any]) -> dict[str, Atom]:
    """Parameters whose master weights and states lie one behind the other, without ZeRO."""
    module = archive.value["module"]
    own = optimizer["optimizer_state_dict"]["state"].get(0, {})
    flats = {k: t for k, t in own.items() if isinstance(t, StoredTensor) and t.shape}
    flats = {WEIGHTS: optimizer["fp32_groups_flat"][0], **flats}
    found, start = {}, 0
    for name in names:
        count = module[name].elements
        pieces = {k: (Piece(archive, t, start, count),) for k, t in flats.items()}
        found[name] = Atom(module[name].shape, pieces)
        start += count
    return found


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
            flat = archive.flat(StoredTensor(value.storage, value.offset, (1,), (1,)))
            found[key] = float(np.asarray(flat)[0])
        elif isinstance(value, int | float):
            found[key] = value
    return found


def _progress(value: dict[str, Any]) -> dict[str, Any]:
    """How far training had come."""
    names = ("global_steps", "global_samples", "skipped_steps", "ds_version")
    return {name: value.get(name) for name in names} | {"lr_scheduler": value.get("lr_scheduler")}
