"""What a plan rests on, as traced numbers: sizes of model, cluster, workload and strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

from dsforge.estimate.buckets import ENGINE
from dsforge.plan import Plan
from dsforge.specs import (
    ClusterSpec,
    GpuSpec,
    LinkSpec,
    MeasuredLink,
    ModelSpec,
    Precision,
    Workload,
)
from dsforge.strategy import Execution, Strategy
from dsforge.traced import Traced, given, named

MEASURED = "measured on this cluster (its card), in place of data sheets"
CALIBRATED = "fitted on finished runs of this cluster (dsforge calibrate)"
BATCH = "DeepSpeedConfig._batch_assertion; Megatron's num_microbatches_calculator"
SHORT = {
    "data_parallel_size": "dp",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_parallel_size": "ep",
    "gradient_accumulation_steps": "accumulation_steps",
}
UNITS = {  # by the end of a name, the longer ends first
    "_bytes_per_s": "bytes/s",
    "_per_s": "1/s",
    "_bytes": "bytes",
    "_flops": "FLOP/s",
    "_s": "s",
    "_w": "W",
    "layers": "layers",
    "nodes": "nodes",
    "gpus_per_node": "ranks",
    "efficiency": "share",
    "sequence_length": "tokens",
    "batch_size": "samples",
}
RANKS = ("dp", "tp", "pp", "cp", "ep", "hpz_partition_size")
Spec = TypeVar("Spec", bound=BaseModel)


class Inputs(NamedTuple):
    """The four inputs of an estimate, each number of theirs traced."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    strategy: Strategy


def traced_inputs(plan: Plan) -> Inputs:
    """The inputs of a plan, with a name and a source for every number."""
    strategy = _traced(plan.strategy, "strategy", leave=("zero_stage",))
    layout = _traced(strategy.layout, "strategy: layout")
    return Inputs(
        model=_model(plan.model),
        cluster=_cluster(plan.cluster),
        workload=_workload(plan.workload, strategy.model_copy(update={"layout": layout})),
        strategy=strategy.model_copy(update={"layout": layout, "execution": _execution(plan)}),
    )


def _execution(plan: Plan) -> Execution:
    """The software, with a name for each buffer size that nobody computes."""
    execution = plan.strategy.runs_as
    if execution.buckets == "sized":
        return execution
    own = execution.buckets == "engine"
    source = "the engine's own size" if own else "fixed by the user"
    buckets = _traced(ENGINE if execution.buckets == "engine" else execution.buckets, source)
    return execution.model_copy(update={"buckets": buckets})


def _model(model: ModelSpec) -> ModelSpec:
    source = f"model {model.name}"
    parts: dict[str, BaseModel | None] = {"moe": model.moe, "mla": model.mla}
    traced = {name: _traced(part, source) for name, part in parts.items() if part is not None}
    if model.recurrent is not None:
        traced["recurrent"] = _traced(model.recurrent, source, "recurrent_")
    if model.tower is not None:
        traced["tower"] = _traced(model.tower, source, "tower_")
    return _traced(model, source).model_copy(update=traced)


def _workload(workload: Workload, strategy: Strategy) -> Workload:
    """The workload; its batch is the strategy's product where the strategy fits it."""
    asked, product = workload.global_batch_size, strategy.global_batch_size
    batch: int | Traced = given(asked, "samples_per_step", "samples", "workload")
    if product == asked:
        batch = named(product, "global_batch_size", "samples", BATCH)
    traced = _traced(workload, "workload", leave=("global_batch_size",))
    traced = traced.model_copy(update={"global_batch_size": batch})
    if workload.lora is None:
        return traced
    lora = _traced(workload.lora, "workload: LoRA", "lora_")
    return traced.model_copy(update={"lora": lora})


def _cluster(cluster: ClusterSpec) -> ClusterSpec:
    parts: dict[str, BaseModel] = {
        "gpu": _gpu(cluster.gpu),
        "intra_node": _link(cluster.intra_node, "intra_"),
        "inter_node": _link(cluster.inter_node, "inter_"),
    }
    if cluster.nvme is not None:
        parts["nvme"] = _traced(cluster.nvme, "disk of the cluster file", "disk_")
    if cluster.calibration is not None:
        parts["calibration"] = _traced(
            cluster.calibration, CALIBRATED, "calibrated_", leave=("step_error",)
        )
    return _traced(cluster, "cluster").model_copy(update=parts)


def _gpu(gpu: GpuSpec) -> GpuSpec:
    source = f"{gpu.name}: {gpu.source}"
    traced = _traced(gpu, source, leave=("memory_bytes", "memory_bytes_per_s"))
    update: dict[str, object] = {
        "memory_bytes": given(gpu.memory_bytes, "gpu_memory_bytes", "bytes", source),
        "memory_bytes_per_s": given(
            gpu.memory_bytes_per_s, "memory_bytes_per_s", "bytes/s", source
        ),
        "peak_flops": _by_key(gpu.peak_flops, "peak_{}_flops", source),
    }
    if gpu.measured is not None:
        found = _traced(gpu.measured, MEASURED, "measured_")
        flops = _by_key(found.flops, "measured_{}_flops", MEASURED)
        update["measured"] = found.model_copy(update={"flops": flops})
    return traced.model_copy(update=update)


def _by_key(values: Mapping[Precision, float], name: str, source: str) -> dict[str, object]:
    """Numbers of a table, each named after its key."""
    unit = _unit(name)
    return {key: given(value, name.format(key), unit, source) for key, value in values.items()}


def _link(link: LinkSpec, prefix: str) -> LinkSpec:
    traced = _traced(link, f"{link.name}: {link.source}", prefix)
    if link.measured is None:
        return traced
    return traced.model_copy(update={"measured": _measured(link.measured, prefix)})


def _measured(link: MeasuredLink, prefix: str) -> MeasuredLink:
    paces = {kind: _traced(pace, MEASURED, f"{prefix}{kind}_") for kind, pace in link.paces.items()}
    return link.model_copy(update={"paces": paces})


def _traced(spec: Spec, source: str, prefix: str = "", leave: tuple[str, ...] = ()) -> Spec:
    """The same with every number of its own traced; flags, texts and 0 (nothing) stay."""
    traced = {}
    for field, value in spec:
        if type(value) in (int, float) and value and field not in leave:
            name = SHORT.get(field, prefix + field)
            traced[field] = given(value, name, _unit(name), source)
    return spec.model_copy(update=traced)


def _unit(name: str) -> str:
    """The unit that the end of a name tells; none for a plain count."""
    if name in RANKS:
        return "ranks"
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
