"""Inputs of the public functions: names, paths, YAML, mappings or finished values.

Whatever is given is read by the same rules as the files and flags of the command line: unknown keys
are refused with the nearest one, all problems are raised together, sizes and depths are bounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsforge.errors import Problem, SpecError
from dsforge.plan import Reason, Request
from dsforge.reading.refusals import refusal
from dsforge.reading.request import Asked, Known, read_request
from dsforge.reading.source import Setting, Source, parse_source, path_of, plain
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import AskedLoss, Constraints

if TYPE_CHECKING:
    from dsforge.plan import Plan

PathInput = str | os.PathLike[str]
ModelInput = str | os.PathLike[str] | Mapping[str, Any] | ModelSpec
ClusterInput = str | os.PathLike[str] | Mapping[str, Any] | ClusterSpec
WorkloadInput = str | os.PathLike[str] | Mapping[str, Any] | Workload
StrategyInput = Mapping[str, Any] | Constraints
SpecInput = str | os.PathLike[str] | Mapping[str, Any]
JobInput = ModelInput | Request  # a model, or everything

ARGUMENTS = "arguments"
# Settings that say how a run is sharded or split.
DESCRIBING = (
    "back_end",
    "zero_stage",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "hpz_partition_size",
    "offload_optimizer",
    "offload_parameters",
)
ANYBODYS = Reason(
    rule="default-software",
    message="`software` is others: nobody said whose scripts run this, so loss and kernels are not "
    "known; `--software dsforge` prices `dsforge train`",
)
ENDINGS = (".yaml", ".yml", ".json")  # of what is a path even where nothing is there


class Inputs(NamedTuple):
    """What the public functions take of a job, before anything is read."""

    model: JobInput | None
    cluster: ClusterInput | None = None
    workload: WorkloadInput | None = None
    strategy: StrategyInput | None = None
    ds_config: PathInput | None = None


def load_model(model: ModelInput) -> ModelSpec:
    """The sizes of a model.

    Args:
        model: Catalog name or alias (`llama-2-7b`), Hugging Face hub id, folder or `config.json`,
            size (`7b`), or the mapping of a `config.json`.

    Returns:
        The model, with every size in counts.

    Raises:
        SpecError: The name is unknown, or the architecture is not modelled.

    Examples:
        >>> import dsforge
        >>> model = dsforge.load_model("llama-2-7b")
        >>> model.layers, model.hidden_size, model.attention_heads
        (32, 4096, 32)

    """
    known = _known_model(model)
    if known.model is not None:
        return known.model
    from dsforge.reading.model import read_model

    return read_model(_text(model, "model"))[0]


def load_cluster(
    cluster: ClusterInput, *, hostfile: PathInput | None = None, resolve: bool = False
) -> ClusterSpec:
    """The machines of a cluster; where its hosts differ, all of them as the weakest.

    Args:
        cluster: Path of a cluster file, YAML text or mapping with its keys, or the catalog name of
            an accelerator.
        hostfile: DeepSpeed hostfile with the machines and their slots.
        resolve: Turn host names into IP addresses.

    Returns:
        The cluster, with bandwidths in bytes/s and memory in bytes.

    Raises:
        SpecError: All problems of the input together.

    Examples:
        >>> import dsforge
        >>> cluster = dsforge.load_cluster({"gpu": "h100-80gb", "nodes": 2, "gpus_per_node": 8})
        >>> cluster.gpus, cluster.intra_node.name
        (16, 'nvlink-4')

    """
    if isinstance(cluster, ClusterSpec):
        return cluster
    from dsforge.reading.cluster import cluster_of
    from dsforge.reading.source import read_source

    settings, path = _part("cluster", cluster)
    source = Source(ARGUMENTS, {}) if path is None else read_source(path)
    inner = tuple(setting._replace(loc=setting.loc[1:]) for setting in settings)
    hosts = None if hostfile is None else path_of(hostfile, "hostfile")
    named = source.overlaid(inner)._replace(prefix=("cluster",) if path is None else ())
    return cluster_of(named, hostfile=hosts, resolve=resolve, by_name=not resolve)[0]


def load_workload(
    workload: WorkloadInput | None = None, *, model: ModelInput, cluster: ClusterInput
) -> Workload:
    """What is to be computed; what is not given is chosen for the model and the cluster.

    Args:
        workload: Path of a workload file, YAML text or mapping with its keys.
        model: As for `load_model`.
        cluster: As for `load_cluster`.

    Returns:
        The workload, with batch sizes in samples and lengths in tokens.

    Raises:
        SpecError: All problems of the input together.

    Examples:
        >>> import dsforge
        >>> work = dsforge.load_workload(
        ...     {"sequence_length": "8k", "tokens": "2b"}, model="llama-2-7b", cluster="h100-80gb"
        ... )
        >>> work.sequence_length, work.tokens
        (8192, 2000000000)

    """
    return load_request(model, cluster, workload).workload


def load_request(
    model: ModelInput | None = None,
    cluster: ClusterInput | None = None,
    workload: WorkloadInput | None = None,
    *,
    strategy: StrategyInput | None = None,
    spec: SpecInput | None = None,
    hostfile: PathInput | None = None,
    resolve: bool = False,
    ds_config: PathInput | None = None,
    launches: bool = False,
) -> Request:
    """Everything that a plan needs, for the functions that take a model or a request.

    Args:
        model: As for `load_model`.
        cluster: As for `load_cluster`.
        workload: As for `load_workload`.
        strategy: What is fixed, such as `{"zero_stage": 3}`; the rest is chosen.
        spec: Path, YAML text or mapping with `model`, `cluster`, `workload` and `strategy`; the
            other arguments win over it.
        hostfile: DeepSpeed hostfile with the machines and their slots.
        resolve: Turn host names into IP addresses.
        ds_config: Path of a DeepSpeed config whose settings are fixed.
        launches: The hosts are to be used, so that each needs an address and not only a name.

    Returns:
        The model, cluster, workload and what is fixed, with a reason for every choice.

    Raises:
        SpecError: All problems of all parts together.

    Examples:
        >>> import dsforge
        >>> request = dsforge.load_request(
        ...     "llama-2-7b", {"gpu": "a100-80gb", "gpus_per_node": 8}, {"tokens": "2b"}
        ... )
        >>> request.cluster.gpus, request.workload.precision
        (8, 'bf16')

    """
    asked = asked_of(Inputs(model, cluster, workload, strategy, ds_config))
    given, path = _spec(spec)
    if asked.known.cluster is not None and hostfile is not None:
        message = "a `hostfile` cannot change a ClusterSpec; give the cluster as a mapping or file"
        raise refusal("inputs-clash", "", message)
    return read_request(
        asked._replace(
            given=given,
            spec=path,
            hostfile=None if hostfile is None else path_of(hostfile, "hostfile"),
            resolve=resolve,
            by_name=not launches,
        )
    )


def with_loss(request: Request, loss: AskedLoss, *reasons: Reason) -> Request:
    """The request with that loss and the reasons for it, where no loss is fixed."""
    fixed = request.constraints
    if fixed.loss is not None:
        return request
    update = {"constraints": fixed.model_copy(update={"loss": loss})}
    return request.model_copy(update={**update, "reasons": (*request.reasons, *reasons)})


def by_others(request: Request, *reasons: Reason) -> Request:
    """The request as of a run that somebody else's scripts made, where it does not say whose."""
    fixed = request.constraints
    if fixed.software is not None:
        return request
    update = {"constraints": fixed.model_copy(update={"software": "others"})}
    return request.model_copy(update={**update, "reasons": (*request.reasons, *reasons)})


def as_described(request: Request) -> Request:
    """The request as of anybody's scripts, where it describes a run and does not say whose.

    What fixes how a run is sharded or split describes one; the rest leaves the run to dsforge.
    """
    fixed = request.constraints
    said = says_whose(request) or not any(getattr(fixed, name) is not None for name in DESCRIBING)
    return request if said else by_others(request, ANYBODYS)


def says_whose(request: Request) -> bool:
    """Whether it is said whose scripts or which program run it."""
    fixed = request.constraints
    return fixed.software is not None or fixed.program is not None


def load_plan(plan: PathInput) -> Plan:
    """The plan that `dsforge gen` wrote.

    Args:
        plan: Path of a `plan.json`, or of the run folder that it is in.

    Returns:
        The plan, equal to the one that was written.

    Raises:
        DsforgeError: The file is no plan of this version.

    Examples:
        >>> import dsforge, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = dsforge.gen("gpt2", "v100-32gb", out=f"{folder}/run")
        ...     dsforge.load_plan(f"{folder}/run") == made.plan
        True

    """
    from dsforge.reading.stored import read_plan

    path = path_of(plan, "plan")
    return read_plan(path / "plan.json" if path.is_dir() else path)


def request_of(inputs: Inputs) -> Request:
    """The request that is given, or the one that the inputs describe. Raises SpecError."""
    if not isinstance(inputs.model, Request):
        return read_request(asked_of(inputs)._replace(by_name=True))
    beside = [name for name, value in zip(inputs._fields, inputs, strict=True) if value is not None]
    if beside != ["model"]:
        message = (
            f"`{'`, `'.join(beside[1:])}` cannot be combined with a Request, which already "
            "contains it"
        )
        raise refusal("inputs-clash", "", message)
    return inputs.model


def asked_of(inputs: Inputs) -> Asked:
    """The inputs as reading takes them. Raises SpecError where one is of no known kind."""
    model, known = inputs.model, _known_model(inputs.model)
    settings: tuple[Setting, ...] = ()
    if model is not None and known.model is None:
        settings = (Setting(("model",), _text(model, "model"), ""),)
    cluster, cluster_path = _part("cluster", inputs.cluster)
    workload, workload_path = _part("workload", inputs.workload)
    fixed = inputs.strategy
    if isinstance(fixed, Constraints):
        fixed = fixed.model_dump(exclude_none=True, exclude_defaults=True)
    strategy, _ = _part("strategy", fixed)
    if isinstance(inputs.cluster, ClusterSpec):
        known = known._replace(cluster=inputs.cluster)
    if isinstance(inputs.workload, Workload):
        known = known._replace(workload=inputs.workload)
    config = inputs.ds_config
    if config is not None and known.workload is not None:
        message = "a `ds_config` cannot change a Workload; give the workload as a mapping or file"
        raise refusal("inputs-clash", "", message)
    return Asked(
        given=Source(ARGUMENTS, {}),
        known=known,
        cluster=cluster_path,
        workload=workload_path,
        ds_config=None if config is None else path_of(config, "ds_config"),
        settings=(*settings, *cluster, *workload, *strategy),
    )


def _known_model(model: object) -> Known:
    """A model that needs no look-up: a finished one, or one that a config describes."""
    if isinstance(model, ModelSpec):
        return Known(model=model)
    if not isinstance(model, Mapping):
        return Known()
    from dsforge.reading.model import model_of_config

    found, reasons = model_of_config(model)
    return Known(model=found, reasons=reasons)


def _part(name: str, value: object) -> tuple[tuple[Setting, ...], Path | None]:
    """One part of a request: settings of a mapping or of YAML text, or the path of its file."""
    if value is None or isinstance(value, ClusterSpec | Workload):
        return (), None
    if isinstance(value, Mapping):
        values = plain(value, name)
        return tuple(Setting((name, key), inner, "") for key, inner in values.items()), None
    text = _text(value, name)
    if isinstance(value, str) and _is_yaml(text):
        source = parse_source(text, name)
        found = source.values.items()
        return tuple(Setting((name, k), inner, source.place((k,))) for k, inner in found), None
    if name == "cluster" and isinstance(value, str) and not _is_path(text):
        return (Setting(("cluster", "gpu"), text, ""),), None
    return (), path_of(text, name)


def _spec(spec: object) -> tuple[Source | None, Path | None]:
    """The spec as a source, or its path."""
    if spec is None:
        return Source(ARGUMENTS, {}), None
    if isinstance(spec, Mapping):
        return Source("spec", plain(spec, "spec")), None
    text = _text(spec, "spec")
    if isinstance(spec, str) and _is_yaml(text):
        return parse_source(text, "spec"), None
    return None, path_of(text, "spec")


def _is_yaml(text: str) -> bool:
    """Whether a text is YAML itself and no path."""
    return "\n" in text or ": " in text


def _is_path(text: str) -> bool:
    """Whether a text that could be the name of an accelerator is a path."""
    try:
        return "/" in text or text.endswith(ENDINGS) or Path(text).exists()
    except (OSError, ValueError):
        return False


def _text(value: object, name: str) -> str:
    """A name or path as text. Raises SpecError for anything else."""
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str) and "\x00" not in text:
            return text
    kind = type(value).__name__
    message = f"`{name}` ({kind}) must be text, a path or a mapping"
    raise SpecError((Problem("value-type", message),))
