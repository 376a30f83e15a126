"""Rules: offload to the host and to NVMe."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.case import ZERO, Case, rule
from dsforge.zero_stages import FULLY_SHARDED

BLOCKS = ("offload_optimizer", "offload_param")
CONFIG = "DeepSpeed runtime/zero/offload_config.py"
ADAM_BUFFERS = 4  # parameter, gradient and two moments
AIO_BLOCK = 1 << 20


def origin(case: Case, block: str) -> tuple[str, ...]:
    """The location that asks for an offload, in its new or its old spelling."""
    return (ZERO, block) if block in case.block(ZERO) else (ZERO,)


@rule(
    "offload-nvme-path",
    "error",
    why="Each rank joins the path with a folder name; without one it stops with a TypeError.",
    evidence="DeepSpeed runtime/zero/stage3.py, _configure_tensor_swapping",
)
def offload_nvme_path(case: Case) -> Iterator[Hit]:
    """NVMe offload without a path."""
    for block in BLOCKS:
        if case.device(block) == "nvme" and not case.at(ZERO, block, "nvme_path"):
            yield Hit((ZERO, block), f"`{block}` to nvme has no `nvme_path`", "set `nvme_path`")


@rule(
    "offload-path-unused",
    "info",
    why="The path is read for device nvme only; whoever wrote it probably wanted the disk.",
    evidence=CONFIG,
)
def offload_path_unused(case: Case) -> Iterator[Hit]:
    """A path for NVMe where the device is another."""
    for block in BLOCKS:
        path = case.at(ZERO, block, "nvme_path")
        if path and case.device(block) != "nvme":
            message = f"`{block}.nvme_path` is not read: the device is {case.device(block)[:20]}"
            yield Hit((ZERO, block, "nvme_path"), message)


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
    "aio-block-small",
    "warning",
    why="Small blocks make the disk seek: below 128 KiB an NVMe disk reaches a fraction of its "
    "rate.",
    evidence="DeepSpeed's tuner ops/csrc/aio/py_test starts at 128K and recommends 1M",
)
def aio_block_small(case: Case) -> Iterator[Hit]:
    """A small block size for disk I/O."""
    size = case.whole("aio", "block_size")
    if size is not None and size < AIO_BLOCK // 8:
        yield Hit(("aio", "block_size"), f"`block_size` (={size}) is small", f"use {AIO_BLOCK}")


@rule(
    "offload-buffer-count",
    "error",
    fixable=True,
    why="The swapper takes one buffer for each state of a parameter at once: with Adam four. With "
    "fewer an assertion fails in the first step, after everything was loaded.",
    evidence="DeepSpeed runtime/swap_tensor/partitioned_optimizer_swapper.py, "
    "swap_in_optimizer_state",
)
def offload_buffer_count(case: Case) -> Iterator[Hit]:
    """Too few buffers for an optimizer on NVMe."""
    loc = (ZERO, "offload_optimizer", "buffer_count")
    count = case.whole(*loc)
    if case.device("offload_optimizer") != "nvme" or count is None or count >= ADAM_BUFFERS:
        return
    message = f"`buffer_count` (={count}) must be at least {ADAM_BUFFERS} with Adam on NVMe"
    yield Hit(
        loc, message, f"use {ADAM_BUFFERS + 1}", case.document.replaced(loc, ADAM_BUFFERS + 1)
    )


@rule(
    "offload-unpinned",
    "warning",
    why="Copies between card and pageable memory are neither asynchronous nor at full rate: about "
    "half of what PCIe gives, and nothing overlaps.",
    evidence=CONFIG + ".pin_memory ",
)
def offload_unpinned(case: Case) -> Iterator[Hit]:
    """Offload through pageable memory."""
    for block in BLOCKS:
        if case.device(block) != "none" and case.is_off(ZERO, block, "pin_memory"):
            loc = (ZERO, block, "pin_memory")
            yield Hit(loc, f"`{block}.pin_memory` is false: slow copies", "set it to true")


@rule(
    "superoffload-stage",
    "error",
    why="SuperOffload is built into the stage-3 optimizer.",
    evidence=CONFIG + ", DeepSpeedZeroOffloadOptimizerConfig.super_offload",
)
def superoffload_stage(case: Case) -> Iterator[Hit]:
    """SuperOffload below stage 3."""
    loc = (ZERO, "offload_optimizer", "super_offload")
    if case.is_on(*loc) and case.stage not in (FULLY_SHARDED, None):
        yield Hit(loc, "`super_offload` needs ZeRO stage 3", "use stage 3")


@rule(
    "offload-max-in-cpu",
    "warning",
    why="No parameter may stay in RAM, so every layer is read from the disk in every pass.",
    evidence=CONFIG + ", DeepSpeedZeroOffloadParamConfig.max_in_cpu",
)
def offload_max_in_cpu(case: Case) -> Iterator[Hit]:
    """No parameters in RAM beside NVMe."""
    loc = (ZERO, "offload_param", "max_in_cpu")
    if case.device("offload_param") == "nvme" and case.number(*loc) == 0:
        yield Hit(loc, "`max_in_cpu` (=0): every parameter comes from the disk", "use 1e9")
