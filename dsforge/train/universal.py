"""Universal checkpoints: the form in which DeepSpeed itself loads a run on any number of ranks.

DeepSpeed's converter knows ZeRO 1 to 3 but writes stage 3 in a form that stages 1 and 2 cannot
load, and nothing for stage 0. Data-parallel checkpoints are therefore written here, parameter by
parameter and in the one form that all stages load; those of tensor and pipeline ranks go through
DeepSpeed's converter, which unpickles: so only files that name nothing but known types get there.
"""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from dsforge.ckpt.archive import Archive
from dsforge.ckpt.folder import Folder
from dsforge.ckpt.verify import foreign_names
from dsforge.ckpt.zero import WEIGHTS, Atom, Saved, read_saved
from dsforge.errors import DsforgeError


def convert(folder: Folder, out: Path) -> Path:
    """A universal checkpoint in a new folder; `latest_universal` beside it names it.

    Raises DsforgeError where the folder exists or the checkpoint cannot be trusted or put together.
    """
    if out.exists():
        raise DsforgeError(f"{out} exists", "name a folder that does not")
    for file in folder.files:
        for finding in foreign_names(file.path, Archive(file.path)):
            raise DsforgeError(f"{finding.place} {finding.message}", finding.hint)
    temporary = out.with_name(f".{out.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    if any(f.model_rank or f.kind in ("layer", "expert") for f in folder.files):
        _by_deepspeed(folder, temporary)
    else:
        _write(folder, read_saved(folder), temporary)
    temporary.rename(out)
    (out.parent / "latest_universal").write_text(out.name, encoding="utf-8")
    return out


def _by_deepspeed(folder: Folder, out: Path) -> None:
    """Have DeepSpeed merge tensor and pipeline ranks."""
    from deepspeed.checkpoint.ds_to_universal import main

    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    names = {"input_folder": str(folder.path), "output_folder": str(out)}
    try:
        main(Namespace(**names, **options, strict=False, inject_missing_state=True))
    except Exception as error:  # whatever its many assertions raise
        shutil.rmtree(out, ignore_errors=True)
        message = f"DeepSpeed cannot convert {folder.path.name}: {error}"
        raise DsforgeError(message, "resume it on the ranks that wrote it") from error


def _write(folder: Folder, saved: Saved, out: Path) -> None:
    """One folder for each parameter, the common states, and the files that DeepSpeed looks for."""
    import torch

    for name, atom in saved.trained.items():
        own = out / "zero" / name
        own.mkdir(parents=True)
        for state in atom.states:
            torch.save({"param": whole(atom, state), "cat_dim": 0}, own / f"{state}.pt")
        if "step" in saved.scalars:
            torch.save(torch.tensor(saved.scalars["step"]), own / "step.pt")
    torch.save(_common(folder, saved), out / "zero" / "optimizer_state.pt")
    value = torch.load(folder.of("model")[0].path, map_location="cpu", weights_only=False)
    value |= {"module": {}, "optimizer": None}  # the weights are in zero/
    first = out / "mp_rank_00_model_states.pt"  # stages 0 to 2 look for this name
    torch.save(value, first)
    os.link(first, out / "zero_pp_rank_0_mp_rank_00_model_states.pt")  # stage 3 for this one


def whole(atom: Atom, state: str = WEIGHTS) -> Any:
    """A state of a whole parameter as a tensor."""
    import torch

    dtype = getattr(torch, atom.dtype(state))
    bits = np.concatenate([np.asarray(part) for part in atom.read(state, 0, atom.elements)])
    return torch.from_numpy(bits.view(np.uint8)).view(dtype).reshape(atom.shape)


def _common(folder: Folder, saved: Saved) -> dict[str, Any]:
    """What all parameters share, as stages 1 and 2 and as stage 3 look for it."""
    import torch
    from deepspeed.runtime.fp16.loss_scaler import LossScaler

    cut = ("base_optimizer_state", "optimizer_state_dict", "param_slice_mappings")
    cut += ("single_partition_of_fp32_groups", "fp32_flat_groups")
    common: dict[str, Any] = {"loss_scaler": LossScaler(1.0), "dynamic_loss_scale": False}
    parts = folder.of("optimizer")
    if parts:
        stored = torch.load(parts[0].path, map_location="cpu", weights_only=False, mmap=True)
        state = stored["optimizer_state_dict"]
        common |= {k: v for k, v in state.items() if k not in cut}
    groups = [{**saved.group, "params": [0]}]
    step = torch.tensor(saved.scalars.get("step", saved.group.get("step", 0.0)))
    inner = {"state": {0: {"step": step}}, "param_groups": groups}
    version = saved.progress["ds_version"]
    return {"ds_version": version, "overflow": False, **common} | {
        "param_groups": groups,
        "optimizer_state_dict": inner,
    }
