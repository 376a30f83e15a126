"""Constraints of `dsforge train` on plain torch: what its strategies do not do, or not together.

They judge the `torch` block of a train.yaml and the model that it names, and a `Case` of the
planner for the program that is `dsforge train` itself (`gen --for torch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dsforge.constraints.case import Broken, Case, ModelShape, constraint, divisors, listed
from dsforge.constraints.trainer import ANATOMIES, TENSOR_KINDS
from dsforge.errors import Problem

if TYPE_CHECKING:
    from dsforge.job import TorchSettings, TrainJob

# Styles of transformers' tensor-parallel plans that have a counterpart in torch.
TORCH_STYLES = frozenset(("colwise", "rowwise", "replicated_with_grad_allreduce"))
# Kinds that are divided into stages: learned positions (`wpe`) would be added on each of them.
STAGED = tuple(sorted(kind for kind, parts in ANATOMIES.items() if "wpe" not in parts.entry))


def torch_job_problems(job: TrainJob) -> tuple[Problem, ...]:
    """What a job asks of plain torch that it cannot do; empty where it can."""
    if job.torch is None:
        return ()
    checks: tuple[Callable[[TrainJob, TorchSettings], Iterator[Problem]], ...] = (
        _fsdp_only,
        _batch,
        _split,
        _quantised,
    )
    return tuple(problem for check in checks for problem in check(job, job.torch))


def _fsdp_only(_: TrainJob, torch: TorchSettings) -> Iterator[Problem]:
    """Settings that only `fully_shard` has."""
    asked = {
        f"torch.sharding={torch.sharding}": torch.sharding != "full",
        "torch.cpu_offload": torch.cpu_offload,
        "torch.no_sync": torch.no_sync,
        f"torch.tensor_parallel_size={torch.tensor_parallel_size}": torch.tensor_parallel_size > 1,
        f"torch.pipeline_parallel_size={torch.pipeline_parallel_size}": (
            torch.pipeline_parallel_size > 1
        ),
    }
    for name in (name for name, is_asked in asked.items() if is_asked):
        if torch.strategy != "fsdp2":
            message = f"`{name}` requires strategy fsdp2 (got {torch.strategy})"
            yield Problem("torch-fsdp2-only", message, "use fsdp2, or leave it out")
    if torch.shard_size is not None and torch.sharding != "hybrid":
        message = f"`torch.shard_size` requires sharding hybrid (got {torch.sharding})"
        yield Problem("torch-shard-size", message, "use hybrid, or leave it out")


def _batch(_: TrainJob, torch: TorchSettings) -> Iterator[Problem]:
    """Two ways to name one batch."""
    if torch.global_batch_size is not None and torch.gradient_accumulation_steps is not None:
        message = "`torch.gradient_accumulation_steps` follows from `torch.global_batch_size`"
        yield Problem("torch-batch-twice", message, "leave one of them out")


def _split(job: TrainJob, torch: TorchSettings) -> Iterator[Problem]:
    """What tensor and pipeline parallelism do not go with."""
    clashes = {
        "lora": job.lora is not None,
        "compile": job.compile,
        "torch.precision=fp16": torch.precision == "fp16",
        "torch.cpu_offload": torch.cpu_offload,
    }
    more = {"packing": job.packing, "torch.no_sync": torch.no_sync}
    for size, others in (
        (f"tensor_parallel_size` (={torch.tensor_parallel_size})", clashes),
        (f"pipeline_parallel_size` (={torch.pipeline_parallel_size})", clashes | more),
    ):
        for name in (n for n, is_asked in others.items() if is_asked and "(=1)" not in size):
            message = f"`{name}` cannot be combined with `torch.{size}"
            yield Problem("torch-split", message, "leave one of them out")


def _quantised(job: TrainJob, _: TorchSettings) -> Iterator[Problem]:
    """What bitsandbytes stores."""
    if job.lora is not None and job.lora.frozen_format is not None:
        message = f"QLoRA (`lora.bits` {job.lora.bits}) is not available on plain torch"
        yield Problem("torch-qlora", message, "use `bits: 16`, or a DeepSpeed config")
    if job.optimizer_states is not None:
        message = f"`optimizer_states` (={job.optimizer_states}) is not available on plain torch"
        yield Problem("torch-optimizer-states", message, "leave it out, or use a DeepSpeed config")


def torch_model_problems(tensor_parallel_size: int, shape: ModelShape) -> Iterator[Problem]:
    """What of a model tensor-parallel ranks cannot share."""
    if tensor_parallel_size == 1:
        return
    size, styles = tensor_parallel_size, shape.tensor_styles or frozenset()
    by_kind = shape.tensor_styles is None and shape.model_type in (None, *TENSOR_KINDS)
    if not by_kind and (not styles or not styles <= TORCH_STYLES):
        odd = ", ".join(sorted(styles - TORCH_STYLES)) or "none"
        message = (
            f"models of type {shape.model_type} have no tensor-parallel plan ({size}) that torch "
            f"has styles for (styles: {odd})"
        )
        yield Problem("torch-tensor-model", message, "use fsdp2 without tensor parallelism")
    heads = {"attention heads": shape.attention_heads, "key/value heads": shape.kv_heads}
    for name, count in heads.items():
        if count is not None and count % size:
            message = f"{count} {name} cannot be divided among {size} tensor-parallel ranks"
            yield Problem("torch-tensor-heads", message, f"use {listed(divisors(count))}")


def torch_stage_problems(stages: int, shape: ModelShape, *, tied: bool) -> Iterator[Problem]:
    """Why a model is not divided into so many pipeline stages."""
    if stages == 1:
        return
    if shape.model_type not in (None, *STAGED):
        message = f"models of type {shape.model_type} cannot be split into {stages} pipeline stages"
        yield Problem("torch-stages-model", message, f"supported are {', '.join(STAGED)}")
    if tied:
        message = "tied embeddings cannot be shared by the first and the last pipeline stage"
        hint = "use tensor parallelism, or `pipeline.stages` of a DeepSpeed config"
        yield Problem("torch-stages-tied", message, hint)
    if shape.layers is not None and shape.layers < stages:
        message = f"{shape.layers} decoder layers cannot be divided into {stages} pipeline stages"
        yield Problem("torch-stages-layers", message, f"use at most {shape.layers}")


def torch_rank_problems(torch: TorchSettings, world_size: int, node: int) -> Iterator[Problem]:
    """Why so many ranks, `node` of them on each node, do not make the groups of a strategy."""
    size = torch.tensor_parallel_size * torch.pipeline_parallel_size
    if world_size % size:
        message = f"{world_size} ranks cannot be divided into groups of {size} that share a replica"
        yield Problem("torch-model-ranks", message, f"start a multiple of {size} ranks")
        return
    replicas, shard = world_size // size, shard_group(torch, node)
    if torch.sharding == "hybrid" and replicas % shard:
        message = f"{replicas} data-parallel ranks cannot be divided into shard groups of {shard}"
        hint = f"set `torch.shard_size` to {listed(divisors(replicas))}"
        yield Problem("torch-shard-ranks", message, hint)


def shard_group(torch: TorchSettings, node: int) -> int:
    """Ranks of a hybrid shard group, where `node` ranks are on each node."""
    return torch.shard_size or max(1, node // torch.tensor_parallel_size)


def _on_torch(case: Case) -> bool:
    """Whether `dsforge train` runs the case on plain torch."""
    if case.program is None:
        return False
    from dsforge.programs import is_own  # its tables are not needed to lint a file

    return is_own(case.program)


def _first(problems: Iterator[Problem]) -> Broken | None:
    """The first of some problems."""
    found = next(problems, None)
    return None if found is None else Broken(found.message, found.hint)


@constraint("torch-clash", source="dsforge: train/engines/plain_torch, `_split` of a train.yaml")
def split_with_others(case: Case) -> Broken | None:
    """fp16 or CPU offload with tensor or pipeline parallelism on plain torch."""
    ranks = max(case.tensor_parallel_size, case.pipeline_parallel_size)
    if not _on_torch(case) or ranks == 1:
        return None
    clashes = {"fp16": case.precision == "fp16", "CPU offload": case.offloads_parameters}
    named = " and ".join(name for name, is_asked in clashes.items() if is_asked)
    if not named:
        return None
    said = f"{named} cannot be combined with tensor or pipeline parallelism ({ranks}) here"
    return Broken(said, "use sizes of 1, or bf16 without offload")


@constraint("torch-tensor-plan", source="dsforge: transformers' plan, in styles that torch has")
def tensor_on_torch(case: Case) -> Broken | None:
    """A model whose matrices plain torch does not share among tensor-parallel ranks."""
    if not _on_torch(case) or case.shape is None:
        return None
    return _first(torch_model_problems(case.tensor_parallel_size, case.shape))


@constraint("torch-stages", source="dsforge: train/engines/plain_torch/pipeline.py")
def stages_on_torch(case: Case) -> Broken | None:
    """A model that plain torch does not divide into pipeline stages."""
    if not _on_torch(case) or case.shape is None:
        return None
    tied = case.model is not None and case.model.tied_embeddings
    return _first(torch_stage_problems(case.pipeline_parallel_size, case.shape, tied=tied))
