"""Rules: accelerate's YAML, which passes settings of its own to DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from dsforge.findings import Hit
from dsforge.lint.checked_file import CheckedFile, rule, shown
from dsforge.lint.conditions import If
from dsforge.lint.rows import Look, Row, rules
from dsforge.lint.rules.keys import is_slip
from dsforge.lint.schemas.accelerate_keys import ENUMS, KEYS, OF_DEEPSPEED, OF_SAGEMAKER, WORDS

PLUGIN = "deepspeed_config"
CHECKS = "accelerate utils/dataclasses.py, DeepSpeedPlugin._deepspeed_config_checks"
DEVICES = ("none", "cpu", "nvme")
PRECISIONS = (*ENUMS["PrecisionType"], False)  # YAML reads `no` as false
LAUNCHERS = tuple(WORDS["DEEPSPEED_MULTINODE_LAUNCHERS"])
BOOLEANS = (*("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0"), True, False)


@rule(
    "accelerate-key-unknown",
    "error",
    "accelerate",
    fixable=True,
    why="accelerate refuses a file with unknown keys.",
    evidence="accelerate commands/config/config_args.py, BaseConfig.from_yaml_file",
)
def accelerate_key_unknown(file: CheckedFile) -> Iterator[Hit]:
    """A key that accelerate refuses."""
    sagemaker = file.word("compute_environment") == "amazon_sagemaker"
    known = [*KEYS, *OF_SAGEMAKER] if sagemaker else KEYS
    for key in file.block():
        if key not in known:
            near = get_close_matches(key[:60], known, n=1, cutoff=0.75)
            slip = bool(near) and is_slip(key, near[0])
            edits = file.document.renamed((key,), near[0]) if slip else ()
            fix = f"did you mean `{near[0]}`?" if near else "remove it"
            yield Hit((key,), f"`{shown(key)}` is not a key of accelerate", fix, edits)


@rule(
    "accelerate-plugin-key",
    "error",
    "accelerate",
    why="accelerate reads the keys that it knows here and ignores all others, so a setting of a "
    "ds_config, such as a `zero_optimization` block, is not applied.",
    evidence="accelerate commands/launch.py, _validate_launch_command",
)
def accelerate_plugin_key(file: CheckedFile) -> Iterator[Hit]:
    """A key of `deepspeed_config` that accelerate does not read."""
    for key in file.block(PLUGIN):
        if key not in OF_DEEPSPEED:
            near = get_close_matches(key[:60], OF_DEEPSPEED, n=1, cutoff=0.75)
            fix = f"did you mean `{near[0]}`?" if near else "set it in a `deepspeed_config_file`"
            yield Hit((PLUGIN, key), f"accelerate ignores `{shown(key)}` here", fix)


@rule(
    "accelerate-processes",
    "error",
    "accelerate",
    why="Processes are divided evenly over the machines.",
    evidence="huggingface/accelerate#2780; accelerate utils/launch.py, prepare_deepspeed_cmd_env",
)
def accelerate_processes(file: CheckedFile) -> Iterator[Hit]:
    """Processes that cannot be divided over the machines."""
    processes, machines = file.whole("num_processes"), file.whole("num_machines")
    if processes and machines and processes > 0 and machines > 0 and processes % machines:
        message = f"`num_processes` (={processes}) must be a multiple of {machines} machines"
        yield Hit(
            ("num_processes",), message, f"use {processes - processes % machines or machines}"
        )


ROWS = rules(
    Row(
        "accelerate-file-and-keys",
        "error",
        If(
            "deepspeed_config.gradient_accumulation_steps deepspeed_config.gradient_clipping "
            "deepspeed_config.zero_stage deepspeed_config.offload_optimizer_device "
            "deepspeed_config.offload_param_device deepspeed_config.offload_param_nvme_path "
            "deepspeed_config.offload_optimizer_nvme_path "
            "deepspeed_config.zero3_save_16bit_model",
            "present",
        ),
        "`{key}` cannot be combined with `deepspeed_config_file`",
        "set it in that file",
        title="A DeepSpeed file together with settings that it replaces.",
        why="accelerate refuses these keys together with a DeepSpeed file, because it would "
        "ignore them.",
        evidence=CHECKS,
        when=(If("deepspeed_config.deepspeed_config_file", "given"),),
        also=(
            Look(
                If("mixed_precision", "in", ("fp16", "bf16")),
                "`{key}` cannot be combined with `deepspeed_config_file`",
                "set it in that file",
                when=(If("deepspeed_config.deepspeed_config_file", "given"),),
            ),
        ),
        kinds=("accelerate",),
    ),
    Row(
        "accelerate-address",
        "warning",
        If("num_machines", "above", 1),
        "{value} machines require `main_process_ip` or `deepspeed_hostfile`, unless the address is "
        "given to `accelerate launch`",
        title="Several machines without the address of the first.",
        why="Machines connect to the address of the first one; without it each waits for itself.",
        evidence="deepspeedai/DeepSpeed#5136, huggingface/accelerate#1317",
        when=(
            If("deepspeed_config.deepspeed_hostfile", "not given"),
            If("main_process_ip", "not given"),
        ),
        kinds=("accelerate",),
    ),
    Row(
        "accelerate-choice",
        "error",
        If("deepspeed_config.zero_stage", "not in", (0, 1, 2, 3)),
        "`{key}` (={value}) must be 0, 1, 2 or 3",
        title="A stage, device or launcher that does not exist.",
        why="Any other value stops the launch, or is passed to DeepSpeed, which refuses it.",
        evidence="accelerate utils/dataclasses.py, DeepSpeedPlugin.__post_init__",
        also=(
            Look(
                If(
                    "deepspeed_config.offload_param_device "
                    "deepspeed_config.offload_optimizer_device",
                    "not in",
                    DEVICES,
                ),
                "`{key}` (={value}) must be none, cpu or nvme",
            ),
            Look(
                If("mixed_precision", "not in", PRECISIONS),
                "`{key}` (={value}) must be no, fp16, bf16 or fp8",
            ),
            Look(
                If(
                    "deepspeed_config.zero3_init_flag deepspeed_config.zero3_save_16bit_model",
                    "not in",
                    (*BOOLEANS, 0, 1),
                ),
                "`{key}` (={value}) must be true or false",
            ),
            Look(
                If("deepspeed_config.deepspeed_multinode_launcher", "not in", LAUNCHERS),
                "unknown launcher `{value}`",
                "use pdsh, standard, openmpi, mvapich, mpich, nossh, slurm",
            ),
        ),
        kinds=("accelerate",),
    ),
    Row(
        "accelerate-init-flag",
        "warning",
        If("deepspeed_config.zero3_init_flag", "on"),
        "`{key}` is on below ZeRO stage 3",
        "set it to false",
        title="`zero3_init_flag` that does not match the stage.",
        why="`zero3_init_flag` builds the model in shards; below stage 3 it is ignored or "
        "fails, and at stage 3 without it each rank builds the whole model in RAM.",
        evidence="accelerate utils/dataclasses.py, zero3_init_flag; "
        "liucongg/ChatGLM-Finetuning#102",
        when=(
            If("deepspeed_config.zero_stage", "below", 3),
            If("deepspeed_config.deepspeed_config_file", "not given"),
        ),
        also=(
            Look(
                If("deepspeed_config.zero3_init_flag", "off"),
                "`{key}` is off: every rank builds the whole model",
                "set it to true",
                when=(
                    If("deepspeed_config.zero_stage", "is", 3),
                    If("deepspeed_config.deepspeed_config_file", "not given"),
                ),
            ),
        ),
        kinds=("accelerate",),
    ),
    Row(
        "accelerate-type",
        "warning",
        If("distributed_type", "not among", ("deepspeed",)),
        "`{key}` (={value}) does not read `deepspeed_config`",
        "use DEEPSPEED",
        title="DeepSpeed settings under another distributed type.",
        why="The DeepSpeed settings are read only with this type; otherwise the run uses plain "
        "DDP.",
        evidence="accelerate commands/launch.py, launch_command",
        when=(If("deepspeed_config", "block"),),
        kinds=("accelerate",),
    ),
    Row(
        "accelerate-save",
        "warning",
        If("deepspeed_config.zero3_save_16bit_model", "not given"),
        "full weights are not gathered on save",
        "zero3_save_16bit_model: true",
        title="Stage 3 that does not gather weights on save.",
        why="At stage 3 each rank holds a shard of every weight; without this key `save_model` "
        "writes empty tensors or refuses.",
        evidence="huggingface/trl#378, hiyouga/LlamaFactory#253",
        when=(If("deepspeed_config.zero_stage", "is", 3),),
        at="deepspeed_config.zero_stage",
        kinds=("accelerate",),
    ),
)
