"""Verification of rank files against each other; each check finds one known cause of lost runs.

Tensors that were never gathered, files of ranks that did not finish, two saves or two runs mixed in
one folder, a folder that was renamed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from dsforge.checkpoints.findings import error, listed
from dsforge.checkpoints.folder import Folder, RankFile
from dsforge.checkpoints.pickles.machine import MAX_COUNT
from dsforge.checkpoints.pickles.values import StoredTensor
from dsforge.checkpoints.torch_files.archive import Archive, tensors_in
from dsforge.checkpoints.verify.torch_file import GATHER
from dsforge.checkpoints.zero.stated_values import partition_count, stage_of, whole_number
from dsforge.ds_config import read
from dsforge.findings import Finding

SHOWN = 4  # ranks that a message names


@dataclass(slots=True)
class Opened:
    """The files of a checkpoint that could be opened."""

    folder: Folder
    archives: dict[RankFile, Archive] = field(default_factory=dict)

    def of(self, kind: str) -> list[tuple[RankFile, Any]]:
        """Files of a kind with their values."""
        return [(f, a.value) for f, a in self.archives.items() if f.kind == kind]


def _tag(opened: Opened) -> Iterator[Finding]:
    """The step in the name of the folder is the step in the files."""
    steps = {f.path.name: _steps(v) for f, v in opened.of("model") if "global_steps" in v}
    counts = Counter(steps.values())
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        odd = [f"{name} (step {step})" for name, step in steps.items() if step != usual]
        hint = "two saves are mixed in this folder; use another checkpoint"
        yield error(
            "steps-mixed", opened.folder.path.name, f"of different steps: {listed(odd)}", hint
        )
    named = re.search(r"(\d+)$", opened.folder.path.name)
    if len(counts) == 1 and named and opened.folder.path.name.startswith("global_step"):
        step = next(iter(counts))
        if int(named[1]) != step:
            message = f"the files are of step {step}"
            hint = "the folder was renamed or swapped; restore its name"
            yield error("tag-swapped", opened.folder.path.name, message, hint)


def _optimizer_steps(opened: Opened) -> Iterator[Finding]:
    """All ranks have taken as many optimizer steps as the run."""
    found: dict[str, float] = {}
    for file, value in opened.of("optimizer"):
        step = _step(opened.archives[file], value["optimizer_state_dict"])
        if step is not None:
            found[file.path.name] = step
    counts = Counter(found.values())
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        odd = [f"{name} ({step:.0f} steps)" for name, step in found.items() if step != usual]
        hint = "the file of a rank belongs to another save; use another checkpoint"
        yield error(
            "steps-mixed", opened.folder.path.name, f"the ranks differ: {listed(odd)}", hint
        )
    totals = {_steps(v) - _steps(v, "skipped_steps") for _, v in opened.of("model")}
    if len(counts) == 1 and len(totals) == 1 and set(counts) != totals:
        message = f"optimizer of step {next(iter(counts)):.0f}, weights of {next(iter(totals))}"
        yield error("steps-mixed", opened.folder.path.name, message, "two saves are mixed")


def _steps(value: dict[str, Any], name: str = "global_steps") -> int:
    """Steps that a model file states. Raises ValueError where they are no number."""
    return whole_number(value.get(name) or 0, name, most=MAX_COUNT)


def _step(archive: Archive, state: dict[str, Any]) -> float | None:
    """Steps that an optimizer has taken, where it says so."""
    inner = state.get("base_optimizer_state") or state.get("optimizer_state_dict") or {}
    if not isinstance(inner, dict):
        return None
    own: dict[str, Any] = next(iter(inner.get("state", {}).values()), {})
    step = own.get("step", inner.get("param_groups", [{}])[0].get("step"))
    if isinstance(step, StoredTensor):
        flat = archive.flat(StoredTensor(step.storage, step.offset, (1,), (1,)))
        return float(np.asarray(flat)[0])
    return None if step is None else float(step)


def _ranks(opened: Opened) -> Iterator[Finding]:
    """Every rank's file is there, and only those."""
    files, name = opened.folder.files, opened.folder.path.name
    says = {_world(v) for _, v in opened.of("model") if v.get("dp_world_size")}
    parts = {partition_count(v["optimizer_state_dict"]) for _, v in opened.of("optimizer")}
    claimed = sorted(says | parts)
    if len(claimed) > 1:
        worlds = " and ".join(map(str, claimed))
        hint = (
            "the folder contains files of an earlier run with another number of ranks; use "
            "another checkpoint"
        )
        yield error("worlds-mixed", name, f"files of runs on {worlds} ranks", hint)
    models = sorted({file.model_rank for file in files})
    for kind in ("optimizer", "model"):
        own = {(f.data_rank, f.model_rank) for f in files if f.kind == kind}
        if not own or (kind == "model" and None in {rank for rank, _ in own}):
            continue
        most = max(max(claimed, default=0), *(1 + (rank or 0) for rank, _ in own))
        if missing := most * len(models) - len(own):
            shown = _first_missing(own, models, most)
            more = f" and {missing - SHOWN:,} more" if missing > SHOWN else ""
            hint = "the rank did not finish, or its files were not copied; check its host"
            yield error("rank-missing", name, f"no {kind} file of {shown}{more} (of {most})", hint)
    if any(file.data_rank is not None for file in files) and not opened.folder.of("model"):
        yield error("model-missing", name, "no *_model_states.pt")
    zero = any(_zero_stage(v) > 0 for _, v in opened.of("model"))
    if zero and not opened.folder.of("optimizer"):
        yield error("rank-missing", name, "no *_optim_states.pt, but it was trained under ZeRO")


def _first_missing(own: set[tuple[int | None, int]], models: list[int], most: int) -> str:
    """The first ranks without a file; there may be more ranks than could be listed."""
    every = ((data, model) for model in models for data in range(most))
    missing = islice((rank for rank in every if rank not in own), SHOWN)
    return ", ".join(f"rank {d}" + (f" of model rank {m}" if m else "") for d, m in missing)


def _world(value: dict[str, Any]) -> int:
    """Data-parallel ranks that a model file states. Raises ValueError."""
    return whole_number(value["dp_world_size"], "dp_world_size")


def _zero_stage(value: dict[str, Any]) -> int:
    """The ZeRO stage that the config in a model file asks for."""
    settings = value.get("ds_config")
    config = read(settings, filled_in=False).config if isinstance(settings, dict) else None
    return config.zero_stage or 0 if config else 0


def _empty(opened: Opened) -> Iterator[Finding]:
    """No tensor is empty, but for the place-holders that stage 3 keeps for sharded weights."""
    for file, archive in opened.archives.items():
        value = archive.value
        sharded = file.kind == "model" and file.data_rank is not None
        skipped = ("module", "frozen_param_fragments") if sharded else ()
        inside = {k: v for k, v in value.items() if k not in skipped}
        empty = [name for name, tensor in tensors_in(inside) if tensor.elements == 0]
        if empty:
            many = f"{len(empty)} empty tensors: {listed(empty)}"
            yield error("tensor-empty", file.path.name, many, GATHER)
        if sharded and value.get("module") and not value.get("param_shapes"):
            yield error(
                "shapes-missing", file.path.name, "does not contain the shapes of its weights"
            )


def _stages(opened: Opened) -> Iterator[Finding]:
    """All ranks were saved under one ZeRO stage."""
    stages = {stage_of(v["optimizer_state_dict"]) for _, v in opened.of("optimizer")}
    if len(stages) > 1:
        shown = " and ".join(map(str, sorted(stages)))
        yield error("stages-mixed", opened.folder.path.name, f"files of ZeRO stages {shown}")


Check = Callable[[Opened], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (_ranks, _stages, _tag, _optimizer_steps, _empty)
