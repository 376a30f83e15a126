"""Plan -> context of PLAN.md: the choice, its price by term, the reasons, how to launch.

Numbers become text here; wording and order stand in the template.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel

from dsforge.plan import Plan, Priced, Reason, ReasonKind, Variant, VariantName
from dsforge.planner.figures import HOST, LABELS, STEP, TIGHT, Figure, figures, fit, memory_label
from dsforge.planner.preference import demand, ease
from dsforge.planner.pricing import shortage
from dsforge.programs import BY_NAME as PROGRAMS
from dsforge.programs.converters import converter_of
from dsforge.render.bundles import Bundle
from dsforge.render.environment import Variable, environment_variables
from dsforge.render.job import DS_CONFIG, weights
from dsforge.render.launch import PRETRAIN, has_placeholders
from dsforge.render.megatron import shards_optimizer
from dsforge.units import SAME, Interval, amount, count, gib, seconds, times

FILES = {"megatron": "megatron/args.txt"}
MEGATRON = (
    "`MEGATRON_PATH` is a checkout of Megatron-LM, `DATA_PATH` the prefix of the data written "
    "by its `tools/preprocess_data.py`{}. Training starts from random weights, unless "
    "`output/megatron` contains a checkpoint of this run, or `PRETRAINED_PATH` is a checkpoint "
    "of Megatron-LM with trained weights{}."
)


class Row(NamedTuple):
    """One line of a table: name, value, and what the value means."""

    name: str
    value: str
    note: str = ""


class VariantRow(NamedTuple):
    """One generated file beside the chosen one, or why it does not exist."""

    file: str
    label: str
    memory: str
    step: str
    verdict: str


class Launch(NamedTuple):
    """A strategy that the files of the folder start, and the commands that do it."""

    label: str
    software: str
    files: str
    folder: str
    ways: tuple[Row, ...]
    note: str = ""


class ReportContext(NamedTuple):
    """Fields of report/PLAN.md.j2."""

    title: str
    facts: tuple[Row, ...]
    choice: tuple[Row, ...]
    fits: bool
    summary: tuple[Figure, ...]
    memory: tuple[Row, ...]
    time: tuple[Row, ...]
    run: tuple[Row, ...]
    energy: bool
    warnings: tuple[Reason, ...]
    reasons: tuple[Reason, ...]
    assumed: tuple[Reason, ...]
    memory_label: str
    variants: tuple[VariantRow, ...]
    chosen: Launch
    alternative: Launch | None
    variables: tuple[Variable, ...]
    placeholders: bool
    placeholder_data: bool
    selected: bool


def report_context(plan: Plan, wanted: tuple[Bundle, ...]) -> ReportContext:
    """Context of report/PLAN.md.j2; `wanted` are the strategies that can be started."""
    launches = [_launch(plan, bundle) for bundle in wanted]
    return ReportContext(
        title=f"{plan.model.name} on {plan.cluster.nodes} x {plan.cluster.gpus_per_node} "
        f"{plan.cluster.gpu.name}",
        facts=_facts(plan),
        choice=_choice(plan),
        fits=plan.choice.fits,
        summary=figures(plan)[1:],
        memory=memory_rows(plan),
        time=(*time_rows(plan.choice), *speed_rows(plan)),
        run=run_rows(plan),
        energy=plan.run is not None and plan.run.energy_kwh is not None,
        warnings=_of_kind(plan, "warning"),
        reasons=_of_kind(plan, "choice"),
        assumed=_of_kind(plan, "note", "default"),
        memory_label=_label(plan).capitalize(),
        variants=tuple(_variant(plan, variant) for variant in plan.variants),
        chosen=launches[0],
        alternative=launches[1] if len(launches) > 1 else None,
        variables=environment_variables(plan),
        placeholders=has_placeholders(plan.cluster),
        placeholder_data=plan.workload.data is None
        and wanted[0].strategy.back_end == "deepspeed"
        and wanted[0].is_choice,
        selected=any(host.devices for host in plan.cluster.hosts),
    )


def _launch(plan: Plan, bundle: Bundle) -> Launch:
    """How a strategy is started: over ssh, on each host, under Slurm."""
    label, slurm = bundle.strategy.label(), f"sbatch {bundle.script('slurm.sbatch')}"
    each = "on every host" if plan.cluster.nodes > 1 else "here"
    program = bundle.strategy.runs_as.program
    starts = Row("without ssh", bundle.script("torchrun.sh"), each)
    under = Row("under Slurm", slurm, "in this folder")
    if program is not None:
        own = PROGRAMS[program]
        if own.is_own:
            return Launch(label, own.label, bundle.train, bundle.folder, (starts, under))
        where = "on one host" if own.starts_all else each
        start = Row("with its own launcher", bundle.script(own.start), where)
        return Launch(label, own.label, f"{bundle.folder}/", bundle.folder, (start,))
    if bundle.strategy.back_end == "megatron":
        given = "MEGATRON_PATH=... DATA_PATH=..."
        alone = Row("without Slurm", f"{given} {PRETRAIN}", each)
        ways = (alone, Row("under Slurm", f"{given} {slurm}", "in this folder"))
        arguments = FILES["megatron"]
        data = plan.workload.data
        of = f" of {data.train}" if data else "; without it, Megatron-LM trains on mock data"
        note = MEGATRON.format(of, _written_by(plan))
        return Launch(label, "Megatron-LM", arguments, bundle.folder, ways, note)
    ssh = Row("over ssh", bundle.script("deepspeed.sh"), "on one host")
    every = (ssh, starts, under)
    return Launch(label, "DeepSpeed", f"{bundle.train}` and `{DS_CONFIG}", bundle.folder, every)


def _written_by(plan: Plan) -> str:
    """What writes a checkpoint of Megatron-LM from published weights; that nothing does."""
    if weights(plan.model) is None:
        return ""
    tool = converter_of(plan.model.model_type)
    if tool is None:
        return f"; nothing converts those of {plan.model.name}"
    return f", as {tool.tool} writes it"


def _facts(plan: Plan) -> tuple[Row, ...]:
    """The three inputs in a few words."""
    model, cluster, workload = plan.model, plan.cluster, plan.workload
    between = f"{cluster.inter_node.name} x {cluster.nics_per_node} between nodes"
    network = between if cluster.nodes > 1 else "one node"
    joined = f"NVLink domains of {cluster.nvlink_domain_nodes} nodes"
    inside = joined if cluster.nvlink_domain_nodes > 1 else "a node"
    return (
        Row("Model", model.name, f"{count(plan.parameters)} parameters, {model.layers} layers"),
        Row(
            "Cluster",
            f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.name}",
            f"{cluster.intra_node.name} in {inside}, {network}",
        ),
        Row(
            "Workload",
            f"{workload.global_batch_size} x {workload.sequence_length} tokens per step",
            f"{workload.method_name} training, {workload.precision}, {workload.optimizer}, "
            + (f"{workload.steps} steps" if workload.steps else "no token budget"),
        ),
    )


def _choice(plan: Plan) -> tuple[Row, ...]:
    """The decision, in the words of the glossary; sizes of 1 and what is off are left out."""
    strategy = plan.strategy
    layout, program = strategy.layout, strategy.runs_as.program
    sharded = Row("ZeRO stage", str(strategy.zero_stage))
    if strategy.back_end == "megatron":
        sharded = Row("distributed optimizer", "on" if shards_optimizer(strategy) else "off")
    rows = (
        *((Row("program", PROGRAMS[program].label),) if program else ()),
        Row("back end", strategy.back_end) if not program else Row("engine", strategy.engine.label),
        sharded,
        Row("data parallel size", str(layout.data_parallel_size)),
        Row("micro batch size", str(strategy.micro_batch_size)),
        Row("gradient accumulation steps", str(strategy.gradient_accumulation_steps)),
        Row("global batch size", str(strategy.global_batch_size)),
        Row("recompute", strategy.recompute),
    )
    beyond = (
        Row("tensor parallel size", str(layout.tensor_parallel_size)),
        Row("pipeline parallel size", str(layout.pipeline_parallel_size)),
        Row("virtual pipeline stages per rank", str(strategy.virtual_stages)),
        Row("context parallel size", str(layout.context_parallel_size)),
        Row("expert parallel size", str(layout.expert_parallel_size)),
        Row("hpZ partition size", str(strategy.hpz_partition_size)),
        Row("shard group size", str(strategy.runs_as.shard_group or "none")),
        Row("optimizer offload", strategy.offload_optimizer),
        Row("parameter offload", strategy.offload_parameters),
    )
    return (*rows, *(row for row in beyond if row.value not in ("1", "none")))


def _terms(terms: BaseModel) -> dict[str, tuple[float, str]]:
    """Value and description of each term of a ledger, in the order of its fields."""
    fields = type(terms).model_fields
    return {name: (getattr(terms, name), field.description or "") for name, field in fields.items()}


def memory_rows(plan: Plan) -> tuple[Row, ...]:
    """GPU memory by term, its sum by counter, host memory by phase."""
    memory, on_cpu = plan.choice.memory, plan.cluster.gpu.is_cpu
    terms = (
        Row(name.replace("_", " "), gib(value), note)
        for name, (value, note) in _terms(memory.terms).items()
    )
    shown = "resident memory of a CPU rank" if on_cpu else "what nvidia-smi shows"
    span = "low / likely / high"
    phase = f"per node, at its peak (phase: {memory.host_bytes.peak_phase})"
    disk = (Row("NVMe", gib(memory.nvme_bytes), "per node"),) if memory.nvme_bytes else ()
    return (
        *terms,
        Row(LABELS["allocated"], _interval(memory.allocated_bytes), span),
        Row(LABELS["reserved"], _interval(memory.reserved_bytes), span),
        Row(_label(plan), _interval(memory.device_bytes), f"{span}: {shown}"),
        Row(HOST, gib(memory.host_bytes.peak), phase),
        *disk,
        Row("checkpoint", gib(memory.checkpoint_bytes), "on disk, optimizer state included"),
    )


def _label(plan: Plan) -> str:
    """What the memory is called that decides whether the plan fits."""
    return memory_label("device", on_cpu=plan.cluster.gpu.is_cpu)


def _of_kind(plan: Plan, *kinds: ReasonKind) -> tuple[Reason, ...]:
    """The reasons of some kinds, in their order."""
    return tuple(reason for reason in plan.choice.reasons if reason.kind in kinds)


def time_rows(priced: Priced) -> tuple[Row, ...]:
    """Step time by term, and the rates that follow from it."""
    time = priced.time
    terms = (
        Row(name.removesuffix("_s"), seconds(value), note)
        for name, (value, note) in _terms(time.terms).items()
    )
    low, likely, high = time.step_s.low, time.step_s.likely, time.step_s.high
    span = f"{seconds(low)} / {seconds(likely)} / {seconds(high)}"
    return (
        *terms,
        Row(STEP, span, "low / likely / high"),
    )


def speed_rows(plan: Plan) -> tuple[Row, ...]:
    """The rates that follow from the step."""
    speed = plan.speed
    return (
        Row("tokens/s", _amounts(speed.tokens_per_s), "of the whole cluster"),
        Row("model TFLOP/s per GPU", _amounts(speed.model_tflops_per_gpu), "useful FLOPs"),
        Row(
            "hardware TFLOP/s per GPU",
            _amounts(speed.hardware_tflops_per_gpu),
            "including recomputation",
        ),
        Row("MFU", _shares(speed.mfu), "useful FLOPs relative to the peak of the accelerator"),
        Row("HFU", _shares(speed.hfu), "executed FLOPs relative to the peak of the accelerator"),
    )


def run_rows(plan: Plan) -> tuple[Row, ...]:
    """What the token budget takes and costs; empty without one."""
    run = plan.run
    if run is None:
        return ()
    rows = [
        Row("tokens", count(run.tokens), f"{run.steps:,} steps"),
        Row("days", _amounts(run.days), "without interruptions"),
        Row("GPU-hours", _amounts(run.gpu_hours)),
    ]
    if run.energy_kwh is not None:
        power = f"{plan.cluster.gpu.power_w} W for each {plan.cluster.gpu.name}"
        rows.append(Row("energy, kWh", _amounts(run.energy_kwh), power))
    if run.money is not None:
        price = f"at {plan.cluster.gpu_hour_price:g} per GPU-hour"
        rows.append(Row("cost", _amounts(run.money), price))
    return tuple(rows)


def _amounts(value: Interval) -> str:
    return " / ".join(amount(end) for end in (value.low, value.likely, value.high))


def _shares(value: Interval) -> str:
    return " / ".join(f"{end:.1%}" for end in (value.low, value.likely, value.high))


def _interval(value_bytes: Interval) -> str:
    return f"{gib(value_bytes.low)} / {gib(value_bytes.likely)} / {gib(value_bytes.high)}"


def file_of(name: VariantName) -> str:
    """The file in which a variant is written."""
    return FILES.get(name, f"deepspeed/{name}.json")


def _variant(plan: Plan, variant: Variant) -> VariantRow:
    """What was generated beside the choice and why it lost, or why it is not written."""
    file, priced = file_of(variant.name), variant.priced
    if priced is None:
        said = "; ".join(f"{p.message} [{p.rule}]" for p in variant.problems)
        return VariantRow(file, "", "", "", f"not written: {said}")
    device = gib(priced.memory.device_bytes.likely)
    step = seconds(priced.time.step_s.likely)
    verdict = _verdict(plan, priced)
    if variant.name == "megatron" and not priced.fits:
        verdict += "; not written"
    return VariantRow(file, priced.strategy.label(), device, step, verdict)


def _verdict(plan: Plan, other: Priced) -> str:
    """Why another configuration was not chosen."""
    if other.strategy == plan.strategy:
        return "the choice"
    if not other.fits:
        return f"does not fit: {shortage(plan.cluster, other.memory)}"
    mine_s, step_s = plan.choice.time.step_s.likely, other.time.step_s.likely
    how, surely = times(step_s, mine_s), fit(plan.cluster, plan.choice)
    if fit(plan.cluster, other) == TIGHT and surely != TIGHT:
        high = gib(other.memory.device_bytes.high)
        return f"{how}, but tight: the upper estimate ({high}) does not fit"
    asks = demand(plan.strategy, other.strategy)
    if step_s * SAME > mine_s:
        return f"{how}, but {asks}" if asks and step_s < mine_s * SAME else how
    return f"{how}, but {asks or _beyond(plan, other)}"


def _beyond(plan: Plan, other: Priced) -> str:
    """What keeps a faster configuration out that asks no more of its user: memory, or a flag.

    Steps within about a hundredth tie, and then the smaller memory is chosen.
    """
    more = other.memory.device_bytes.likely - plan.choice.memory.device_bytes.likely
    alike = ease(plan.strategy) == ease(other.strategy)
    if alike and more > 0:
        return f"needs {gib(more)} more {memory_label('device', on_cpu=plan.cluster.gpu.is_cpu)}"
    return "outside the given constraints"
