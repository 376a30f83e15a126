"""`dsforge rehearse`: the unmodified engine as one rank of N, and the bytes that it holds."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dsforge.cli.flags import Flags, Sections, to_request, with_flags
from dsforge.cli.numbers import Whole
from dsforge.cli.show import note, save, show_json
from dsforge.errors import EXIT_FINDINGS, DsforgeError, Problem, SpecError

if TYPE_CHECKING:
    from dsforge.rehearse.report import PhaseAccount, RehearsalDocument
    from dsforge.rehearse.timeline import Timeline
    from dsforge.specs import LoraSpec, ModelSpec
    from dsforge.strategy import AskedLoss

USUAL_TOKENS = 2048
UNREHEARSED = ("expert",)  # axes: their exchanges depend on data


class Scene(NamedTuple):
    """What is rehearsed: model, ds_config, world and sample."""

    model: ModelSpec
    settings: dict[str, Any]
    world_size: int
    sequence_length: int
    recompute: bool
    lora: LoraSpec | None
    loss: AskedLoss


@click.command(cls=Sections)
@with_flags
@click.option("--ds-config", type=click.Path(path_type=Path), help="Your own ds_config.json.")
@click.option("--world-size", type=Whole(1, 100_000), help="Ranks of the job.")
@click.option("--rank", type=Whole(0), default=0, help="The rank to be.")
@click.option("--picture", type=click.Path(path_type=Path), help="SVG of the timeline to write.")
@click.option("--trace", type=click.Path(path_type=Path), help="Trace for Perfetto to write.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def rehearse(
    *,
    flags: Flags,
    ds_config: Path | None,
    world_size: int | None,
    rank: int,
    picture: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Run the real DeepSpeed engine as one rank of the job and count its memory.

    No GPU, no other ranks and no weights: tensors have sizes only. The config is the one that
    `gen` would write, or yours with --ds-config. Exit code 3 where the engine refuses it.
    """
    from dsforge.rehearse.rehearsed_job import mode_of

    scene = _own(flags, ds_config, world_size) if ds_config else _planned(flags, world_size)
    mode_of(scene.settings, scene.world_size)
    if rank >= scene.world_size:
        message = f"`--rank` (={rank}) must be below the world size (={scene.world_size})"
        raise SpecError((Problem("rank-range", message, "ranks count from 0"),))
    document, timeline = _rehearsed(scene, rank)
    if not document.refused:
        _write(timeline, document, picture, trace)
    if as_json:
        show_json(document.model_dump(mode="json"))
    else:
        print("\n".join(_lines(document)))
    if document.refused:
        sys.exit(EXIT_FINDINGS)


def _planned(flags: Flags, world_size: int | None) -> Scene:
    """The strategy that the flags describe, as `gen` writes it; one group of ranks unless asked."""
    from dsforge.estimate.loss import loss_of
    from dsforge.planner import appraise
    from dsforge.render import render

    request = to_request(flags)
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
    )


def _own(flags: Flags, path: Path, world_size: int | None) -> Scene:
    """A ds_config of the user's with the model that the flags name."""
    from dsforge.reading.ds_config import json_mapping
    from dsforge.reading.model import read_model
    from dsforge.specs import QLORA_BITS, LoraSpec

    settings = _checked(json_mapping(path), str(path))
    missing = []
    if flags.model is None:
        missing.append(Problem("model-missing", "no `--model` is named", "`--model llama-2-7b`"))
    if flags.nodes and flags.gpus_per_node:
        world_size = world_size or flags.nodes * flags.gpus_per_node
    if world_size is None:
        missing.append(
            Problem("world-size-missing", "no `--world-size` is given", "`--world-size 8`")
        )
    if flags.seq_len is not None and flags.seq_len < 1:
        message = f"`--seq-len` (={flags.seq_len}) must be above 0"
        missing.append(Problem("value-range", message, "tokens per sample"))
    if missing or flags.model is None or world_size is None:
        raise SpecError(tuple(missing))
    model, _ = read_model(flags.model)
    tokens = flags.seq_len or min(USUAL_TOKENS, model.max_position_embeddings)
    lora = {"lora": LoraSpec(), "qlora": LoraSpec(bits=QLORA_BITS)}.get(flags.method or "")
    loss: AskedLoss = "chunked" if flags.loss == "chunked" else "plain"
    recompute = flags.recompute == "full"
    return Scene(model, settings, world_size, tokens, recompute, lora, loss)


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
            raise DsforgeError(message, "rehearse it with `cpu`: the device holds the same")
    return settings


def _rehearsed(scene: Scene, rank: int) -> tuple[RehearsalDocument, Timeline]:
    """The rehearsal, with its progress on stderr; what libraries print goes there too."""
    import os

    from dsforge.huggingface import config_from_model
    from dsforge.specs import QLORA_BITS

    if scene.lora is not None and scene.lora.bits == QLORA_BITS:
        message = "QLoRA cannot be rehearsed: bitsandbytes quantises weights, fake ones have none"
        raise DsforgeError(message, "`dsforge estimate` prices it")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # nothing to look for: ours takes its place
    config = config_from_model(scene.model)
    with redirect_stdout(sys.stderr):
        note("importing torch and deepspeed")
        try:
            from dsforge.rehearse import run
            from dsforge.rehearse.rehearsed_job import RehearsedJob
            from dsforge.rehearse.report import RehearsalDocument, phase_accounts
        except ImportError as error:
            from dsforge.origin import install_command

            hint = install_command("train")
            raise DsforgeError(f"a rehearsal needs {error.name}", hint) from error
        run.quieten()
        job = RehearsedJob(config, scene.sequence_length, scene.recompute, scene.lora, scene.loss)
        found = run.rehearse(job, scene.settings, world_size=scene.world_size, rank=rank, say=note)
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
    return document, found.timeline


def _write(
    timeline: Timeline, document: RehearsalDocument, picture: Path | None, trace: Path | None
) -> None:
    """The files that were asked for."""
    from dsforge.rehearse import timeline_export as drawing

    title = f"{document.model}, rank {document.rank} of {document.world_size}"
    texts = []
    if picture is not None:
        texts.append((picture, drawing.picture(timeline, title)))
    if trace is not None:
        texts.append((trace, drawing.trace(timeline)))
    for path, text in texts:
        save(path, text)


def _lines(document: RehearsalDocument) -> list[str]:
    """A table of the phases for people, or what was refused."""
    lines = [f"{document.model}, rank {document.rank} of {document.world_size}"]
    lines += _table(document.phases) if document.phases else []
    for refusal in document.refused:
        lines.append(f"refused by the engine in {refusal.phase}: {refusal.message}")
        lines.append(f"  {refusal.source}")
    lines.append(f"{document.seconds:.1f} s")
    return lines


def _table(phases: dict[str, PhaseAccount]) -> list[str]:
    """One line a phase; small models in MiB."""
    from dsforge.units import GIB, MIB

    large = max(phase.peak_bytes for phase in phases.values()) >= GIB
    unit, name = (GIB, "GiB") if large else (MIB, "MiB")
    titles = ("resident", "peak", "parameter", "gradient", "optimizer", "buffer", "activation")
    rows = [_row(name, *titles, "host")]
    for phase, found in phases.items():
        owners = (value for _, value in found.peak_by_owner)
        sizes = found.resident_bytes, found.peak_bytes, *owners, found.host_resident_bytes
        rows.append(_row(phase, *(f"{size / unit:.2f}" for size in sizes)))
    return [*rows, "  owners as at the peak; host as it stays"]


def _row(name: str, *cells: str) -> str:
    return f"  {name:19}" + "".join(f"{cell:>11}" for cell in cells)
