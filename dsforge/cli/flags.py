"""The flags that `gen`, `plan` and `estimate` share, declared once.

typer reads a function's signature. `with_flags` puts the fields of `Flags` into that signature, so
a command takes one value instead of two dozen parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from dsforge.plan import Request

INPUT, CLUSTER, WORKLOAD, STRATEGY = "Input files", "Cluster", "Workload", "Strategy"


def _option(*names: str, help: str, panel: str) -> Any:  # noqa: A002 (typer's own word)
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False)


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says; `None` where it says nothing."""

    spec: Annotated[
        Path | None,
        _option("--spec", help="YAML with model, cluster, workload, strategy.", panel=INPUT),
    ] = None
    model: Annotated[
        str | None,
        _option(
            "--model",
            help="Catalog name, hub id, folder, config.json, or a size such as 7b.",
            panel=INPUT,
        ),
    ] = None
    cluster: Annotated[
        Path | None, _option("--cluster", help="Cluster YAML (see `detect`).", panel=INPUT)
    ] = None
    workload: Annotated[Path | None, _option("--workload", help="Workload YAML.", panel=INPUT)] = (
        None
    )
    hostfile: Annotated[
        Path | None, _option("--hostfile", help="DeepSpeed hostfile.", panel=INPUT)
    ] = None
    resolve: Annotated[
        bool, _option("--resolve", help="Turn host names into IP addresses.", panel=INPUT)
    ] = False
    nodes: Annotated[int | None, _option("--nodes", help="Machines.", panel=CLUSTER)] = None
    gpus_per_node: Annotated[
        int | None, _option("--gpus-per-node", help="Accelerators on each.", panel=CLUSTER)
    ] = None
    gpu: Annotated[str | None, _option("--gpu", help="Card, e.g. a100-80gb.", panel=CLUSTER)] = None
    intra_node: Annotated[
        str | None, _option("--intra-node", help="Link in a node: nvlink-3.", panel=CLUSTER)
    ] = None
    inter_node: Annotated[
        str | None, _option("--inter-node", help="Network: 100gbe.", panel=CLUSTER)
    ] = None
    seq_len: Annotated[
        int | None, _option("--seq-len", help="Tokens per sample.", panel=WORKLOAD)
    ] = None
    global_batch: Annotated[
        int | None, _option("--global-batch", help="Samples per optimizer step.", panel=WORKLOAD)
    ] = None
    precision: Annotated[
        str | None, _option("--precision", help="bf16, fp16, fp32 or fp8.", panel=WORKLOAD)
    ] = None
    optimizer: Annotated[
        str | None,
        _option("--optimizer", help="adamw, lion, sgd, adafactor, muon.", panel=WORKLOAD),
    ] = None
    method: Annotated[str | None, _option("--method", help="full or lora.", panel=WORKLOAD)] = None
    data: Annotated[
        str | None, _option("--data", help="Training data, JSONL or Parquet.", panel=WORKLOAD)
    ] = None
    back_end: Annotated[
        str | None, _option("--for", help="deepspeed or megatron.", panel=STRATEGY)
    ] = None
    zero_stage: Annotated[
        int | None, _option("--zero-stage", help="0, 1, 2 or 3.", panel=STRATEGY)
    ] = None
    micro_batch: Annotated[
        int | None, _option("--micro-batch", help="Samples per rank and forward.", panel=STRATEGY)
    ] = None
    tp: Annotated[int | None, _option("--tp", help="Tensor parallel size.", panel=STRATEGY)] = None
    pp: Annotated[int | None, _option("--pp", help="Pipeline parallel size.", panel=STRATEGY)] = (
        None
    )
    cp: Annotated[int | None, _option("--cp", help="Context parallel size.", panel=STRATEGY)] = None
    ep: Annotated[int | None, _option("--ep", help="Expert parallel size.", panel=STRATEGY)] = None
    offload_optimizer: Annotated[
        str | None, _option("--offload-optimizer", help="none, cpu or nvme.", panel=STRATEGY)
    ] = None
    offload_params: Annotated[
        str | None, _option("--offload-params", help="none, cpu or nvme.", panel=STRATEGY)
    ] = None
    recompute: Annotated[
        str | None, _option("--recompute", help="none, selective or full.", panel=STRATEGY)
    ] = None


# Where in the spec file the value of each flag belongs.
_SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "model": ("--model", ("model",)),
    "nodes": ("--nodes", ("cluster", "nodes")),
    "gpus_per_node": ("--gpus-per-node", ("cluster", "gpus_per_node")),
    "gpu": ("--gpu", ("cluster", "gpu")),
    "intra_node": ("--intra-node", ("cluster", "intra_node")),
    "inter_node": ("--inter-node", ("cluster", "inter_node")),
    "seq_len": ("--seq-len", ("workload", "sequence_length")),
    "global_batch": ("--global-batch", ("workload", "global_batch_size")),
    "precision": ("--precision", ("workload", "precision")),
    "optimizer": ("--optimizer", ("workload", "optimizer")),
    "method": ("--method", ("workload", "method")),
    "data": ("--data", ("workload", "data", "train")),
    "back_end": ("--for", ("strategy", "back_end")),
    "zero_stage": ("--zero-stage", ("strategy", "zero_stage")),
    "micro_batch": ("--micro-batch", ("strategy", "micro_batch_size")),
    "tp": ("--tp", ("strategy", "tensor_parallel_size")),
    "pp": ("--pp", ("strategy", "pipeline_parallel_size")),
    "cp": ("--cp", ("strategy", "context_parallel_size")),
    "ep": ("--ep", ("strategy", "expert_parallel_size")),
    "offload_optimizer": ("--offload-optimizer", ("strategy", "offload_optimizer")),
    "offload_params": ("--offload-params", ("strategy", "offload_parameters")),
    "recompute": ("--recompute", ("strategy", "recompute")),
}


def to_request(flags: Flags) -> Request:
    """What the command line and the files it names ask for. SpecError with all problems."""
    from dsforge.reading.request import Asked, read_request
    from dsforge.reading.source import Setting

    settings = tuple(
        Setting(loc, getattr(flags, field), place)
        for field, (place, loc) in _SETTINGS.items()
        if getattr(flags, field) is not None
    )
    return read_request(
        Asked(
            spec=flags.spec,
            cluster=flags.cluster,
            workload=flags.workload,
            hostfile=flags.hostfile,
            resolve=flags.resolve,
            settings=settings,
        )
    )


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its `flags: Flags` parameter spread into one option per field."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "flags"
    ]
    types = get_type_hints(Flags, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=types[field.name],
        )
        for field in fields(Flags)
    ]
    names = {field.name for field in fields(Flags)}

    @wraps(command)
    def spread(**values: Any) -> None:
        flags = Flags(**{name: values.pop(name) for name in names})
        command(flags=flags, **values)

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    spread.__signature__ = inspect.Signature(shared + keyword)  # type: ignore[attr-defined]
    del spread.__annotations__  # typer would read the wrapped command's
    return spread
