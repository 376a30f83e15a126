"""Rules: fp16, bf16, loss scale and the types of gradients."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.checked_file import CheckedFile, rule
from dsforge.lint.conditions import If
from dsforge.lint.rows import Look, Repair, Row, rules

SCALER = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
SCALER_KEYS = " ".join(f"{block}.{key}" for block in ("bf16", "bfloat16") for key in SCALER)
HIGHEST_USEFUL_POWER = 24  # the scaler halves: from 2^32 sixteen and more steps are thrown away
USUAL_POWER = 16
CONFIG = "DeepSpeed runtime/precision_config.py"


@rule(
    "precision-full",
    "info",
    why="No half precision is enabled, so weights, gradients and activations take twice "
    "the memory, and the fast tensor core formats are not used.",
    evidence="DeepSpeed runtime/engine.py, DeepSpeedEngine.get_data_types",
)
def precision_full(file: CheckedFile) -> Iterator[Hit]:
    """Training in fp32."""
    halves = ("fp16", "bf16", "bfloat16", "torch_autocast", "amp")
    if not any(file.at(block, "enabled") for block in halves):
        yield Hit((), "no half precision is enabled: training runs in fp32", "enable `bf16`")


@rule(
    "fp16-initial-scale",
    "info",
    why="The scaler starts at 2^power and halves at each overflow: every power above what "
    "the model tolerates is a step that is computed and discarded, while the schedule "
    "moves on.",
    evidence="axolotl's shipped configs use 32; DeepSpeed runtime/fp16/loss_scaler.py, "
    "DynamicLossScaler.update_scale; deepspeedai/DeepSpeedExamples#418",
    fixable=True,
)
def fp16_initial_scale(file: CheckedFile) -> Iterator[Hit]:
    """An initial loss scale that wastes the first steps."""
    power = file.whole("fp16", "initial_scale_power")
    enabled = file.at("fp16", "enabled")
    if (
        not enabled
        or power is None
        or power <= HIGHEST_USEFUL_POWER
        or file.number("fp16", "loss_scale")
    ):
        return
    wait = file.whole("fp16", "hysteresis")
    lost = power - USUAL_POWER + ((2 if wait is None else wait) - 1)
    loc = ("fp16", "initial_scale_power")
    message = f"`initial_scale_power` (={power}) starts at 2^{power}: about {lost} steps are lost"
    if enabled == "auto":  # bf16 may be what the trainer fills in
        yield Hit(loc, message, "use 16")
    else:
        yield Hit(loc, message, "use 16", file.document.replaced(loc, USUAL_POWER))


@rule(
    "amp-with-half",
    "error",
    why="Apex AMP and DeepSpeed's own half precision both replace the weights; DeepSpeed "
    "refuses the combination.",
    evidence="DeepSpeed 0.19.7 runtime/engine.py, _do_optimizer_sanity_check",
)
def amp_with_half(file: CheckedFile) -> Iterator[Hit]:
    """Apex AMP combined with fp16, bf16 or ZeRO."""
    halves = file.at("fp16", "enabled") or file.at(file.bf16_block, "enabled")
    if file.is_on("amp", "enabled") and (halves or file.stage):
        yield Hit(("amp", "enabled"), "`amp` cannot be combined with fp16, bf16 or ZeRO")


ROWS = rules(
    Row(
        "loss-scale-in-bf16",
        "error",
        If(SCALER_KEYS, "present"),
        "`{block}.{key}` belongs to fp16; bf16 has no loss scale",
        "remove it",
        title="Loss-scale keys in the bf16 block.",
        why="bf16 has the range of fp32 and needs no loss scaler; its block refuses the keys "
        "of the fp16 block.",
        evidence="FlagOpen/FlagEmbedding#1487; " + CONFIG + ", DeepSpeedBF16Config",
        since="0.17.1",  # before, the block took any key
        repair=Repair("remove"),
    ),
    Row(
        "fp16-scale-floor",
        "error",
        If("fp16.min_loss_scale", "at most", 0),
        "`{key}` (={value}) must be above 0",
        "use 1",
        title="A minimum loss scale of 0 or less, or a window of 0.",
        why="Dynamic scaling divides by the scale: with a minimum of 0 or below it ends in "
        "division by zero or in vanishing gradients.",
        evidence=CONFIG + ", DeepSpeedFP16Config._validate_dynamic_loss_scale_params",
        when=(
            If("fp16.enabled", "given"),
            If("fp16.loss_scale", "not above", 0),
        ),
        repair=Repair("replace", 1),
        also=(
            Look(
                If("fp16.loss_scale_window", "at most", 0),
                "`{key}` (={value}) must be above 0",
                "use 1000",
                when=(
                    If("fp16.enabled", "given"),
                    If("fp16.loss_scale", "not above", 0),
                ),
                repair=Repair("replace", 1000),
            ),
        ),
    ),
    Row(
        "fp16-scale-value",
        "error",
        If("fp16.loss_scale fp16.loss_scale_window fp16.min_loss_scale", "boolean"),
        "`{key}` (={value}) must be a number, 0 or above",
        title="A boolean or negative loss scale.",
        why="Each value of the scaler is checked: a boolean or a negative scale is refused.",
        evidence=CONFIG + ", DeepSpeedFP16Config._validate_loss_scale",
        also=(
            Look(
                If("fp16.loss_scale", "below", 0),
                "`{key}` (={value}) must be a number, 0 or above",
            ),
        ),
    ),
    Row(
        "fp16-with-bf16",
        "error",
        If("fp16.enabled", "on"),
        "`fp16` and `bf16` are both enabled",
        "keep bf16 where the GPU supports it",
        title="fp16 and bf16 are both enabled.",
        why="Weights have one type; DeepSpeed stops with an assertion after all ranks have "
        "started.",
        evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._initialize_params",
        when=(If("@bf16", "on"),),
    ),
    Row(
        "fp16-static-scale",
        "warning",
        If("fp16.loss_scale", "not 0"),
        "`{key}` (={value}) is fixed; the keys of dynamic scaling are ignored",
        "use 0: dynamic",
        title="A fixed loss scale.",
        why="A fixed scale cannot fall when gradients overflow: each overflow loses a step, "
        "throughout the run.",
        evidence="DeepSpeed runtime/fp16/loss_scaler.py, LossScaler; "
        "deepspeedai/DeepSpeedExamples#531",
        when=(If("fp16.enabled", "given"),),
    ),
    Row(
        "bf16-old-name",
        "info",
        If("bfloat16", "present"),
        "`bfloat16` is the old name of `bf16`",
        "write `bf16`",
        title="The old name of the bf16 block.",
        why="`bfloat16` is the old spelling; a `bf16` block in the same file overrides it "
        "silently.",
        evidence=CONFIG + ", get_bfloat16_config",
        repair=Repair("rename", "bf16"),
    ),
    Row(
        "half-states-stage",
        "error",
        If(
            "fp16.fp16_master_weights_and_grads bf16.bf16_master_weights_and_grads "
            "bf16.bf16_optimizer_states",
            "on",
        ),
        "`{key}` requires ZeRO stage 1, 2 or 3",
        "set a ZeRO stage",
        title="Half-precision master weights without ZeRO.",
        why="Only the ZeRO optimizers keep master weights in half precision.",
        evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._do_error_check",
        when=(If("@stage", "is", 0),),
    ),
    Row(
        "half-masters-on-device",
        "error",
        If("fp16.fp16_master_weights_and_grads bf16.bf16_master_weights_and_grads", "on"),
        "`{key}` requires an offloaded optimizer",
        'set `zero_optimization.offload_optimizer.device` to "cpu"; in bf16 '
        "`bf16_optimizer_states` keeps all states on the device",
        title="Half-precision master weights on the device.",
        why="Moments in fp32 are stepped with half-precision weights by DeepSpeed's CPU Adam only; "
        "the engine stops with an assertion.",
        evidence="DeepSpeed runtime/base_optimizer.py, _configure_master_weights",
        when=(
            If("@stage", "above", 0),
            If("@offload_optimizer", "is", "none"),
            If("bf16.bf16_optimizer_states", "not on"),
        ),
    ),
    Row(
        "bf16-states-alone",
        "error",
        If("bf16.bf16_optimizer_states", "on"),
        "`{key}` requires `bf16_master_weights_and_grads`",
        title="bf16 optimizer states with fp32 master weights.",
        why="Optimizer states in bf16 require master weights in bf16.",
        evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._do_error_check",
        when=(If("bf16.bf16_master_weights_and_grads", "not on"),),
    ),
    Row(
        "communication-type",
        "error",
        If(
            "communication_data_type seq_parallel_communication_data_type "
            "data_types.grad_accum_dtype",
            "not in",
            ("fp32", "fp16", "bf16", "auto"),
        ),
        "`{key}` (={value}) must be fp32, fp16 or bf16",
        title="An unknown data type for communication or accumulation.",
        why="Only these three types are supported; anything else stops every rank.",
        evidence="DeepSpeed runtime/config.py, get_communication_data_type",
    ),
    Row(
        "communication-fp16",
        "warning",
        If("communication_data_type", "is", "fp16"),
        "bf16 gradients are sent as fp16 and can overflow",
        "use bf16 or fp32",
        title="bf16 training that communicates gradients in fp16.",
        why="bf16 gradients that are communicated in fp16 overflow above 65504, and no loss "
        "scale catches it.",
        evidence="DeepSpeed runtime/zero/stage3.py, communication_data_type",
        when=(If("@bf16", "on"),),
    ),
)
