"""The real DeepSpeed engine as one rank of a job, without GPUs, other ranks or weights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsforge.api.inputs import (
    ClusterInput,
    Inputs,
    JobInput,
    PathInput,
    StrategyInput,
    WorkloadInput,
    asked_of,
    request_of,
)
from dsforge.api.results import RehearseResult
from dsforge.errors import DsforgeError, Problem, SpecError
from dsforge.plan import Request
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import path_of

if TYPE_CHECKING:
    from dsforge.reading.source import Source
    from dsforge.specs import LoraSpec, ModelSpec, Preference, Reference
    from dsforge.strategy import TrainedLoss

USUAL_TOKENS = 2048
UNREHEARSED = ("expert",)  # axes: their exchanges depend on data

Say = Callable[[str], None]


class Scene(NamedTuple):
    """What is rehearsed: model, ds_config, world; then sample and method, as of RehearsedJob."""

    model: ModelSpec
    settings: dict[str, Any]
    world_size: int
    sequence_length: int
    recompute: bool
    lora: LoraSpec | None
    loss: TrainedLoss
    reference: Reference | None = None
    offload_activations: bool = False
    tiled_mlp: bool = False


def rehearse(
    model: JobInput | None,
    cluster: ClusterInput | None = None,
    workload: WorkloadInput | None = None,
    *,
    strategy: StrategyInput | None = None,
    ds_config: PathInput | None = None,
    world_size: int | None = None,
    rank: int = 0,
    say: Say | None = None,
) -> RehearseResult:
    """The memory that the unmodified engine holds as one rank of the job, phase by phase.

    Needs torch, DeepSpeed and transformers; they may print to stdout.

    Args:
        model: As for `load_model`; or a request of `load_request` instead of all inputs.
        cluster: As for `load_cluster`.
        workload: As for `load_workload`.
        strategy: What is fixed, such as `{"zero_stage": 3}`; the rest is chosen.
        ds_config: Path of a DeepSpeed config to rehearse, instead of the one that `gen` writes.
        world_size: Ranks of the job; those of the cluster without it.
        rank: The rank to be, from 0.
        say: Called with each line of progress.

    Returns:
        Bytes on this rank by phase and owner, or what the engine refused; and the timeline.

    Raises:
        SpecError: The input is wrong.
        DsforgeError: The job cannot be rehearsed, or a library is not installed.

    Examples:
        >>> import dsforge
        >>> result = dsforge.rehearse("gpt2", {"gpu": "v100-32gb", "gpus_per_node": 2})
        >>> result.document.world_size, result.document.refused
        (2, ())

    """
    config = None if ds_config is None else path_of(ds_config, "ds_config")
    if isinstance(model, Request) and config is None:
        scene = planned_scene(request_of(Inputs(model, cluster, workload, strategy)), world_size)
    else:
        if isinstance(model, Request):
            message = "a `ds_config` is rehearsed with a model, not with a Request"
            raise SpecError((Problem("inputs-clash", message),))
        scene = scene_of(asked_of(Inputs(model, cluster, workload, strategy)), config, world_size)
    return rehearsed(scene, rank, say)


def scene_of(asked: Asked, ds_config: Path | None, world_size: int | None) -> Scene:
    """What is rehearsed: a config of the user's, or the one that `gen` writes."""
    if ds_config is not None:
        return _own_scene(asked, ds_config, world_size)
    return planned_scene(read_request(asked._replace(by_name=True)), world_size)


def planned_scene(request: Request, world_size: int | None) -> Scene:
    """The strategy of a request as `gen` writes it; one group of ranks unless asked."""
    from dsforge.estimate.loss import loss_of
    from dsforge.planner import appraise
    from dsforge.render import render

    asked = request.constraints
    for axis in UNREHEARSED:
        size = getattr(asked, f"{axis}_parallel_size") or 1
        if size > 1:
            message = f"`{axis}_parallel_size` (={size}) cannot be rehearsed"
            raise DsforgeError(message, "leave it at 1; `dsforge estimate` prices it")
    axes = (*UNREHEARSED, "tensor", "pipeline", "context")
    fixed: dict[str, Any] = {
        f"{axis}_parallel_size": getattr(asked, f"{axis}_parallel_size") or 1 for axis in axes
    }
    fixed["back_end"] = "deepspeed"
    if asked.back_end == "megatron":
        raise DsforgeError("`--for megatron` has no DeepSpeed engine to rehearse")
    if request.workload.optimizer_states is not None:
        message = f"optimizer {request.workload.optimizer} cannot be rehearsed"
        raise DsforgeError(message, "use adamw; `dsforge estimate` prices it")
    work = request.workload
    _reference(work.preference, work.compares_with, adapts=work.method == "lora")
    plan = appraise(request.model_copy(update={"constraints": asked.model_copy(update=fixed)}))
    config = next(a for a in render(plan) if a.path == "deepspeed/ds_config.json")
    work = plan.workload
    return Scene(
        model=plan.model,
        settings=_checked(json.loads(config.text), config.path),
        world_size=world_size or plan.cluster.gpus,
        sequence_length=work.sequence_length,
        recompute=plan.strategy.recompute == "full",
        lora=work.lora if work.method == "lora" else None,
        loss="chunked" if loss_of(plan.model, plan.strategy) == "chunked" else "plain",
        reference=work.compares_with,
        offload_activations=plan.strategy.runs_as.offload_activations,
        tiled_mlp=plan.strategy.runs_as.tiled_mlp,
    )


def _own_scene(asked: Asked, path: Path, world_size: int | None) -> Scene:
    """A ds_config of the user's with the model that is named; nothing else is chosen."""
    from dsforge.reading.ds_config import json_mapping
    from dsforge.reading.files import WorkloadFile
    from dsforge.reading.model import read_model
    from dsforge.reading.problems import validated
    from dsforge.specs import QLORA_BITS, LoraSpec
    from dsforge.strategy import Constraints

    settings = _checked(json_mapping(path), str(path))
    said = {setting.loc: setting.value for setting in asked.settings}
    nodes, each = said.get(("cluster", "nodes")), said.get(("cluster", "gpus_per_node"))
    if nodes and each:
        world_size = world_size or nodes * each
    missing = []
    if ("model",) not in said and asked.known.model is None:
        missing.append(Problem("model-missing", "`--model` is missing", "`--model llama-2-7b`"))
    if world_size is None:
        missing.append(
            Problem("world-size-missing", "`--world-size` is missing", "`--world-size 8`")
        )
    if missing or world_size is None:
        raise SpecError(tuple(missing))
    work = validated(WorkloadFile, _given(asked, "workload"))
    fixed = validated(Constraints, _given(asked, "strategy"))
    model = asked.known.model or read_model(said["model",])[0]
    lora = {"lora": LoraSpec(), "qlora": LoraSpec(bits=QLORA_BITS)}.get(work.method or "")
    return Scene(
        model=model,
        settings=settings,
        world_size=world_size,
        sequence_length=work.sequence_length or min(USUAL_TOKENS, model.max_position_embeddings),
        recompute=fixed.recompute == "full",
        lora=lora,
        loss="chunked" if fixed.loss == "chunked" else "plain",
        reference=_reference(work.preference, work.reference, adapts=lora is not None),
        offload_activations=bool(fixed.offload_activations),
        tiled_mlp=bool(fixed.tiled_mlp),
    )


def _reference(
    preference: Preference | None, given: Reference | None, *, adapts: bool
) -> Reference | None:
    """The reference of DPO; none where next tokens are trained. Raises DsforgeError for others."""
    if preference is None:
        return None
    found = given or ("adapters_off" if adapts else "model")
    if preference != "dpo" or found == "model":
        what = f"preference={preference}" + f" with reference={found}" * (preference == "dpo")
        hint = "use dpo with `reference: precomputed`, or with LoRA; `dsforge estimate` prices it"
        raise DsforgeError(f"{what} cannot be rehearsed", hint)
    return found


def _given(asked: Asked, part: str) -> Source:
    """The settings of one part as a source."""
    from dsforge.reading.source import Source

    return Source(part, {}, prefix=(part,)).overlaid(asked.settings_of(part))


def _checked(settings: dict[str, Any], place: str) -> dict[str, Any]:
    """The config, where its blocks are blocks and it wants nothing that cannot be rehearsed."""
    from dsforge.ds_config import read

    config, found = read(settings, filled_in=False)
    problems = tuple(replace(p, place=place) for p in found if p.rule == "ds-config-block")
    if problems:
        raise SpecError(problems)
    devices = {
        "offload_optimizer": config.offload_optimizer,
        "offload_param": config.offload_parameters,
    }
    for key, device in devices.items():
        if device == "nvme":
            message = f"{place}: `{key}` on NVMe cannot be rehearsed: fake tensors have no bytes"
            raise DsforgeError(message, "rehearse it with `cpu`: device memory is the same")
    return settings


def rehearsed(scene: Scene, rank: int, say: Say | None = None) -> RehearseResult:
    """The rehearsal of a scene as one of its ranks. Raises as `rehearse` does."""
    from dsforge.huggingface import config_from_model
    from dsforge.rehearse.rehearsed_job import RehearsedJob, mode_of

    mode_of(scene.settings, scene.world_size)
    if not 0 <= rank < scene.world_size:
        message = f"`rank` (={rank}) must be below the world size (={scene.world_size})"
        raise SpecError((Problem("rank-range", message, "ranks count from 0"),))
    _check_operators(scene)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # nothing to look for: ours takes its place
    say = say or _silent
    say("importing torch and deepspeed")
    try:
        from dsforge.rehearse import run
        from dsforge.rehearse.report import RehearsalDocument, phase_accounts
    except ImportError as error:
        from dsforge.origin import install_command

        hint = install_command("train")
        raise DsforgeError(f"a rehearsal needs {error.name}", hint) from error
    run.quieten()
    job = RehearsedJob(config_from_model(scene.model), *scene[3:])
    found = run.rehearse(job, scene.settings, world_size=scene.world_size, rank=rank, say=say)
    document = RehearsalDocument(
        model=scene.model.name,
        world_size=scene.world_size,
        rank=rank,
        versions=run.versions(),
        ds_config=scene.settings,
        phases=phase_accounts(found.timeline),
        refused=found.refused,
        seconds=found.seconds,
    )
    return RehearseResult(document, found.timeline)


def _check_operators(scene: Scene) -> None:
    """Raise DsforgeError where a scene has operators that take no fake tensors."""
    from dsforge.specs import BITSANDBYTES_4_BIT

    if scene.model.recurrent is not None:
        message = (
            f"{scene.model.name} cannot be rehearsed: the kernels of its recurrent layers take "
        )
        raise DsforgeError(message + "no fake tensors", "`dsforge estimate` prices it")
    base = None if scene.lora is None else scene.lora.frozen_format
    if base not in (None, *BITSANDBYTES_4_BIT):
        message = f"a base in {base} cannot be rehearsed: its operators take no fake tensors"
        raise DsforgeError(message, "use base nf4 or fp4; `dsforge estimate` prices it")


def _silent(_: str) -> None:
    """Progress that nobody asked for."""
