"""Rules: fp16, bf16, loss scale and the types of gradients."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.case import Case, rule, shown

SCALER = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
HIGHEST_USEFUL_POWER = 24  # the scaler halves: from 2^32 sixteen and more steps are thrown away
USUAL_POWER = 16
TYPES = ("fp32", "fp16", "bf16")
CONFIG = "DeepSpeed runtime/precision_config.py"


def bf16_block(case: Case) -> str:
    """The name under which the file has its bf16 block."""
    return "bf16" if "bf16" in case.block() else "bfloat16"


@rule(
    "fp16-with-bf16",
    "error",
    why="Weights have one type; DeepSpeed stops with an assertion after all ranks are up.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._initialize_params",
)
def fp16_with_bf16(case: Case) -> Iterator[Hit]:
    """Both half precisions enabled."""
    if case.is_on("fp16", "enabled") and case.is_on(bf16_block(case), "enabled"):
        message = "`fp16` and `bf16` are both enabled"
        yield Hit(("fp16", "enabled"), message, "keep bf16 where the card has it")


@rule(
    "precision-full",
    "info",
    why="Neither half precision is on, so weights, gradients and activations take twice the memory "
    "and tensor cores stay idle.",
    evidence="DeepSpeed runtime/engine.py, DeepSpeedEngine.get_data_types",
)
def precision_full(case: Case) -> Iterator[Hit]:
    """Training in fp32."""
    halves = ("fp16", "bf16", "bfloat16", "torch_autocast", "amp")
    if not any(case.at(block, "enabled") for block in halves):
        yield Hit((), "no half precision is enabled: training runs in fp32", "enable `bf16`")


@rule(
    "loss-scale-in-bf16",
    "error",
    fixable=True,
    why="bf16 has the range of fp32 and no loss scaler; its block refuses the keys of the fp16 "
    "one.",
    evidence="FlagOpen/FlagEmbedding#1487; " + CONFIG + ", DeepSpeedBF16Config",
)
def loss_scale_in_bf16(case: Case) -> Iterator[Hit]:
    """Loss-scale keys in the bf16 block."""
    block = bf16_block(case)
    for key in SCALER:
        if key in case.block(block):
            edits = case.document.removed((block, key))
            message = f"`{block}.{key}` belongs to fp16; bf16 has no loss scale"
            yield Hit((block, key), message, "remove it", edits)


@rule(
    "fp16-initial-scale",
    "warning",
    why="The scaler starts at 2^power and halves at each overflow: every power above what the "
    "model "
    "bears is a step that is computed and thrown away, and the schedule moves on all the same.",
    evidence="axolotl's shipped configs use 32; DeepSpeed runtime/fp16/loss_scaler.py, "
    "DynamicLossScaler.update_scale; deepspeedai/DeepSpeedExamples#418",
    fixable=True,
)
def fp16_initial_scale(case: Case) -> Iterator[Hit]:
    """An initial loss scale that wastes the first steps."""
    power = case.whole("fp16", "initial_scale_power")
    if power is None or power <= HIGHEST_USEFUL_POWER or case.number("fp16", "loss_scale"):
        return
    wait = case.whole("fp16", "hysteresis")
    lost = power - USUAL_POWER + ((2 if wait is None else wait) - 1)
    loc = ("fp16", "initial_scale_power")
    message = f"`initial_scale_power` (={power}) starts at 2^{power}: about {lost} steps are lost"
    yield Hit(loc, message, "use 16", case.document.replaced(loc, USUAL_POWER))


@rule(
    "fp16-scale-floor",
    "error",
    why="Dynamic scaling divides by the scale: with a floor of 0 or below it ends in division by "
    "zero or in gradients that vanish.",
    evidence=CONFIG + ", DeepSpeedFP16Config._validate_dynamic_loss_scale_params",
    fixable=True,
)
def fp16_scale_floor(case: Case) -> Iterator[Hit]:
    """A lowest loss scale of 0 or less, or a window of 0."""
    if not case.at("fp16", "enabled") or case.number("fp16", "loss_scale"):
        return
    for key, usual in (("min_loss_scale", 1), ("loss_scale_window", 1000)):
        value = case.number("fp16", key)
        if value is not None and value <= 0:
            edits = case.document.replaced(("fp16", key), usual)
            yield Hit(
                ("fp16", key), f"`{key}` (={shown(value)}) must be above 0", f"use {usual}", edits
            )


@rule(
    "fp16-scale-value",
    "error",
    why="The scaler's values are checked one by one: a truth value or a negative scale is refused.",
    evidence=CONFIG + ", DeepSpeedFP16Config._validate_loss_scale",
)
def fp16_scale_value(case: Case) -> Iterator[Hit]:
    """A truth value or a negative number as loss scale."""
    for key in ("loss_scale", "loss_scale_window", "min_loss_scale"):
        value = case.at("fp16", key)
        negative = key == "loss_scale" and (case.number("fp16", key) or 0) < 0
        if isinstance(value, bool) or negative:
            yield Hit(("fp16", key), f"`{key}` (={shown(value)}) must be a number, 0 or above")


@rule(
    "fp16-static-scale",
    "warning",
    why="A fixed scale cannot fall when gradients overflow: each overflow is a lost step, for "
    "ever.",
    evidence="DeepSpeed runtime/fp16/loss_scaler.py, LossScaler; deepspeedai/DeepSpeedExamples#531",
)
def fp16_static_scale(case: Case) -> Iterator[Hit]:
    """A fixed loss scale."""
    scale = case.number("fp16", "loss_scale")
    if scale and case.at("fp16", "enabled"):
        message = f"`loss_scale` (={shown(scale)}) is fixed; dynamic keys beside it are not read"
        yield Hit(("fp16", "loss_scale"), message, "use 0: dynamic")


@rule(
    "bf16-old-name",
    "info",
    why="`bfloat16` is the old spelling; a `bf16` block beside it wins without a word.",
    evidence=CONFIG + ", get_bfloat16_config",
    fixable=True,
)
def bf16_old_name(case: Case) -> Iterator[Hit]:
    """The old name of the bf16 block."""
    if "bfloat16" in case.block():
        edits = case.document.renamed(("bfloat16",), "bf16")
        yield Hit(("bfloat16",), "`bfloat16` is the old name of `bf16`", "write `bf16`", edits)


@rule(
    "half-states-stage",
    "error",
    why="Master weights in half precision are kept by the ZeRO optimizers only.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._do_error_check",
)
def half_states_stage(case: Case) -> Iterator[Hit]:
    """Half-precision master weights without ZeRO."""
    keys = (
        ("fp16", "fp16_master_weights_and_grads"),
        ("bf16", "bf16_master_weights_and_grads"),
        ("bf16", "bf16_optimizer_states"),
    )
    for loc in keys:
        if case.is_on(*loc) and case.stage == 0:
            yield Hit(loc, f"`{loc[1]}` needs ZeRO stage 1, 2 or 3", "set a ZeRO stage")


@rule(
    "bf16-states-alone",
    "error",
    why="Optimizer states in bf16 are only kept beside master weights in bf16.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._do_error_check",
)
def bf16_states_alone(case: Case) -> Iterator[Hit]:
    """bf16 optimizer states beside fp32 master weights."""
    loc = ("bf16", "bf16_optimizer_states")
    if case.is_on(*loc) and not case.is_on("bf16", "bf16_master_weights_and_grads"):
        yield Hit(loc, "`bf16_optimizer_states` needs `bf16_master_weights_and_grads`")


@rule(
    "communication-type",
    "error",
    why="Only these three types are known; anything else stops every rank.",
    evidence="DeepSpeed runtime/config.py, get_communication_data_type",
)
def communication_type(case: Case) -> Iterator[Hit]:
    """An unknown type for gradients on the wire or in accumulation."""
    for loc in (
        ("communication_data_type",),
        ("seq_parallel_communication_data_type",),
        ("data_types", "grad_accum_dtype"),
    ):
        value = case.at(*loc)
        if value is not None and case.word(*loc) not in (*TYPES, "auto"):
            yield Hit(loc, f"`{loc[-1]}` (={shown(value)}) must be fp32, fp16 or bf16")


@rule(
    "communication-fp16",
    "warning",
    why="Gradients of a bf16 run that travel as fp16 overflow above 65504, and there is no loss "
    "scale to catch it.",
    evidence="DeepSpeed runtime/zero/stage3.py, communication_data_type",
)
def communication_fp16(case: Case) -> Iterator[Hit]:
    """bf16 training whose gradients travel as fp16."""
    loc = ("communication_data_type",)
    if case.word(*loc) == "fp16" and case.is_on(bf16_block(case), "enabled"):
        yield Hit(loc, "bf16 gradients are sent as fp16 and can overflow", "use bf16 or fp32")


@rule(
    "amp-with-half",
    "error",
    why="Apex AMP and DeepSpeed's own half precision both replace the weights; DeepSpeed refuses "
    "it.",
    evidence="DeepSpeed 0.19.7 runtime/engine.py, _do_optimizer_sanity_check",
)
def amp_with_half(case: Case) -> Iterator[Hit]:
    """Apex AMP beside fp16, bf16 or ZeRO."""
    halves = case.at("fp16", "enabled") or case.at(bf16_block(case), "enabled")
    if case.is_on("amp", "enabled") and (halves or case.stage):
        yield Hit(("amp", "enabled"), "`amp` cannot be combined with fp16, bf16 or ZeRO")
