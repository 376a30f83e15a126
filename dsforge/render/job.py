"""Plan -> TrainJob, the content of train.yaml, and the schedule that Megatron gets too."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.errors import RenderError
from dsforge.estimate.loss import loss_of
from dsforge.estimate.run import run_steps
from dsforge.job import PreferenceSettings, TrainJob
from dsforge.plan import Plan
from dsforge.programs import is_own
from dsforge.render.torch import torch_settings
from dsforge.specs import BITSANDBYTES, DataSpec, LoraSpec, ModelSpec, Workload
from dsforge.strategy import Strategy, TrainedLoss

# Three steps in a hundred: what the fine-tuning recipes of the Llama and Zephyr families use (3 to
# 10 %). It matters with Adam, whose second moment is not yet estimated in the first steps.
WARMUP_FRACTION = 0.03
CHECKPOINT_S = 1800.0  # of training that a crash may cost at most, s
DS_CONFIG = "deepspeed/ds_config.json"
PLACEHOLDER_DATA = "data/train.jsonl"  # where the plan names no data


class TrainContext(NamedTuple):
    """Fields of train.yaml.j2."""

    job: TrainJob
    placeholder_data: bool
    placeholder_model: bool


def weights(model: ModelSpec) -> str | None:
    """Folder or hub id that the weights are loaded from; none for a bare config or a size."""
    if model.path is not None and not model.path.endswith(".json"):
        return model.path
    return model.hub_id


def train_job(plan: Plan, strategy: Strategy) -> TrainJob:
    """What `dsforge train` is asked to do for this plan, by one of its strategies.

    Raises RenderError for a base that it cannot train.
    """
    on_torch = strategy.runs_as.program is not None and is_own(strategy.runs_as.program)
    _check_base(plan.workload.lora)
    workload, steps = plan.workload, run_steps(plan.workload)
    every = _steps_between_checkpoints(plan)
    return TrainJob.model_construct(
        model=weights(plan.model) or plan.model.path or plan.model.name,
        random_weights=weights(plan.model) is None,
        torch=torch_settings(plan.workload, strategy) if on_torch else None,
        deepspeed_config=None if on_torch else DS_CONFIG,
        data=workload.data or DataSpec.model_construct(train=PLACEHOLDER_DATA),
        sequence_length=workload.sequence_length,
        steps=workload.steps,
        epochs=workload.epochs or 1.0,
        warmup_steps=0 if steps is None else round(steps * WARMUP_FRACTION),
        gradient_checkpointing=strategy.recompute != "none",
        offload_activations=strategy.runs_as.offload_activations,
        tiled_mlp=strategy.runs_as.tiled_mlp,
        loss=_loss(plan, strategy),
        compile=strategy.runs_as.kernels == "compiled",
        attention="eager" if strategy.runs_as.attention == "eager" else "sdpa",
        optimizer_states=workload.optimizer_states,
        preference=_preference(workload),
        lora=workload.lora,
        seed=workload.seed,
        checkpoint_every=every if steps is None or every < steps else None,
        evaluate_every=_epoch_steps(workload) if _validates(workload) else None,
        output="output" if strategy == plan.strategy else "output/deepspeed",
    )


def _preference(workload: Workload) -> PreferenceSettings | None:
    """The loss on pairs of a workload that `dsforge train` has; constraints refuse the others."""
    if workload.preference != "dpo":
        return None
    reference = workload.compares_with
    return PreferenceSettings.model_construct(reference=None if reference == "model" else reference)


def _steps_between_checkpoints(plan: Plan) -> int:
    """Steps of an epoch, or of `CHECKPOINT_S` where an epoch takes longer."""
    often = max(1, round(CHECKPOINT_S / plan.choice.time.step_s.likely))
    epoch = _epoch_steps(plan.workload)
    return often if epoch is None else min(often, epoch)


def _epoch_steps(workload: Workload) -> int | None:
    """Optimizer steps of a pass over the data; none where its rows were not counted."""
    rows = workload.samples
    return None if rows is None else max(1, rows // workload.global_batch_size)


def _validates(workload: Workload) -> bool:
    """Whether the data has rows for validation."""
    data = workload.data
    return data is not None and (data.validation is not None or data.validation_fraction > 0)


def _check_base(lora: LoraSpec | None) -> None:
    """Raises RenderError where the frozen matrices are priced but not trained by dsforge."""
    if lora is None:
        return
    if lora.frozen_format not in (None, *BITSANDBYTES):
        message = f"`dsforge train` does not load a base in {lora.frozen_format}"
        raise RenderError(message, f"use --base {', '.join(BITSANDBYTES)}; `estimate` prices it")
    if lora.upcast:
        message = "`lora.upcast` is undone by DeepSpeed, which casts all floating parameters"
        raise RenderError(message, "leave it out; `estimate` prices it for other trainers")


def _loss(plan: Plan, strategy: Strategy) -> TrainedLoss:
    """The loss that was priced."""
    return "chunked" if loss_of(plan.model, strategy) == "chunked" else "plain"


def train_context(plan: Plan, strategy: Strategy) -> TrainContext:
    """Context of train.yaml.j2 for a strategy that `dsforge train` runs."""
    model = plan.model
    return TrainContext(
        train_job(plan, strategy),
        placeholder_data=plan.workload.data is None,
        placeholder_model=not (model.hub_id or model.path or model.family),
    )
