"""Rules: offload to the host and to NVMe."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.checked_file import ZERO, CheckedFile, rule
from dsforge.lint.conditions import If
from dsforge.lint.rows import Repair, Row, rules

BLOCKS = ("offload_optimizer", "offload_param")
CONFIG = "DeepSpeed runtime/zero/offload_config.py"
ADAM_BUFFERS = 4  # parameter, gradient and two moments
SMALLEST_AIO_BLOCK = 128 << 10  # bytes


def origin(file: CheckedFile, block: str) -> tuple[str, ...]:
    """The location that asks for an offload, in its new or its old spelling."""
    return (ZERO, block) if block in file.block(ZERO) else (ZERO,)


@rule(
    "offload-nvme-aio",
    "warning",
    why="Without an `aio` block the disk is used with a queue depth of 8 and one thread, "
    "far below what an NVMe disk can do.",
    evidence="DeepSpeed runtime/swap_tensor/constants.py; deepspeedai/DeepSpeed#3506",
)
def offload_nvme_aio(file: CheckedFile) -> Iterator[Hit]:
    """NVMe offload with the default I/O settings."""
    if any(file.device(block) == "nvme" for block in BLOCKS) and not file.block("aio"):
        loc = next(origin(file, b) for b in BLOCKS if file.device(b) == "nvme")
        fix = "add `aio` with block_size 1048576, queue_depth 32"
        yield Hit(loc, "NVMe offload without an `aio` block", fix)


ROWS = rules(
    Row(
        "offload-nvme-path",
        "error",
        If("zero_optimization.offload_optimizer zero_optimization.offload_param", "given"),
        "`{key}` to nvme requires `nvme_path`",
        "set `nvme_path`",
        title="NVMe offload without a path.",
        why="Each rank joins the path with a folder name; without a path it stops with a "
        "TypeError.",
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
        title="An NVMe path with another offload device.",
        why="The path is read only for device nvme; the disk was probably intended.",
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
        why="Small blocks are inefficient: below 128 KiB an NVMe disk reaches a fraction of "
        "its bandwidth.",
        evidence="DeepSpeed's tuner ops/csrc/aio/py_test starts at 128K and recommends 1M",
    ),
    Row(
        "offload-buffer-count",
        "error",
        If("zero_optimization.offload_optimizer.buffer_count", "below", ADAM_BUFFERS),
        "`{key}` (={number}) must be at least 4 with Adam on NVMe",
        "use 5",
        title="Too few buffers for an optimizer on NVMe.",
        why="The swapper takes one buffer for each state of a parameter: four with Adam. With "
        "fewer, an assertion fails in the first step, after everything was loaded.",
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
        why="Copies between GPU and pageable memory are neither asynchronous nor at full "
        "bandwidth: they reach about half of PCIe and do not overlap.",
        evidence=CONFIG + ".pin_memory ",
        when=(
            If("@accelerator", "is not", "cpu"),
            If("@device", "is not", "none"),
            If("@offload_is_read", "on"),
        ),
    ),
    Row(
        "superoffload-stage",
        "error",
        If("zero_optimization.offload_optimizer.super_offload", "on"),
        "`{key}` requires ZeRO stage 3",
        "use stage 3",
        title="SuperOffload below stage 3.",
        why="SuperOffload is part of the stage 3 optimizer.",
        evidence=CONFIG + ", DeepSpeedZeroOffloadOptimizerConfig.super_offload",
        when=(If("@stage", "below", 3),),
    ),
    Row(
        "offload-max-in-cpu",
        "warning",
        If("zero_optimization.offload_param.max_in_cpu", "is", 0),
        "`{key}` (=0): every parameter comes from the disk",
        "use 1e9",
        title="No parameters in RAM with NVMe offload.",
        why="No parameter may stay in RAM, so every layer is read from the disk in every pass.",
        evidence=CONFIG + ", DeepSpeedZeroOffloadParamConfig.max_in_cpu",
        when=(If("@offload_param", "is", "nvme"),),
    ),
)
