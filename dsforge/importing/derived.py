"""What follows from what files say: ranks, accumulation, the batch of a step, groups of shards."""

from __future__ import annotations

from math import prod

from dsforge.importing.draft import Draft

MODEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


def derive(draft: Draft, *, replicates: bool) -> None:
    """Fill in what has one value only, given the rest.

    `replicates`: without an engine the program runs torch, on one device or with DDP.
    """
    _ranks(draft)
    if replicates:
        _replicas(draft)
    _batch(draft)
    group = draft.open.get("shard_group")
    devices = draft.value("gpus_per_node")
    if group is not None and devices:
        draft.say("shard_group", devices, group.place, "derived")
    if draft.value("zero_stage") == 0:
        for field in ("offload_optimizer", "offload_parameters"):
            held = draft.said.get(field)
            if held is not None and held.origin == "said" and held.value != "none":
                draft.problem(
                    "offload-stage", f"{field} (={held.value}) needs ZeRO or FSDP", held.place
                )


def _replicas(draft: Draft) -> None:
    """Torch's replicas, where neither an engine nor sharding nor a split of the model is named."""
    unknown = {"engine", "zero_stage", *MODEL_SIZES, "expert_parallel_size"} & draft.open.keys()
    split = _model_ranks(draft) > 1 or (draft.value("expert_parallel_size") or 1) > 1
    if draft.value("engine") is None and draft.value("zero_stage") == 0 and not (unknown or split):
        draft.say("engine", "ddp", _place(draft, "zero_stage"), "derived")


def _model_ranks(draft: Draft) -> int:
    return prod(draft.value(field) or 1 for field in MODEL_SIZES)


def _ranks(draft: Draft) -> None:
    """Data-parallel ranks are those that the other sizes leave."""
    if any(field in draft.open for field in MODEL_SIZES):
        return
    nodes, devices = draft.value("nodes"), draft.value("gpus_per_node")
    world = nodes * devices if nodes and devices else None
    model = _model_ranks(draft)
    count = None if world is None or world % model else world // model
    said = draft.value("data_parallel_size")
    if world is not None and count is None:
        message = (
            f"{world} ranks cannot be divided by {model} of tensor, pipeline and context "
            "parallelism"
        )
        draft.problem("layout-ranks", message, _place(draft, "gpus_per_node"))
    elif count is not None and said is None:
        draft.say("data_parallel_size", count, "ranks / (tp x pp x cp)", "derived")
    elif count is not None and said != count:
        default = draft.said["gpus_per_node"].origin == "default"
        if not default:
            message = f"data_parallel_size (={said}) differs from {count}, which the ranks make"
            draft.problem("layout-ranks", message, _place(draft, "data_parallel_size"))


def _batch(draft: Draft) -> None:
    """Two of micro batch, accumulation and global batch give the third."""
    micro, steps = draft.value("micro_batch_size"), draft.value("gradient_accumulation_steps")
    total, replicas = draft.value("global_batch_size"), draft.value("data_parallel_size")
    stated = steps is not None and draft.said["gradient_accumulation_steps"].origin != "default"
    if total is None:
        if micro and steps and replicas:
            rule = "micro batch x accumulation x dp"
            draft.say("global_batch_size", micro * steps * replicas, rule, "derived")
    elif stated:
        _from_steps(draft, total, steps)
    elif micro and replicas:
        _steps(draft, total, micro * replicas)
    else:
        draft.said.pop("gradient_accumulation_steps", None)


def _steps(draft: Draft, total: int, at_once: int) -> None:
    """Accumulation follows from the batch of a step."""
    count, rest = divmod(total, at_once)
    if rest or not count:
        message = f"global_batch_size (={total}) must be a multiple of {at_once} samples at once"
        draft.problem("batch-product", message, _place(draft, "global_batch_size"))
        draft.said.pop("gradient_accumulation_steps", None)
    else:
        rule = "global batch / (micro batch x dp)"
        draft.say("gradient_accumulation_steps", count, rule, "derived")


def _from_steps(draft: Draft, total: int, steps: int) -> None:
    """With accumulation stated, micro batch or ranks follow, or all three must agree."""
    micro, replicas = draft.value("micro_batch_size"), draft.value("data_parallel_size")
    if micro is None and replicas and not total % (steps * replicas):
        rule = "global batch / (accumulation x dp)"
        draft.say("micro_batch_size", total // (steps * replicas), rule, "derived")
    elif micro and replicas is None and not total % (micro * steps):
        rule = "global batch / (micro batch x accumulation)"
        draft.say("data_parallel_size", total // (micro * steps), rule, "derived")
    elif micro and replicas and micro * steps * replicas != total:
        message = f"global_batch_size (={total}) is not {micro} x {steps} x {replicas}"
        draft.problem("batch-product", message, _place(draft, "global_batch_size"))


def _place(draft: Draft, field: str) -> str:
    held = draft.said.get(field)
    return held.place if held is not None else ""
