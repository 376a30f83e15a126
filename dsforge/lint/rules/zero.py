"""Rules: ZeRO stages and what may stand beside them."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.case import ZERO, Case, rule
from dsforge.zero_stages import FULLY_SHARDED, GRADIENTS_SHARDED

CONFIG = "DeepSpeed runtime/zero/config.py, DeepSpeedZeroConfig"
STAGE3_FEATURES = (
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
)


@rule(
    "zero-stage-missing",
    "warning",
    why="A `zero_optimization` block without a stage is stage 0: nothing is sharded, and nothing "
    "says so.",
    evidence=CONFIG + ".stage (default 0)",
)
def zero_stage_missing(case: Case) -> Iterator[Hit]:
    """A ZeRO block without a stage."""
    if case.block(ZERO) and "stage" not in case.block(ZERO):
        yield Hit((ZERO,), "`zero_optimization` has no `stage`: nothing is sharded", "set `stage`")


@rule(
    "zero-boolean",
    "error",
    why="`true` is the form of 2020 and means stage 1; the other settings of ZeRO have no place.",
    evidence="DeepSpeed runtime/zero/config.py, read_zero_config_deprecated",
)
def zero_boolean(case: Case) -> Iterator[Hit]:
    """`zero_optimization` as a boolean."""
    if isinstance(case.at(ZERO), bool):
        message = "`zero_optimization` as a boolean is the deprecated form: true is stage 1"
        yield Hit((ZERO,), message, 'write {"stage": 1}')


@rule(
    "stage3-keys-below",
    "info",
    why="Keys that begin with `stage3_` are read by stage 3 only; below it they do nothing, which "
    "the reader of the file will not expect.",
    evidence="DeepSpeed runtime/engine.py, _configure_zero_optimizer",
)
def stage3_keys_below(case: Case) -> Iterator[Hit]:
    """Settings of stage 3 at a lower stage."""
    keys = [k for k in case.block(ZERO) if k.startswith("stage3_")]
    if keys and case.stage is not None and case.stage < FULLY_SHARDED:
        message = f"`{keys[0][:60]}` is not read at ZeRO stage {case.stage}"
        message += f" (nor are {len(keys) - 1} more)" if len(keys) > 1 else ""
        yield Hit((ZERO, keys[0]), message)


@rule(
    "zeropp-below-stage3",
    "error",
    why="ZeRO++ (hpZ, quantised weights and gradients) is part of stage 3; below it the keys are "
    "accepted and do nothing, so the traffic that was to be saved is still there.",
    evidence="DeepSpeed runtime/engine.py, _configure_zero_optimizer; deepspeedai/DeepSpeed#6889",
)
def zeropp_below_stage3(case: Case) -> Iterator[Hit]:
    """ZeRO++ settings below stage 3."""
    for key in STAGE3_FEATURES:
        value = case.at(ZERO, key)
        used = value is True or (case.whole(ZERO, key) or 0) > 1
        if used and case.stage is not None and case.stage < FULLY_SHARDED:
            yield Hit(
                (ZERO, key), f"`{key}` does nothing at ZeRO stage {case.stage}", "use stage 3"
            )


@rule(
    "quantized-gradients-fp16",
    "warning",
    why="Quantised gradients under a dynamic loss scale were reported to drive the scale to its "
    "floor.",
    evidence="deepspeedai/DeepSpeedExamples#617",
)
def quantized_gradients_fp16(case: Case) -> Iterator[Hit]:
    """Quantised gradients in fp16."""
    if case.is_on(ZERO, "zero_quantized_gradients") and case.is_on("fp16", "enabled"):
        yield Hit((ZERO, "zero_quantized_gradients"), "quantised gradients with fp16", "use bf16")


@rule(
    "elastic-checkpoint-stage3",
    "error",
    why="Elastic checkpoints are dead for stage 3: a resume on another number of ranks fails.",
    evidence="DeepSpeed runtime/zero/config.py, elastic_checkpoint_deprecated; "
    "deepspeedai/DeepSpeed#2921",
)
def elastic_checkpoint_stage3(case: Case) -> Iterator[Hit]:
    """Elastic checkpoints at stage 3."""
    if case.is_on(ZERO, "elastic_checkpoint") and case.stage == FULLY_SHARDED:
        message = "`elastic_checkpoint` is no longer supported at ZeRO stage 3"
        yield Hit((ZERO, "elastic_checkpoint"), message, "use universal checkpoints to resume")


@rule(
    "grad-norm-off",
    "error",
    why="Only stages 1 and 2 can do without the gradient norm, and only where nothing clips by it "
    "and the optimizer is not offloaded.",
    evidence="DeepSpeed runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__",
)
def grad_norm_off(case: Case) -> Iterator[Hit]:
    """The gradient norm switched off where it is needed."""
    loc = (ZERO, "compute_grad_norm")
    if not case.is_off(*loc):
        return
    if case.stage not in (1, GRADIENTS_SHARDED, None):
        yield Hit(loc, f"`compute_grad_norm` false is not possible at ZeRO stage {case.stage}")
    elif case.number("gradient_clipping"):
        yield Hit(loc, "`compute_grad_norm` false needs `gradient_clipping` 0")
    elif case.device("offload_optimizer") != "none":
        yield Hit(loc, "`compute_grad_norm` false is not possible with an offloaded optimizer")


@rule(
    "predivide-stage3",
    "error",
    why="Stage 3 with reduce-scatter divides gradients afterwards, and only by the number of "
    "ranks.",
    evidence="DeepSpeed runtime/zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__",
)
def predivide_stage3(case: Case) -> Iterator[Hit]:
    """Prescaled or predivided gradients at stage 3."""
    if case.stage != FULLY_SHARDED or case.is_off(ZERO, "reduce_scatter"):
        return
    if case.is_on("prescale_gradients"):
        yield Hit(("prescale_gradients",), "`prescale_gradients` is not possible at ZeRO stage 3")
    factor = case.number("gradient_predivide_factor")
    if factor not in (None, 1):
        loc = ("gradient_predivide_factor",)
        yield Hit(loc, f"`gradient_predivide_factor` (={factor}) must be 1 at ZeRO stage 3")


@rule(
    "allreduce-sum",
    "error",
    why="Summing instead of averaging gradients is not implemented for stage 3.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._do_error_check",
)
def allreduce_sum(case: Case) -> Iterator[Hit]:
    """Summed gradients at stage 3."""
    loc = ("gradient_allreduce_op",)
    if case.word(*loc) == "sum" and case.stage == FULLY_SHARDED:
        yield Hit(
            loc, "`gradient_allreduce_op` sum is not supported at ZeRO stage 3", "use stage 2"
        )


@rule(
    "unsaved-weights",
    "warning",
    why="At stage 3 every rank holds a part of each weight. Without this key `save_16bit_model` "
    "writes nothing, and programs that save the module itself write empty tensors.",
    evidence="deepspeedai/DeepSpeed#2413, hiyouga/LlamaFactory#253, axolotl-ai-cloud/axolotl#933",
)
def unsaved_weights(case: Case) -> Iterator[Hit]:
    """Stage 3 without gathering weights on save."""
    new = "stage3_gather_16bit_weights_on_model_save"
    keys = (new, "gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
    if case.stage == FULLY_SHARDED and not any(case.at(ZERO, key) for key in keys):
        loc = (ZERO, next((k for k in keys if k in case.block(ZERO)), "stage"))
        yield Hit(loc, "whole weights are not gathered on save", f"set `{new}` to true")


@rule(
    "legacy-stage1",
    "warning",
    why="The old stage 1 is not maintained; its checkpoints cannot be resumed by the new one.",
    evidence=CONFIG + ".legacy_stage1",
)
def legacy_stage1(case: Case) -> Iterator[Hit]:
    """The old implementation of stage 1."""
    if case.is_on(ZERO, "legacy_stage1"):
        yield Hit((ZERO, "legacy_stage1"), "`legacy_stage1` is unmaintained", "remove it")
