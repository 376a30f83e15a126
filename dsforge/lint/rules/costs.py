"""Rules: values that are legal and cost memory or time, each with its predicted price."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.case import ZERO, Case, rule
from dsforge.units import count, gib
from dsforge.zero_stages import FULLY_SHARDED

BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
SMALL_BUCKET = 1_000_000  # elements: 2 MB messages are bound by latency
LARGE_BUCKET = 1_000_000_000
BYTES = 2  # of one element in half precision
DEFAULT_SUB_GROUP = 1_000_000_000
LARGE_PERSISTENCE = 10_000_000
OFTEN = 10


def in_stage3(case: Case) -> bool:
    """Whether parameters are sharded."""
    return case.stage == FULLY_SHARDED


@rule(
    "sub-group-zero",
    "warning",
    why="Stage 3 closes a sub-group as soon as it holds this many elements: with 0 every parameter "
    "is one, and the optimizer step becomes hundreds of small kernels and, offloaded, small "
    "copies.",
    evidence="axolotl's shipped configs; DeepSpeed runtime/zero/stage3.py, _create_fp16_sub_groups",
)
def sub_group_zero(case: Case) -> Iterator[Hit]:
    """Sub-groups of one parameter."""
    loc = (ZERO, "sub_group_size")
    size = case.number(*loc)
    if size is not None and size < SMALL_BUCKET and in_stage3(case):
        message = f"`sub_group_size` (={count(size)}): one optimizer step per parameter"
        yield Hit(loc, message, "use 1000000000")


@rule(
    "sub-group-endless",
    "warning",
    why="With offload the sub-group is the tile that is staged and updated at once: larger than "
    "the shard it turns tiling off, and the staging copy is as large as the whole shard.",
    evidence="Lightning's strategy defaults (1e12); DeepSpeed runtime/zero/config.py, "
    "sub_group_size",
)
def sub_group_endless(case: Case) -> Iterator[Hit]:
    """A sub-group without bound beside offload."""
    loc = (ZERO, "sub_group_size")
    size = case.number(*loc)
    tiled = case.device("offload_optimizer") != "none"
    if size is not None and size > 10 * DEFAULT_SUB_GROUP and tiled and in_stage3(case):
        yield Hit(loc, f"`sub_group_size` (={count(size)}) turns tiling off", "use 1000000000")


@rule(
    "max-live-zero",
    "warning",
    why="Nothing may stay gathered or be fetched ahead, so every layer waits for its own gather in "
    "forward, in backward and again in recomputation: communication is fully exposed.",
    evidence="axolotl's shipped configs; DeepSpeed runtime/zero/partitioned_param_coordinator.py",
)
def max_live_zero(case: Case) -> Iterator[Hit]:
    """No live parameters, or no reuse of them."""
    for key in ("max_live_parameters", "max_reuse_distance", "prefetch_bucket_size"):
        for name in (f"stage3_{key}", key):
            if case.number(ZERO, name) == 0 and in_stage3(case):
                value = 50_000_000 if key.startswith("prefetch") else 1_000_000_000
                message = (
                    f"`{name}` (=0): nothing is fetched ahead or kept, every gather is waited for"
                )
                yield Hit((ZERO, name), message, f"use {value}")


@rule(
    "overlap-off",
    "warning",
    why="At stage 3 DeepSpeed overlaps gathers and reductions with computation by default. Without "
    "it the step is the sum of both: up to twice as long where the network is slow.",
    evidence="every template of LLaMA-Factory; DeepSpeed runtime/zero/config.py, "
    "overlap_comm_valid",
)
def overlap_off(case: Case) -> Iterator[Hit]:
    """Communication that is not overlapped at stage 3."""
    loc = (ZERO, "overlap_comm")
    if case.is_off(*loc) and in_stage3(case):
        message = "`overlap_comm` is false: computation waits for all communication"
        yield Hit(loc, message, "set it to true")


@rule(
    "contiguous-off",
    "warning",
    why="Gradients are then kept where backward left them, which fragments the memory of the card.",
    evidence="DeepSpeed runtime/zero/config.py, contiguous_gradients",
)
def contiguous_off(case: Case) -> Iterator[Hit]:
    """Gradients that are not contiguous."""
    loc = (ZERO, "contiguous_gradients")
    if case.is_off(*loc) and case.stage:
        yield Hit(loc, "`contiguous_gradients` is false: memory fragments", "set it to true")


@rule(
    "bucket-small",
    "warning",
    why="Each bucket is one collective. Messages below about 2 MB are bound by latency, not by "
    "bandwidth: a network of 100 Gb/s moves them at a tenth of its rate.",
    evidence="deepspeedai/DeepSpeed#5766; DeepSpeed default 5e8",
)
def bucket_small(case: Case) -> Iterator[Hit]:
    """A bucket so small that latency rules."""
    for key in BUCKETS[:2]:
        size = case.number(ZERO, key)
        if size is not None and 0 < size < SMALL_BUCKET and case.stage:
            message = f"`{key}` (={count(size)} elements) makes many small messages"
            yield Hit((ZERO, key), message, "use 5e7 to 5e8")


@rule(
    "bucket-large",
    "warning",
    why="A bucket is memory on the card, held all the time, and twice where communication is "
    "overlapped.",
    evidence="deepspeedai/DeepSpeed#1302, LianjiaTech/BELLE#402",
)
def bucket_large(case: Case) -> Iterator[Hit]:
    """A bucket that costs gigabytes."""
    for key in BUCKETS:
        size = case.number(ZERO, key)
        if size is not None and size > LARGE_BUCKET and case.stage:
            copies = 1 if case.is_off(ZERO, "overlap_comm") else 2
            message = (
                f"`{key}` (={count(size)} elements) takes {gib(size * BYTES * copies)} of each card"
            )
            yield Hit((ZERO, key), message, "use 5e8 or less")


@rule(
    "persistence-large",
    "warning",
    why="Parameters below this size are never sharded: a large threshold turns stage 3 back into "
    "replicated weights.",
    evidence="DeepSpeed runtime/zero/config.py, param_persistence_threshold (default 1e5)",
)
def persistence_large(case: Case) -> Iterator[Hit]:
    """A threshold under which nothing is sharded."""
    for name in ("stage3_param_persistence_threshold", "param_persistence_threshold"):
        size = case.number(ZERO, name)
        if size is not None and size > LARGE_PERSISTENCE and in_stage3(case):
            message = f"`{name}` (={count(size)}): whole weight matrices stay on every rank"
            yield Hit((ZERO, name), message, "use 1e5 to 1e6")


@rule(
    "breakdown-on",
    "warning",
    why="Timers synchronise the card around every phase of every micro step, so nothing overlaps "
    "any more.",
    evidence="DeepSpeed utils/timer.py, SynchronizedWallClockTimer",
)
def breakdown_on(case: Case) -> Iterator[Hit]:
    """Timers or memory reports in every step."""
    for key in ("wall_clock_breakdown", "memory_breakdown", "dump_state"):
        if case.is_on(key):
            yield Hit((key,), f"`{key}` is on: it slows every step", "use it for short trials only")


@rule(
    "profiler-on",
    "warning",
    why="The FLOPs profiler patches every function of the model in its step and switches the "
    "wall-clock breakdown on for the whole run.",
    evidence="DeepSpeed runtime/config.py, _initialize_params (wall_clock_breakdown)",
)
def profiler_on(case: Case) -> Iterator[Hit]:
    """A profiler in a training run."""
    if case.is_on("flops_profiler", "enabled"):
        yield Hit(("flops_profiler", "enabled"), "`flops_profiler` is on", "switch it off")
    if case.is_on("comms_logger", "enabled"):
        yield Hit(("comms_logger", "enabled"), "`comms_logger` is on: it times every collective")


@rule(
    "autotuning-on",
    "warning",
    why="The launcher then starts trial runs instead of the training.",
    evidence="deepspeedai/DeepSpeed#4759, huggingface/transformers#27830",
)
def autotuning_on(case: Case) -> Iterator[Hit]:
    """The autotuner switched on."""
    if case.is_on("autotuning", "enabled"):
        yield Hit(("autotuning", "enabled"), "`autotuning` is on: trials run, not the training")


@rule(
    "steps-per-print",
    "info",
    why="Each print fetches the loss scale and learning rates from all groups and fills the log.",
    evidence="DeepSpeed runtime/engine.py, _report_progress",
)
def steps_per_print(case: Case) -> Iterator[Hit]:
    """A line in the log for nearly every step."""
    number = case.number("steps_per_print")
    if number is not None and number < OFTEN:
        yield Hit(("steps_per_print",), f"`steps_per_print` (={number}) prints often", "use 100")


@rule(
    "unused-fatal",
    "info",
    why="`ignore_unused_parameters` is true by default: parameters that get no gradient are passed "
    "over. Set to false, stage 2 stops at the first of them.",
    evidence="DeepSpeed runtime/zero/config.py, ignore_unused_parameters",
)
def unused_fatal(case: Case) -> Iterator[Hit]:
    """Unused parameters made fatal."""
    loc = (ZERO, "ignore_unused_parameters")
    if case.is_off(*loc):
        yield Hit(loc, "`ignore_unused_parameters` is false: frozen or skipped layers stop the run")
