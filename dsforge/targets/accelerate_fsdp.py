"""Hugging Face accelerate with FSDP: versions 1 and 2, the latter with tensor and context ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

from dsforge.plan import Plan
from dsforge.render.launch import has_placeholders
from dsforge.targets.hugging_face import fsdp_values
from dsforge.targets.run import Run, beyond, run_of
from dsforge.targets.target import Target, TargetFile, Unsaid


class FsdpContext(NamedTuple):
    """Fields of for/accelerate-fsdp/accelerate.yaml.j2."""

    nodes: int
    multi_node: bool
    ranks: int
    address: str
    placeholder_address: bool
    mixed_precision: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    accumulates: bool
    fsdp: tuple[tuple[str, Any], ...]
    parallelism: tuple[tuple[str, int], ...]  # none: data parallelism alone


def _context(run: Run, version: int) -> FsdpContext:
    """The config of `accelerate launch`."""
    cluster, setup = run.plan.cluster, run.setup
    precision = setup.precision or "bf16"
    return FsdpContext(
        nodes=cluster.nodes,
        multi_node=cluster.nodes > 1,
        ranks=cluster.gpus,
        address=cluster.hosts[0].address if cluster.hosts else "127.0.0.1",
        placeholder_address=has_placeholders(cluster),
        mixed_precision="no" if precision == "fp32" else precision,
        micro_batch_size=run.strategy.micro_batch_size,
        gradient_accumulation_steps=run.strategy.gradient_accumulation_steps,
        accumulates=run.strategy.gradient_accumulation_steps > 1,
        fsdp=tuple(fsdp_values(run, version).items()),
        parallelism=tuple(_parallelism(run).items()),
    )


def _parallelism(run: Run) -> dict[str, int]:
    """Sizes of ParallelismConfig; accelerate shards over data and context ranks."""
    setup, layout = run.setup, run.strategy.layout
    if setup.tensor_parallel_size == setup.context_parallel_size == 1:
        return {}
    return {
        "dp_replicate_size": 1,
        "dp_shard_size": layout.data_parallel_size,
        "tp_size": setup.tensor_parallel_size,
        "cp_size": setup.context_parallel_size,
    }


OF_THE_SCRIPT = Unsaid(
    (
        *("model", "micro_batch_size", "gradient_accumulation_steps", "global_batch_size"),
        *("sequence_length", "adapter", "lora_rank", "lora_alpha", "optimizer", "learning_rate"),
    ),
    "the script that accelerate starts must say them",
)


def _target(name: str, version: int) -> Target:
    """The target of one version of FSDP."""

    def files(plan: Plan) -> tuple[TargetFile, ...]:
        return (TargetFile("accelerate.yaml", _context(run_of(plan), version)),)

    return Target(
        name=name,
        label=f"Hugging Face accelerate (FSDP{version})",
        kind="trainer",
        summary=f"config of `accelerate launch` with FSDP{version}",
        files=files,
        lost=lambda setup: beyond(name, setup),
        unsaid=OF_THE_SCRIPT,
        source="accelerate commands/config/config_args.py, ClusterConfig",
        proof="parsed by its own code",
        proved_by="tests/targets/test_real_parsers.py: load_config_from_file and the launcher of "
        "accelerate 1.15",
    )


FSDP2 = _target("accelerate-fsdp", 2)
FSDP1 = _target("accelerate-fsdp1", 1)
