"""Checkpoints of tensor and pipeline ranks, put together parameter by parameter.

The files of each model rank are those of a small checkpoint of data-parallel ranks. What its
parameters are parts of stands in them, where `dsforge train` wrote them (`shares.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dsforge.checkpoints.findings import listed
from dsforge.checkpoints.folder import Folder, RankFile
from dsforge.checkpoints.path_names import check_parameters
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.zero.atoms import Atom, Joined, Parameter
from dsforge.checkpoints.zero.parameters import Saved, read_saved, trained_in
from dsforge.checkpoints.zero.shares import SHARES, Share, read_shares
from dsforge.errors import DsforgeError

Opener = Callable[[Path], Archive]
MERGE = "resume it on the ranks that wrote it, or merge its ranks with `dsforge ckpt convert` first"


class Held(NamedTuple):
    """What one model rank holds of a parameter."""

    share: Share
    parameter: Parameter


def is_split(folder: Folder) -> bool:
    """Whether tensor or pipeline ranks wrote a checkpoint."""
    return any(file.kind == "layer" or file.model_rank > 0 for file in folder.files)


def states_shares(folder: Folder, archive: Opener = Archive) -> bool:
    """Whether the files of a checkpoint say which part of which parameter each rank holds."""
    files = folder.of("model")
    return bool(files) and all(SHARES in archive(file.path).value for file in files)


def read_ranks(folder: Folder, archive: Opener = Archive) -> Saved:
    """The checkpoint in a folder, of whatever ranks. Raises DsforgeError as `read_saved`."""
    if folder.kind != "deepspeed" or not is_split(folder) or folder.of("expert"):
        return read_saved(folder, archive)
    if not states_shares(folder, archive):
        message = f"{folder.path.name} does not state which parts its tensor and pipeline ranks"
        raise DsforgeError(f"{message} hold", MERGE)
    ranks = sorted({file.model_rank for file in folder.of("model")})
    every = [_of_rank(folder, rank, archive) for rank in ranks]
    first = every[0][0]
    layers = folder.of("layer")
    return replace(
        first,
        world_size=first.world_size * len(ranks),
        trained=_joined([(saved.trained, shares) for saved, shares in every]),
        frozen=_joined([(saved.frozen, shares) for saved, shares in every]),
        trained_in=trained_in(archive(layers[0].path).value) if layers else first.trained_in,
    )


def _of_rank(folder: Folder, rank: int, archive: Opener) -> tuple[Saved, dict[str, Share]]:
    """What one model rank saved, under its own names, and what that is part of."""
    own = [f for f in folder.files if f.model_rank == rank and f.kind in ("model", "optimizer")]
    files: tuple[RankFile, ...] = tuple(file._replace(model_rank=0) for file in own)
    saved = read_saved(folder._replace(files=files), archive)
    model = next(file for file in own if file.kind == "model")
    shares = read_shares(archive(model.path).value[SHARES], model.path.name)
    check_parameters(share.name for share in shares.values())
    unknown = sorted(saved.trained.keys() - shares.keys())
    if unknown:
        message = f"{model.path.name} does not state what {listed(unknown)} is a part of"
        raise DsforgeError(message, "use another checkpoint")
    # Every parameter has a share under one name; what has none is a second name of a tied one.
    frozen = {name: atom for name, atom in saved.frozen.items() if name in shares}
    return replace(saved, frozen=frozen), shares


def _joined(
    ranks: list[tuple[Mapping[str, Parameter], dict[str, Share]]],
) -> dict[str, Parameter]:
    """Whole parameters by their names in the model. Raises DsforgeError where parts lack."""
    found: dict[str, dict[int, Held]] = {}
    for parameters, shares in ranks:
        for local, parameter in parameters.items():
            share = shares[local]
            if parameter.shape != share.local_shape:
                message = f"`{local}` has shape {parameter.shape}, not {share.local_shape}"
                raise DsforgeError(message, "use another checkpoint")
            found.setdefault(share.name, {}).setdefault(share.begin, Held(share, parameter))
    return {name: _whole(name, list(parts.values())) for name, parts in found.items()}


def _whole(name: str, held: list[Held]) -> Parameter:
    """One parameter of its parts. Raises DsforgeError where they do not make it up."""
    share = held[0].share
    if share.dim is None:
        return held[0].parameter
    parts = sorted((h for h in held if h.share.size), key=lambda h: h.share.begin)
    end = 0
    for other, _ in parts:
        if (other.shape, other.dim, other.begin) != (share.shape, share.dim, end):
            break
        end += other.size
    if end != share.shape[share.dim]:
        message = f"the parts of `{name}` hold {end} of {share.shape[share.dim]} along {share.dim}"
        raise DsforgeError(message, "the files of a rank are missing; use another checkpoint")
    parameters = tuple(parameter for _, parameter in parts)
    joined = Joined(share.shape, share.dim, parameters)
    one_behind_the_other = math.prod(share.shape[: share.dim]) == 1
    return Atom(share.shape, joined.states) if one_behind_the_other else joined
