"""What is wrong with a checkpoint: the question to ask before the machines are given back.

Each check looks for one way in which people lost runs: tensors that were never gathered, files of
ranks that did not finish, two saves mixed in one folder, bytes that changed on the way.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dsforge.ckpt.archive import Archive, tensors_in
from dsforge.ckpt.findings import Finding, error, listed, warning
from dsforge.ckpt.folder import Folder, RankFile, find_checkpoint
from dsforge.ckpt.pickled import StoredTensor
from dsforge.ckpt.universal import universal_findings
from dsforge.ckpt.weights import Weight, weight_files, weights_of
from dsforge.ckpt.zero import partition_count, read_saved, stage_of
from dsforge.errors import DsforgeError

# What torch, DeepSpeed and numpy write into checkpoints: types that do nothing when they are built.
TRUSTED = re.compile(
    r"torch\.(\w+Storage|Size|Tensor|device|b?float\d*|double|half|u?int\d+|long|bool)"
    r"|torch\._utils\._rebuild_(tensor(_v2)?|parameter(_with_state)?)"
    r"|torch\._tensor\._rebuild_from_type_v2|torch\.nn\.parameter\.Parameter"
    r"|torch\.serialization\._get_layout|_codecs\.encode"
    r"|collections\.(OrderedDict|defaultdict)|(builtins|__builtin__)\.(set|dict|list|int|float|slice)"
    r"|numpy(\._?core\.multiarray)?\.(_reconstruct|ndarray|dtype|scalar)"
    r"|deepspeed\.runtime\.fp16\.loss_scaler\.(Dynamic)?LossScaler(Base)?"
    r"|deepspeed\.runtime\.zero\.config\.ZeroStageEnum"
    r"(\.(disabled|optimizer_states|gradients|weights))?"
    r"|deepspeed\.utils\.tensor_fragment\.fragment_address"
    r"|deepspeed\.checkpoint\.[\w.]*\.?SubparamShape|argparse\.Namespace"
)
CODE = re.compile(r"(os|posix|nt|subprocess|sys|shutil|runpy|socket|importlib|pty)\..*|.*\.eval")
GATHER = "save through the engine (`save_checkpoint`), or gather first: GatheredParameters"


@dataclass(slots=True)
class Opened:
    """The files of a checkpoint, opened once; what could not be opened is a finding already."""

    folder: Folder
    archives: dict[RankFile, Archive] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def of(self, kind: str) -> list[tuple[RankFile, Any]]:
        """Files of a kind with their values."""
        return [(f, a.value) for f, a in self.archives.items() if f.kind == kind]


class Wanted(NamedTuple):
    """What the model must have: a number of parameters, and shapes by name where they are known."""

    parameters: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})


def verify(path: Path, *, checksums: bool = True, wanted: Wanted | None = None) -> list[Finding]:
    """Everything that is wrong with the checkpoint at a path; errors first.

    `checksums` reads all bytes; without it only what the files say of themselves.
    Raises DsforgeError where there is no checkpoint at all.
    """
    folder, wanted = find_checkpoint(path), wanted or Wanted()
    if folder.kind in ("huggingface", "file"):
        found = _weights(folder, checksums=checksums, wanted=wanted)
    elif folder.kind == "universal":
        found = universal_findings(folder, checksums=checksums)
    else:
        found = _deepspeed(folder, checksums=checksums, wanted=wanted)
    beside = folder.pointer.parent if folder.pointer else None
    if beside and weight_files(beside):  # as the Hugging Face Trainer saves both
        found += _weights(Folder(beside, "huggingface"), checksums=checksums, wanted=wanted)
    return sorted(found, key=lambda finding: finding.severity)


def _deepspeed(folder: Folder, *, checksums: bool, wanted: Wanted) -> list[Finding]:
    opened = Opened(folder)
    for file in folder.files:
        try:
            archive = Archive(file.path)
            _ = archive.value
            opened.archives[file] = archive
        except DsforgeError as failure:
            opened.findings.append(error("file-unreadable", file.path.name, failure.message))
    found = [*opened.findings]
    for check in CHECKS:
        try:
            found += check(opened)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as failure:
            found.append(error("content-unknown", folder.path.name, f"is not as saved: {failure}"))
    if checksums:
        for file, archive in opened.archives.items():
            found += [error("bytes-changed", file.path.name, line) for line in archive.damage()]
    if not any(finding.severity == "error" for finding in found):
        found += _together(folder, wanted)
    return found


def _tag(opened: Opened) -> Iterator[Finding]:
    """The step in the name of the folder is the step in the files."""
    steps = {f.path.name: v["global_steps"] for f, v in opened.of("model") if "global_steps" in v}
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
            hint = "the folder was renamed or swapped; give it back its own name"
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
        hint = "a rank's file is of another save; use another checkpoint"
        yield error("steps-mixed", opened.folder.path.name, f"not all alike: {listed(odd)}", hint)
    totals = {v["global_steps"] - (v.get("skipped_steps") or 0) for _, v in opened.of("model")}
    if len(counts) == 1 and len(totals) == 1 and set(counts) != totals:
        message = f"optimizer of step {next(iter(counts)):.0f}, weights of {next(iter(totals))}"
        yield error("steps-mixed", opened.folder.path.name, message, "two saves are mixed")


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
    says = {v["dp_world_size"] for _, v in opened.of("model") if v.get("dp_world_size")}
    parts = {partition_count(v["optimizer_state_dict"]) for _, v in opened.of("optimizer")}
    claimed = sorted(says | parts)
    if len(claimed) > 1:
        worlds = " and ".join(map(str, claimed))
        hint = "files of an earlier run on other ranks were left here; use another checkpoint"
        yield error("worlds-mixed", name, f"files of runs on {worlds} ranks", hint)
    models = sorted({file.model_rank for file in files})
    for kind in ("optimizer", "model"):
        own = {(f.data_rank, f.model_rank) for f in files if f.kind == kind}
        if not own or (kind == "model" and None in {rank for rank, _ in own}):
            continue
        most = max(max(claimed, default=0), *(1 + (rank or 0) for rank, _ in own))
        missing = [(d, m) for m in models for d in range(most) if (d, m) not in own]
        if missing:
            shown = listed([f"rank {d}" + (f" of model rank {m}" if m else "") for d, m in missing])
            hint = "the rank did not finish, or its disk was not copied; look on its host"
            yield error("rank-missing", name, f"no {kind} file of {shown} (of {most})", hint)
    if any(file.data_rank is not None for file in files) and not opened.folder.of("model"):
        yield error("model-missing", name, "no *_model_states.pt")
    zero = any(_zero_stage(v) > 0 for _, v in opened.of("model"))
    if zero and not opened.folder.of("optimizer"):
        yield error("rank-missing", name, "no *_optim_states.pt, but it was trained under ZeRO")


def _zero_stage(value: dict[str, Any]) -> int:
    """The ZeRO stage that the config in a model file asks for."""
    config = value.get("ds_config")
    block = config.get("zero_optimization") if isinstance(config, dict) else None
    stage = block.get("stage", 0) if isinstance(block, dict) else 0
    return stage if isinstance(stage, int) else 0


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
            yield error("shapes-missing", file.path.name, "does not say the shapes of its weights")


def _storages(opened: Opened) -> Iterator[Finding]:
    """Every tensor's bytes are in the file."""
    for file, archive in opened.archives.items():
        for line in archive.lacking():
            yield error("tensor-cut", file.path.name, line, "copy the file again")


def _names(opened: Opened) -> Iterator[Finding]:
    """Loading imports nothing that a checkpoint does not need."""
    for file, archive in opened.archives.items():
        yield from foreign_names(file.path, archive)


def _stages(opened: Opened) -> Iterator[Finding]:
    """All ranks were saved under one ZeRO stage."""
    stages = {stage_of(v["optimizer_state_dict"]) for _, v in opened.of("optimizer")}
    if len(stages) > 1:
        shown = " and ".join(map(str, sorted(stages)))
        yield error("stages-mixed", opened.folder.path.name, f"files of ZeRO stages {shown}")


Check = Callable[[Opened], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (*(_ranks, _stages, _tag, _optimizer_steps, _empty, _storages, _names),)


def foreign_names(file: Path, archive: Archive) -> Iterator[Finding]:
    """Names that a pickle would import and that no checkpoint needs."""
    names = sorted(n for n in archive.pickled.names if not TRUSTED.fullmatch(n) or CODE.match(n))
    if any(CODE.match(name) for name in names):
        hint = "do not load it: torch.load would run it"
        yield error("runs-code", file.name, f"would call {listed(names)}", hint)
    elif names:
        hint = "load it with weights_only=True, or know who wrote it"
        yield warning("foreign-names", file.name, f"would import {listed(names)}", hint)


def _together(folder: Folder, wanted: Wanted) -> Iterator[Finding]:
    """The parts of all ranks make up every parameter, and those the model."""
    if any(f.kind in ("layer", "expert") or f.model_rank for f in folder.files):
        return
    try:
        saved = read_saved(folder)
    except DsforgeError as failure:
        yield error("parts-lacking", folder.path.name, failure.message)
        return
    atoms = {**saved.trained, **saved.frozen}
    if not atoms:
        yield error("weights-missing", folder.path.name, "holds no weights")
    held = {_plain(n): atom.shape for n, atom in atoms.items() if ".lora_" not in n}
    if held or not atoms:  # adapters may stand alone, as after QLoRA
        yield from _matched(folder.path.name, held, wanted)


def _plain(name: str) -> str:
    """The name of a weight without what peft wraps around the model."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _matched(place: str, held: Mapping[str, tuple[int, ...]], wanted: Wanted) -> Iterator[Finding]:
    """The weights are the model's: names and shapes where those are known, else their number."""
    if wanted.shapes:
        lost = [name for name in wanted.shapes if name not in held]
        if lost:
            hint = "weights are missing, or of another model"
            yield error("tensor-missing", place, f"the model also has {listed(lost)}", hint)
        both = ((name, held[name], shape) for name, shape in wanted.shapes.items() if name in held)
        other = [f"{name} is {own}, not {shape}" for name, own, shape in both if own != shape]
        if other:
            yield error("shape-other", place, listed(other), "the model was changed since")
        return
    total = sum(math.prod(shape) for shape in held.values())
    if wanted.parameters is not None and total != wanted.parameters:
        share = f"{total / wanted.parameters:.2%} of them"
        message = f"{total:,} parameters, the model has {wanted.parameters:,} ({share})"
        yield error(
            "parameters-lacking", place, message, "weights are missing, or of another model"
        )


def _weights(folder: Folder, *, checksums: bool, wanted: Wanted) -> list[Finding]:
    """A folder or file of plain weights."""
    single = folder.kind == "file"
    files = [folder.path] if single else weight_files(folder.path)
    found: list[Finding] = []
    seen: dict[str, Weight] = {}
    for file in files:
        try:
            weights = weights_of(file)
            if file.suffix != ".safetensors":
                found += _archive(file, checksums=checksums)
        except DsforgeError as failure:
            found.append(error("file-unreadable", file.name, failure.message, failure.hint))
            continue
        empty = [weight.name for weight in weights if weight.elements == 0]
        if empty:
            many = f"{len(empty)} of {len(weights)} tensors are empty: {listed(empty)}"
            found.append(error("tensor-empty", file.name, many, GATHER))
        seen |= {weight.name: weight for weight in weights}
    if not single:
        found += _index(folder.path, seen)
    adapter = (folder.path / "adapter_config.json").is_file()
    if not adapter and not any(finding.severity == "error" for finding in found):
        held = {weight.name: weight.shape for weight in seen.values()}
        found += _matched(folder.path.name, held, wanted)
    return found


def _archive(file: Path, *, checksums: bool) -> Iterator[Finding]:
    """What is wrong with a torch file of weights."""
    archive = Archive(file)
    yield from foreign_names(file, archive)
    for line in archive.lacking():
        yield error("tensor-cut", file.name, line, "copy the file again")
    if checksums:
        for line in archive.damage():
            yield error("bytes-changed", file.name, line, "copy the file again")


def _index(folder: Path, seen: dict[str, Weight]) -> Iterator[Finding]:
    """Every weight of the index is in the shard that it names."""
    import json

    for index in sorted(folder.glob("*.index.json")):
        try:
            where = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        except (OSError, ValueError, KeyError, TypeError) as failure:
            yield error("index-unreadable", index.name, f"is no index: {failure!r}")
            continue
        files = sorted({name for name in where.values() if not (folder / name).is_file()})
        if files:
            yield error(
                "shard-missing", index.name, f"names shards that are not there: {listed(files)}"
            )
        lost = [
            n
            for n, f in where.items()
            if f not in files and (n not in seen or seen[n].file.name != f)
        ]
        if lost:
            yield error(
                "tensor-missing", index.name, f"names tensors that are not there: {listed(lost)}"
            )
