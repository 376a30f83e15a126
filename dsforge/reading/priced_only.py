"""What is priced and not all trained here: preferences, vision towers; what that changes."""

from __future__ import annotations

from dsforge.constraints.preference import TRAINED, TRAINED_REFERENCES
from dsforge.engines import BY_NAME as ENGINES
from dsforge.errors import Problem, SpecError
from dsforge.plan import Reason
from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import Constraints

Changed = tuple[ModelSpec, Constraints, tuple[Reason, ...]]


def _check_images(model: ModelSpec, workload: Workload) -> None:
    """Raise SpecError where images, or the training of what sees them, cannot be."""
    seen, length = workload.image_tokens, workload.sequence_length
    problems = []
    if seen and model.tower is None:
        message = f"`image_tokens` (={seen}) requires a model with a vision tower"
        problems.append(Problem("image-tokens", message, "leave it out"))
    elif seen > length:
        message = f"`image_tokens` (={seen}) must not exceed `sequence_length` (={length})"
        problems.append(Problem("image-tokens", message, f"use {length} or less"))
    if workload.vision_training != "frozen" and model.tower is None:
        message = (
            f"`vision_training` (={workload.vision_training}) requires a model with a vision tower"
        )
        problems.append(Problem("vision-training", message, "leave it out"))
    if problems:
        raise SpecError(tuple(problems))


def of_preference(model: ModelSpec, workload: Workload, fixed: Constraints) -> Changed:
    """The model and the fixed settings of a workload, with a reason for what is changed.

    What `dsforge train` has not is priced as of the trainers that have it (TRL).
    """
    _check_images(model, workload)
    if workload.preference is None and model.tower is None:
        return model, fixed, ()
    reasons, pairs = [], workload.preference is not None
    if pairs and fixed.loss is None and workload.has_head:
        fixed = fixed.model_copy(update={"loss": "plain"})
        message = "`loss` is plain: log probabilities of pairs are taken from whole logits (TRL)"
        reasons.append(Reason(rule="preference-loss", message=message))
    is_trained = pairs and model.tower is None and _is_trained(workload, fixed)
    if fixed.software is None and not is_trained:
        fixed = fixed.model_copy(update={"software": "others"})
        what = f"no {workload.preference} training" if pairs else "no vision towers"
        if pairs and workload.preference in TRAINED:
            what = f"{workload.preference} without a second model, under ZeRO and FSDP"
        message = f"`software` is others: `dsforge train` has {what}"
        reasons.append(Reason(rule="preference-software", message=message))
    if model.tower is not None and fixed.back_end is None:
        fixed = fixed.model_copy(update={"back_end": "deepspeed"})
        message = (
            "`back_end` is deepspeed: `pretrain_gpt.py` of Megatron-LM has no vision tower (other "
            "trainers on Megatron have: `--for megatron` prices them)"
        )
        reasons.append(Reason(rule="vision-back-end", message=message))
    if not workload.has_head and not model.tied_embeddings:
        model = model.model_copy(update={"tied_embeddings": True, "lm_head_bias": False})
        message = "a reward model has a score of one row instead of the output head"
        reasons.append(Reason(rule="reward-head", message=message))
    return model, fixed, tuple(reasons)


def _is_trained(workload: Workload, fixed: Constraints) -> bool:
    """Whether `dsforge train` has the loss, the reference and the parallelism of a workload."""
    sizes = (
        fixed.tensor_parallel_size,
        fixed.pipeline_parallel_size,
        fixed.context_parallel_size,
    )
    return (
        workload.preference in TRAINED
        and workload.compares_with in TRAINED_REFERENCES
        and (fixed.back_end is None or ENGINES[fixed.back_end].has_zero_stages)
        and all(size in (None, 1) for size in sizes)
    )


def beyond_positions(
    model: ModelSpec, workload: Workload, fixed: Constraints
) -> tuple[Reason, ...]:
    """What others change to train on sequences longer than the model's; ours refuses them."""
    length, most = workload.sequence_length, model.max_position_embeddings
    if fixed.software != "others" or model.position != "rope" or length <= most:
        return ()
    message = (
        f"`sequence_length` ({length:,}) exceeds the {most:,} positions of {model.name}: its "
        f"rotary frequencies must be stretched {length / most:.2g} times (rope_scaling)"
    )
    return (Reason(rule="warning-positions", message=message),)
