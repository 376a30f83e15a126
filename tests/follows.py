"""Whether the files of a run folder say and start what the plan has chosen.

Each file is read back by what reads it in earnest (YAML, JSON, the words of a script) and compared,
field by field, with the strategy that it belongs to. `unlike(plan)` yields what disagrees.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dsforge.hostfile import parse_hostfile
from dsforge.job import TrainJob
from dsforge.plan import Plan, Priced
from dsforge.render import render
from dsforge.specs import Workload
from dsforge.strategy import FULLY_SHARDED, Strategy
from dsforge.units import seconds

OPTIMIZERS = {"adamw": "AdamW", "lion": "Lion", "sgd": "SGD", "adafactor": "Adafactor"}
MEGATRON_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}
BUCKETS = {
    "overlap_comm": "overlap_comm",
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_bucket_size": "allgather_bucket_size",
    "stage3_prefetch_bucket_size": "prefetch_bucket_size",
    "stage3_param_persistence_threshold": "persistence_threshold",
    "stage3_max_live_parameters": "max_live_parameters",
    "stage3_max_reuse_distance": "max_reuse_distance",
    "sub_group_size": "sub_group_size",
}
FOLDERS = ("launch", "deepspeed", "megatron")
_TRAINS = re.compile(r"--module dsforge\.train (\S+)")
_PRETRAINS = re.compile(r"(?m)^exec .*(megatron/pretrain\.sh|pretrain_gpt\.py)")
_COMPARED = re.compile(r"(?m)^\| `([^`]+)` \| ([^|]*?) \| [^|]* \| ([^|]*?) \| [^|]* \|$")
_NAMED = re.compile(r"`([^`\s]+)`")


def unlike(plan: Plan) -> Iterator[str]:
    """What the files of a plan's run folder say or start that it did not choose."""
    made = render(plan)
    files = {artifact.path: artifact.text for artifact in made}
    scripts = {artifact.path: artifact.text for artifact in made if artifact.executable}
    yield from _starts(plan, files, scripts)
    yield from _launch_page(plan, files)
    yield from _choice_page(plan, files["PLAN.md"])
    yield from _compared_page(plan, files)
    yield from _hosts(plan, files)
    for job in ("train.yaml", "train-deepspeed.yaml"):
        if job in files:
            yield from _deepspeed(plan, files, job)
    if "megatron/args.txt" in files:
        yield from _megatron(plan, files["megatron/args.txt"])


def strategy_of(plan: Plan, back_end: str) -> Priced | None:
    """The strategy that the files of a back end are for: the choice, else what fits and is best."""
    if plan.strategy.back_end == back_end:
        return plan.choice
    fitting = [v.priced for v in plan.variants if v.priced is not None and v.priced.fits]
    mine = [priced for priced in fitting if priced.strategy.back_end == back_end]
    return min(mine, key=lambda priced: priced.time.step_s.likely, default=None)


def started(text: str) -> str | None:
    """What a script starts: the job of `dsforge train`, or `megatron`; none for neither."""
    job = _TRAINS.search(text)
    if job:
        return shlex.split(job[1])[0]
    return "megatron" if _PRETRAINS.search(text) else None


def _starts(plan: Plan, files: Mapping[str, str], scripts: Mapping[str, str]) -> Iterator[str]:
    """Scripts that start something else than their folder promises."""
    chosen = "megatron" if plan.strategy.back_end == "megatron" else "train.yaml"
    promised = {"launch": chosen, "megatron": "megatron", "deepspeed": "train-deepspeed.yaml"}
    for path, text in scripts.items():
        found = started(text)
        if found != promised[path.partition("/")[0]]:
            yield f"{path} starts {found}"
        if found not in ("megatron", *files):
            yield f"{path} starts {found}, which is not written"
    if "launch/slurm.sbatch" not in scripts:
        yield "nothing starts the choice under Slurm"
    for back_end, mark in (("megatron", "megatron/args.txt"), ("deepspeed", "ds_config.json")):
        written = any(path.endswith(mark) for path in files)
        if written != (strategy_of(plan, back_end) is not None):
            yield f"{mark} is {'' if written else 'not '}written"


def _launch_page(plan: Plan, files: Mapping[str, str]) -> Iterator[str]:
    """Commands of PLAN.md that name what does not exist, or the alternative before the choice."""
    page = files["PLAN.md"].partition("## How to launch")[2]
    named = [path for path in _NAMED.findall(page.replace("`MEGATRON_PATH=", "`")) if "/" in path]
    words = [w for line in re.findall(r"`([^`]*)`", page) for w in line.split()]
    scripts = [word for word in words if word.startswith(tuple(f"{f}/" for f in FOLDERS))]
    for path in {*scripts, *named}:
        if path.startswith(FOLDERS) and path not in files:
            yield f"PLAN.md names {path}, which is not written"
    first = page.find(f"The choice, {plan.strategy.label()}")
    other = page.find("The alternative, ")
    if first < 0 or 0 <= other < first:
        yield "PLAN.md does not begin with how to launch the choice"
    own = {path for path in files if path.startswith("launch/")}
    if not own <= set(scripts):
        yield f"PLAN.md does not name {own - set(scripts)}"


def _choice_page(plan: Plan, page: str) -> Iterator[str]:
    """Rows of the choice in PLAN.md that are not the strategy's; it leaves out 1 and none."""
    said = dict(re.findall(r"(?m)^- ([^:`]+): \*\*(.+)\*\*$", page))
    strategy, layout = plan.strategy, plan.strategy.layout
    wanted = {
        "back end": strategy.back_end,
        "micro batch size": strategy.micro_batch_size,
        "gradient accumulation steps": strategy.gradient_accumulation_steps,
        "recompute": strategy.recompute,
        "data parallel size": layout.data_parallel_size,
    }
    optional = {
        "tensor parallel size": (layout.tensor_parallel_size, 1),
        "pipeline parallel size": (layout.pipeline_parallel_size, 1),
        "context parallel size": (layout.context_parallel_size, 1),
        "expert parallel size": (layout.expert_parallel_size, 1),
        "hpZ partition size": (strategy.hpz_partition_size, 1),
        "optimizer offload": (strategy.offload_optimizer, "none"),
        "parameter offload": (strategy.offload_parameters, "none"),
    }
    if strategy.back_end == "deepspeed":
        wanted["ZeRO stage"] = strategy.zero_stage
    yield from _differing("PLAN.md", said, {name: str(value) for name, value in wanted.items()})
    shown = {name: said.get(name, str(absent)) for name, (_, absent) in optional.items()}
    yield from _differing("PLAN.md", shown, {name: str(v) for name, (v, _) in optional.items()})


def _compared_page(plan: Plan, files: Mapping[str, str]) -> Iterator[str]:
    """Rows of the comparison in PLAN.md that say of a file what another strategy does.

    A file has one owner: what is written in it is what the row promises, and its speed.
    """
    for path, label, step in _COMPARED.findall(files["PLAN.md"]):
        if path not in files or not label:
            continue
        name = path.rpartition("/")[2].removesuffix(".json")
        megatron = path == "megatron/args.txt"
        owner = strategy_of(plan, "megatron") if megatron else plan.variant(name).priced
        assert owner is not None
        said, wanted = (label, step), (owner.strategy.label(), seconds(owner.time.step_s.likely))
        if said != wanted:
            yield f"PLAN.md says {said} of {path}, which holds {wanted}"
        if not megatron:
            held = _planned(plan, owner.strategy, plan.workload)
            yield from _differing(path, _said(json.loads(files[path])), held)


def _hosts(plan: Plan, files: Mapping[str, str]) -> Iterator[str]:
    """Sizes of the job in hostfile and scripts that are not those of the plan."""
    cluster = plan.cluster
    hosts = parse_hostfile(files["hostfile"], "hostfile")
    planned = [host.listed_slots for host in cluster.hosts]
    planned = planned or [cluster.gpus_per_node] * cluster.nodes
    if [host.slots for host in hosts] != planned:
        yield f"hostfile has {[host.slots for host in hosts]}, the plan {planned}"
    for path, text in files.items():
        if path.endswith("slurm.sbatch"):
            said = dict(re.findall(r"(?m)^#SBATCH --([a-z-]+)=(\S+)$", text))
            if said["nodes"] != str(cluster.nodes):
                yield f"{path} asks for {said['nodes']} nodes"
            if not cluster.gpu.is_cpu and said["gpus-per-node"] != str(cluster.gpus_per_node):
                yield f"{path} asks for {said['gpus-per-node']} GPUs"


def _differing(where: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for name, value in wanted.items():
        if found[name] != value:
            yield f"{where}: {name} is {found[name]!r}, the plan has {value!r}"


def _deepspeed(plan: Plan, files: Mapping[str, str], name: str) -> Iterator[str]:
    """Fields of a job and of its ds_config that are not those of the strategy and the workload."""
    priced = strategy_of(plan, "deepspeed")
    assert priced is not None
    strategy, work = priced.strategy, plan.workload
    job = TrainJob.model_validate(yaml.safe_load(files[name]))
    wanted = {
        "sequence_length": work.sequence_length,
        "gradient_checkpointing": strategy.recompute != "none",
        "lora": work.lora,
        "seed": work.seed,
        "steps": work.steps,
        "deepspeed_config": "deepspeed/ds_config.json",
    }
    if plan.model.path or plan.model.hub_id:
        wanted["model"] = plan.model.path or plan.model.hub_id
    yield from _differing(name, dict(job), wanted)
    layout = strategy.layout
    if (layout.expert_parallel_size, strategy.virtual_stages) != (1, 1):
        yield f"no file of DeepSpeed says {strategy.label()}"
    config = json.loads(files[job.deepspeed_config])
    yield from _differing("ds_config", _said(config), _planned(plan, strategy, work))
    sizes = {key: getattr(priced.buckets, name) for key, name in BUCKETS.items()}
    zero = config.get("zero_optimization", {})
    written = {key: size for key, size in sizes.items() if key in zero}
    yield from _differing("ds_config", zero, written)
    if strategy.zero_stage and "reduce_bucket_size" not in written:
        yield "ds_config has no bucket size"


def _said(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ds_config under the names of `_planned`."""
    zero = config.get("zero_optimization", {})
    optimizer = config["optimizer"]
    blocks = {name: zero.get(name) or {} for name in ("offload_optimizer", "offload_param")}
    return {
        "batch": config["train_batch_size"],
        "micro batch": config["train_micro_batch_size_per_gpu"],
        "accumulation": config["gradient_accumulation_steps"],
        "bf16": config.get("bf16", {}).get("enabled", False),
        "fp16": config.get("fp16", {}).get("enabled", False),
        "stage": zero.get("stage", 0),
        "offloads": tuple(block.get("device", "none") for block in blocks.values()),
        "paths": {b["nvme_path"] for b in blocks.values() if b.get("device") == "nvme"},
        "hpz": zero.get("zero_hpz_partition_size", 1),
        "quantized": tuple(
            zero.get(f"zero_quantized_{name}", False) for name in ("weights", "gradients")
        ),
        "tensor": config.get("tensor_parallel", {}).get("autotp_size", 1),
        "pipeline": config.get("pipeline", {}).get("stages", 1),
        "sequence": config.get("sequence_parallel_size", 1),
        "optimizer": optimizer["type"],
        "lr": optimizer["params"]["lr"],
        "weight decay": optimizer["params"]["weight_decay"],
        "clipping": config["gradient_clipping"],
    }


def _planned(plan: Plan, strategy: Strategy, work: Workload) -> dict[str, Any]:
    """What a strategy and a workload want of a ds_config."""
    offloads = (strategy.offload_optimizer, strategy.offload_parameters)
    disk = {plan.cluster.nvme.path} if "nvme" in offloads and plan.cluster.nvme else set()
    return {
        "batch": strategy.global_batch_size,
        "micro batch": strategy.micro_batch_size,
        "accumulation": strategy.gradient_accumulation_steps,
        "bf16": work.precision in ("bf16", "fp8"),
        "fp16": work.precision == "fp16",
        "stage": strategy.zero_stage,
        "offloads": offloads,
        "paths": disk,
        "hpz": strategy.hpz_partition_size,
        "quantized": (
            strategy.zero_stage == FULLY_SHARDED and strategy.runs_as.quantized_weights,
            strategy.zero_stage == FULLY_SHARDED and strategy.runs_as.quantized_gradients,
        ),
        "tensor": strategy.layout.tensor_parallel_size,
        "pipeline": strategy.layout.pipeline_parallel_size,
        "sequence": strategy.layout.context_parallel_size,
        "optimizer": {**OPTIMIZERS, "muon": "Muon"}[work.optimizer],
        "lr": work.learning_rate,
        "weight decay": work.weight_decay,
        "clipping": work.gradient_clipping,
    }


def _megatron(plan: Plan, text: str) -> Iterator[str]:
    """Arguments that are not those of the strategy and the workload."""
    priced = strategy_of(plan, "megatron")
    assert priced is not None
    strategy, work, layout = priced.strategy, plan.workload, priced.strategy.layout
    said = {flag: value for flag, _, value in (line.partition(" ") for line in text.splitlines())}
    numbers = {
        "--tensor-model-parallel-size": layout.tensor_parallel_size,
        "--pipeline-model-parallel-size": layout.pipeline_parallel_size,
        "--context-parallel-size": layout.context_parallel_size,
        "--expert-model-parallel-size": layout.expert_parallel_size,
        "--micro-batch-size": strategy.micro_batch_size,
        "--global-batch-size": strategy.global_batch_size,
        "--seq-length": work.sequence_length,
        "--num-layers": plan.model.layers,
        "--hidden-size": plan.model.hidden_size,
        "--lr": work.learning_rate,
        "--weight-decay": work.weight_decay,
        "--clip-grad": work.gradient_clipping,
        "--seed": work.seed,
    }
    yield from _differing("args.txt", {f: float(said[f]) for f in numbers}, numbers)
    optional = {
        "--num-virtual-stages-per-pipeline-rank": (strategy.virtual_stages, 1),
        "--train-iters": (work.steps, None),
        "--recompute-granularity": (strategy.recompute, "none"),
    }
    for flag, (value, absent) in optional.items():
        if said.get(flag, str(absent)) != str(value):
            yield f"args.txt: {flag} is {said.get(flag)}, the plan has {value}"
    switches = {
        "--sequence-parallel": strategy.sequence_parallel,
        "--bf16": work.precision in ("bf16", "fp8"),
        "--fp16": work.precision == "fp16",
        "--use-distributed-optimizer": layout.shard_ranks > 1 and strategy.zero_stage > 0,
    }
    yield from _differing("args.txt", {flag: flag in said for flag in switches}, switches)
    if strategy.offloads or strategy.hpz_partition_size > 1:
        yield f"no argument of Megatron-LM says {strategy.label()}"
    if said["--optimizer"] != MEGATRON_OPTIMIZERS[work.optimizer]:
        yield f"args.txt: --optimizer is {said['--optimizer']}"
