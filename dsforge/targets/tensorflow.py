"""TensorFlow: `TF_CONFIG` of each worker, and the strategy of data parallelism.

TensorFlow trains no sharded states: MultiWorkerMirroredStrategy has whole replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.launch import hostfile_context
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup

PORT = 12345  # of each worker: any that is free


class TensorflowContext(NamedTuple):
    """Fields of for/tensorflow: workers in the order of the hostfile."""

    workers: tuple[str, ...]
    several: bool
    global_batch_size: int
    accumulation: int
    mixed_precision: str


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The workers, and a script that reads its own place among them."""
    strategy = plan.strategy
    hosts = hostfile_context(plan.cluster).hosts
    half = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
    context = TensorflowContext(
        workers=tuple(f"{host.address}:{PORT}" for host in hosts),
        several=len(hosts) > 1,
        global_batch_size=strategy.global_batch_size,
        accumulation=strategy.gradient_accumulation_steps,
        mixed_precision=half.get(plan.workload.precision, "float32"),
    )
    return (TargetFile("tf_config.json", context), TargetFile("strategy.py", context))


def lost(setup: TrainingSetup) -> tuple[str, ...]:
    """Whatever is not data parallelism with whole replicas."""
    return tuple(_lost(setup))


def _lost(setup: TrainingSetup) -> Iterator[str]:
    if (setup.zero_stage or 0) > 0:
        yield f"ZeRO stage {setup.zero_stage}: MultiWorkerMirroredStrategy has whole replicas"
    sizes = {
        "tensor": setup.tensor_parallel_size,
        "pipeline": setup.pipeline_parallel_size,
        "context": setup.context_parallel_size,
        "expert": setup.expert_parallel_size,
    }
    for name, size in sizes.items():
        if size > 1:
            yield f"{name} parallelism ({size}): use DTensor or JAX, or a program on PyTorch"
    if (setup.offload_optimizer, setup.offload_parameters) != ("none", "none"):
        yield "offload: TensorFlow keeps variables where they were made"
    if setup.adapter != "none":
        yield f"{setup.adapter}: the adapters of peft are PyTorch's; Keras has `enable_lora`"


TARGET = Target(
    name="tensorflow",
    label="TensorFlow",
    kind="launcher",
    summary="TF_CONFIG and MultiWorkerMirroredStrategy, for models of your own",
    files=files,
    lost=lost,
    source="tensorflow python/distribute/cluster_resolver/tfconfig_cluster_resolver.py",
)
