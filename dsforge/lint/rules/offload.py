"""Rules: offload to the host and to NVMe."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.case import ZERO, Case, rule
from dsforge.lint.rows import If, Repair, Row, rules

BLOCKS = ("offload_optimizer", "offload_param")
CONFIG = "DeepSpeed runtime/zero/offload_config.py"
CPU_OPTIMIZERS = ("adam", "adamw", "adagrad", "lion")
ADAM_BUFFERS = 4  # parameter, gradient and two moments
SMALLEST_AIO_BLOCK = 128 << 10  # bytes


def origin(case: Case, block: str) -> tuple[str, ...]:
    """The location that asks for an offload, in its new or its old spelling."""
    return (ZERO, block) if block in case.block(ZERO) else (ZERO,)


@rule(
    "offload-nvme-aio",
    "warning",
    why="Without an `aio` block the disk is driven with a queue of 8 and one thread, far below "
    "what an NVMe disk can do.",
    evidence="DeepSpeed runtime/swap_tensor/constants.py; deepspeedai/DeepSpeed#3506",
)
def offload_nvme_aio(case: Case) -> Iterator[Hit]:
    """NVMe offload with the default I/O settings."""
    if any(case.device(block) == "nvme" for block in BLOCKS) and not case.block("aio"):
        loc = next(origin(case, b) for b in BLOCKS if case.device(b) == "nvme")
        fix = "add `aio` with block_size 1048576, queue_depth 32"
        yield Hit(loc, "NVMe offload without an `aio` block", fix)


@rule(
    "offload-kind",
    "error",
    why="An offloaded optimizer runs on the CPU, and only these have a CPU version; others stop "
    "the engine, or compute on the card after copying everything back.",
    evidence="DeepSpeed runtime/engine.py, _configure_optimizer (zero_force_ds_cpu_optimizer)",
)
def offload_kind(case: Case) -> Iterator[Hit]:
    """An offloaded optimizer without a CPU version."""
    name = case.word("optimizer", "type")
    known = name in ("lamb", "onebitadam", "muon", "sgd", "rmsprop", "zerooneadam")
    if known and case.device("offload_optimizer") != "none":
        if case.is_on("zero_allow_untested_optimizer") or case.is_off(
            "zero_force_ds_cpu_optimizer"
        ):
            return
        message = f"optimizer `{name}` has no CPU version and is offloaded"
        yield Hit(("optimizer", "type"), message, f"use {' or '.join(CPU_OPTIMIZERS[1:])}")


ROWS = rules(
    Row(
        "offload-param-stage",
        "error",
        If("@offload_param", "is not", "none"),
        "`offload_param` is ignored at ZeRO stage {stage}",
        "use stage 3, or remove it",
        title="Parameter offload below stage 3.",
        why="Only stage 3 shards parameters, so only stage 3 can move them. Lower stages "
        "accept the block, ignore it and train, with all parameters on each card.",
        evidence=CONFIG
        + ", DeepSpeedZeroOffloadParamConfig; axolotl-ai-cloud/axolotl's zero2 files",
        when=(If("@stage", "below", 3),),
        at="zero_optimization.offload_param",
    ),
    Row(
        "offload-optimizer-stage",
        "error",
        If("@offload_optimizer", "is not", "none"),
        "`offload_optimizer` needs ZeRO stage 1, 2 or 3 (=0)",
        "use stage 2",
        title="Optimizer offload without ZeRO.",
        why="Without ZeRO there is no sharded optimizer state to move; the block is ignored or "
        "stops the engine.",
        evidence=CONFIG + ", DeepSpeedZeroOffloadOptimizerConfig: valid with stage 1, 2 and 3",
        when=(If("@stage", "is", 0),),
        at="zero_optimization.offload_optimizer",
    ),
    Row(
        "offload-ratio-stage",
        "error",
        If("zero_optimization.offload_optimizer.ratio", "below", 1),
        "`{key}` (={number}) below 1 needs ZeRO stage 3",
        "use 1.0, or stage 3",
        title="Partial optimizer offload below stage 3.",
        why="Partial offload splits the sub-groups of stage 3; other stages refuse it.",
        evidence="DeepSpeed runtime/zero/config.py, offload_ratio_check",
        when=(If("@stage", "below", 3),),
    ),
    Row(
        "offload-nvme-stage",
        "error",
        If(
            "zero_optimization.offload_optimizer.device zero_optimization.offload_param.device",
            "is",
            "nvme",
        ),
        "`{block}` to nvme needs ZeRO stage 3 (={stage})",
        "use cpu, or stage 3",
        title="NVMe offload below stage 3.",
        why="Swapping to NVMe is part of stage 3 (ZeRO-Infinity); lower stages keep it in RAM, "
        "which may not hold it.",
        evidence="DeepSpeed runtime/zero/stage3.py, _configure_tensor_swapping",
        when=(If("@stage", "below", 3),),
    ),
    Row(
        "offload-nvme-path",
        "error",
        If("zero_optimization.offload_optimizer zero_optimization.offload_param", "given"),
        "`{key}` to nvme has no `nvme_path`",
        "set `nvme_path`",
        title="NVMe offload without a path.",
        why="Each rank joins the path with a folder name; without one it stops with a TypeError.",
        evidence="DeepSpeed runtime/zero/stage3.py, _configure_tensor_swapping",
        when=(
            If("@device", "is", "nvme"),
            If("@nvme_path", "not given"),
        ),
    ),
    Row(
        "offload-path-unused",
        "info",
        If(
            "zero_optimization.offload_optimizer.nvme_path "
            "zero_optimization.offload_param.nvme_path",
            "given",
        ),
        "`{block}.nvme_path` is not read: the device is {device}",
        title="A path for NVMe where the device is another.",
        why="The path is read for device nvme only; whoever wrote it probably wanted the disk.",
        evidence=CONFIG,
        when=(If("@device", "is not", "nvme"),),
    ),
    Row(
        "aio-block-small",
        "warning",
        If("aio.block_size", "below", SMALLEST_AIO_BLOCK),
        "`{key}` (={number}) is small",
        "use 1048576",
        title="A small block size for disk I/O.",
        why="Small blocks make the disk seek: below 128 KiB an NVMe disk reaches a fraction of "
        "its rate.",
        evidence="DeepSpeed's tuner ops/csrc/aio/py_test starts at 128K and recommends 1M",
    ),
    Row(
        "offload-buffer-count",
        "error",
        If("zero_optimization.offload_optimizer.buffer_count", "below", ADAM_BUFFERS),
        "`{key}` (={number}) must be at least 4 with Adam on NVMe",
        "use 5",
        title="Too few buffers for an optimizer on NVMe.",
        why="The swapper takes one buffer for each state of a parameter at once: with Adam "
        "four. With fewer an assertion fails in the first step, after everything was "
        "loaded.",
        evidence="DeepSpeed runtime/swap_tensor/partitioned_optimizer_swapper.py, "
        "swap_in_optimizer_state",
        when=(If("@offload_optimizer", "is", "nvme"),),
        repair=Repair("replace", ADAM_BUFFERS + 1),
    ),
    Row(
        "offload-unpinned",
        "warning",
        If(
            "zero_optimization.offload_optimizer.pin_memory "
            "zero_optimization.offload_param.pin_memory",
            "off",
        ),
        "`{block}.pin_memory` is false: slow copies",
        "set it to true",
        title="Offload through pageable memory.",
        why="Copies between card and pageable memory are neither asynchronous nor at full "
        "rate: about half of what PCIe gives, and nothing overlaps.",
        evidence=CONFIG + ".pin_memory ",
        when=(If("@device", "is not", "none"),),
    ),
    Row(
        "superoffload-stage",
        "error",
        If("zero_optimization.offload_optimizer.super_offload", "on"),
        "`{key}` needs ZeRO stage 3",
        "use stage 3",
        title="SuperOffload below stage 3.",
        why="SuperOffload is built into the stage-3 optimizer.",
        evidence=CONFIG + ", DeepSpeedZeroOffloadOptimizerConfig.super_offload",
        when=(If("@stage", "below", 3),),
    ),
    Row(
        "offload-max-in-cpu",
        "warning",
        If("zero_optimization.offload_param.max_in_cpu", "is", 0),
        "`{key}` (=0): every parameter comes from the disk",
        "use 1e9",
        title="No parameters in RAM beside NVMe.",
        why="No parameter may stay in RAM, so every layer is read from the disk in every pass.",
        evidence=CONFIG + ", DeepSpeedZeroOffloadParamConfig.max_in_cpu",
        when=(If("@offload_param", "is", "nvme"),),
    ),
)
