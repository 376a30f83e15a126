"""Rules: ZeRO stages and the settings that depend on them."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.checked_file import ZERO, CheckedFile, rule
from dsforge.lint.conditions import FACTS, If
from dsforge.lint.rows import Look, Row, rules
from dsforge.zero_stages import FULLY_SHARDED

CONFIG = "DeepSpeed runtime/zero/config.py, DeepSpeedZeroConfig"
GATHER = "stage3_gather_16bit_weights_on_model_save"
SAVES_WHOLE = (GATHER, "stage3_gather_fp16_weights_on_model_save")  # as stages below 3 do anyway


@rule(
    "stage3-keys-below",
    "info",
    why="Only stage 3 reads keys that begin with `stage3_`; below it they are ignored.",
    evidence="DeepSpeed runtime/engine.py, _configure_zero_optimizer",
)
def stage3_keys_below(file: CheckedFile) -> Iterator[Hit]:
    """Stage 3 settings at a lower stage."""
    keys = [k for k in file.block(ZERO) if k.startswith("stage3_") and k not in SAVES_WHOLE]
    if keys and file.stage is not None and file.stage < FULLY_SHARDED:
        message = f"`{keys[0][:60]}` is not read at ZeRO stage {file.stage}"
        message += f" (nor are {len(keys) - 1} more)" if len(keys) > 1 else ""
        yield Hit((ZERO, keys[0]), message)


@rule(
    "unsaved-weights",
    "warning",
    why="At stage 3 every rank holds a shard of each weight. Without this key "
    "`save_16bit_model` writes nothing, and trainers save a checkpoint of shards instead of the "
    "model.",
    evidence="deepspeedai/DeepSpeed#2413, hiyouga/LlamaFactory#253, axolotl-ai-cloud/axolotl#933",
)
def unsaved_weights(file: CheckedFile) -> Iterator[Hit]:
    """Stage 3 without gathering weights on save."""
    keys = (*SAVES_WHOLE, "gather_16bit_weights_on_model_save")
    trained = FACTS["@trainer"](file, ())  # others gather in their own code
    if trained and file.stage == FULLY_SHARDED and not any(file.at(ZERO, key) for key in keys):
        loc = (ZERO, next((k for k in keys if k in file.block(ZERO)), "stage"))
        yield Hit(loc, "full weights are not gathered on save", f"set `{GATHER}` to true")


ROWS = rules(
    Row(
        "grad-norm-off",
        "error",
        If("zero_optimization.compute_grad_norm", "off"),
        "`{key}` false is not supported at ZeRO stage {stage}",
        title="The gradient norm is switched off where it is needed.",
        why="Only stages 1 and 2 can skip the gradient norm, and only without clipping and "
        "without optimizer offload.",
        evidence="DeepSpeed runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__",
        when=(If("@stage", "in", (0, 3)),),
        also=(
            Look(
                If("zero_optimization.compute_grad_norm", "off"),
                "`{key}` false requires `gradient_clipping` 0",
                when=(
                    If("@stage", "not among", (0, 3)),
                    If("gradient_clipping", "not 0"),
                ),
            ),
            Look(
                If("zero_optimization.compute_grad_norm", "off"),
                "`{key}` false cannot be combined with optimizer offload",
                when=(
                    If("@stage", "not among", (0, 3)),
                    If("@offload_optimizer", "is not", "none"),
                ),
            ),
        ),
    ),
    Row(
        "predivide-stage3",
        "error",
        If("prescale_gradients", "on"),
        "`{key}` is not supported at ZeRO stage 3",
        title="Prescaled or predivided gradients at stage 3.",
        why="Stage 3 with reduce-scatter divides gradients after the reduction, and only by "
        "the number of ranks.",
        evidence="DeepSpeed runtime/zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__",
        when=(
            If("@stage", "is", 3),
            If("zero_optimization.reduce_scatter", "not off"),
        ),
        also=(
            Look(
                If("gradient_predivide_factor", "outside", (1, 1)),
                "`{key}` (={number}) must be 1 at ZeRO stage 3",
                when=(
                    If("@stage", "is", 3),
                    If("zero_optimization.reduce_scatter", "not off"),
                ),
            ),
        ),
    ),
    Row(
        "zero-stage-missing",
        "warning",
        If("zero_optimization.stage", "absent"),
        "`zero_optimization` has no `stage`: nothing is sharded",
        "set `stage`",
        title="A ZeRO block without a stage.",
        why="A `zero_optimization` block without a stage means stage 0: nothing is sharded, "
        "without a message.",
        evidence=CONFIG + ".stage (default 0)",
        when=(If("zero_optimization", "block"),),
        at="zero_optimization",
    ),
    Row(
        "zero-boolean",
        "error",
        If("zero_optimization", "boolean"),
        "`{key}` as a boolean is the deprecated form: true is stage 1",
        'write {{"stage": 1}}',
        title="`zero_optimization` as a boolean.",
        why="`true` is the form of 2020 and means stage 1; it leaves no place for the other "
        "ZeRO settings.",
        evidence="DeepSpeed runtime/zero/config.py, read_zero_config_deprecated",
    ),
    Row(
        "zeropp-below-stage3",
        "error",
        If(
            "zero_optimization.zero_quantized_weights "
            "zero_optimization.zero_quantized_nontrainable_weights "
            "zero_optimization.zero_quantized_gradients",
            "used",
        ),
        "`{key}` does nothing at ZeRO stage {stage}",
        "use stage 3",
        title="ZeRO++ settings below stage 3.",
        why="ZeRO++ (quantised weights and gradients) is part of stage 3; below it the "
        "keys are accepted and ignored, so the traffic is not reduced.",
        evidence="DeepSpeed runtime/engine.py, _configure_zero_optimizer; "
        "deepspeedai/DeepSpeed#6889",
        when=(If("@stage", "below", 3),),
    ),
    Row(
        "quantized-gradients-fp16",
        "warning",
        If("zero_optimization.zero_quantized_gradients", "on"),
        "quantised gradients cannot be combined safely with fp16",
        "use bf16",
        title="Quantised gradients with fp16.",
        why="Quantised gradients with a dynamic loss scale were reported to drive the scale to "
        "its minimum.",
        evidence="deepspeedai/DeepSpeedExamples#617",
        when=(If("fp16.enabled", "on"),),
    ),
    Row(
        "elastic-checkpoint-stage3",
        "error",
        If("zero_optimization.elastic_checkpoint", "on"),
        "`{key}` is no longer supported at ZeRO stage 3",
        "use universal checkpoints to resume",
        title="Elastic checkpoints at stage 3.",
        why="Elastic checkpoints are not supported with stage 3: a resume on another number of "
        "ranks fails.",
        evidence="DeepSpeed runtime/zero/config.py, elastic_checkpoint_deprecated; "
        "deepspeedai/DeepSpeed#2921",
        when=(If("@stage", "is", 3),),
    ),
    Row(
        "allreduce-sum",
        "error",
        If("gradient_allreduce_op", "is", "sum"),
        "`{key}` sum is not supported at ZeRO stage 3",
        "use stage 2",
        title="Summed gradients at stage 3.",
        why="Summing gradients instead of averaging them is not implemented for stage 3.",
        evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._do_error_check",
        when=(If("@stage", "is", 3),),
    ),
    Row(
        "legacy-stage1",
        "warning",
        If("zero_optimization.legacy_stage1", "on"),
        "`{key}` is unmaintained",
        "remove it",
        title="The legacy implementation of stage 1.",
        why="The legacy stage 1 is not maintained, and the new one cannot resume its checkpoints.",
        evidence=CONFIG + ".legacy_stage1",
    ),
)
