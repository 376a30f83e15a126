"""Rules: values that are legal but cost memory or time."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.checked_file import ZERO, CheckedFile, rule
from dsforge.lint.conditions import If
from dsforge.lint.rows import Look, Row, rules
from dsforge.units import count, gib

BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
SMALL_BUCKET = 1_000_000  # elements: 2 MB messages are bound by latency
LARGE_BUCKET = 1_000_000_000
BYTES = 2  # of one element in half precision
LARGEST_SUB_GROUP = 10_000_000_000
LARGE_PERSISTENCE = 10_000_000


@rule(
    "bucket-large",
    "warning",
    why="A bucket occupies GPU memory throughout the run, twice where communication is overlapped.",
    evidence="deepspeedai/DeepSpeed#1302, LianjiaTech/BELLE#402",
)
def bucket_large(file: CheckedFile) -> Iterator[Hit]:
    """A bucket that costs gigabytes."""
    for key in BUCKETS:
        size = file.number(ZERO, key)
        if size is not None and size > LARGE_BUCKET and file.stage:
            copies = 1 if file.is_off(ZERO, "overlap_comm") else 2
            message = (
                f"`{key}` (={count(size)} elements) takes {gib(size * BYTES * copies)} on each GPU"
            )
            yield Hit((ZERO, key), message, "use 5e8 or less")


ROWS = rules(
    Row(
        "max-live-zero",
        "warning",
        If(
            "zero_optimization.stage3_max_live_parameters "
            "zero_optimization.max_live_parameters zero_optimization.stage3_max_reuse_distance "
            "zero_optimization.max_reuse_distance",
            "between",
            (0, 0),
        ),
        "`{key}` (=0): nothing is prefetched, computation waits for every gather",
        "use 1000000000",
        title="No live parameters, or no reuse of them.",
        why="Nothing may stay gathered or be fetched ahead, so every layer waits for its own "
        "gather in forward, in backward and again in recomputation: communication is fully "
        "exposed.",
        evidence="axolotl's shipped configs; "
        "DeepSpeed runtime/zero/partitioned_param_coordinator.py",
        when=(If("@stage", "is", 3),),
        also=(
            Look(
                If(
                    "zero_optimization.stage3_prefetch_bucket_size "
                    "zero_optimization.prefetch_bucket_size",
                    "between",
                    (0, 0),
                ),
                "`{key}` (=0): nothing is prefetched, computation waits for every gather",
                "use 50000000",
                when=(If("@stage", "is", 3),),
            ),
        ),
    ),
    Row(
        "sub-group-zero",
        "warning",
        If("zero_optimization.sub_group_size", "below", SMALL_BUCKET),
        "`{key}` (={count}): one optimizer step per parameter",
        "use 1000000000",
        title="Sub-groups of one parameter.",
        why="Stage 3 closes a sub-group as soon as it holds this many elements: with 0 every "
        "parameter is one, and the optimizer step becomes hundreds of small kernels and, "
        "offloaded, small copies.",
        evidence="axolotl's shipped configs; DeepSpeed runtime/zero/stage3.py, "
        "_create_fp16_sub_groups",
        when=(If("@stage", "is", 3),),
    ),
    Row(
        "sub-group-endless",
        "warning",
        If("zero_optimization.sub_group_size", "above", LARGEST_SUB_GROUP),
        "`{key}` (={count}) disables tiling",
        "use 1000000000",
        title="An unlimited sub-group size with offload.",
        why="With offload the sub-group is the tile that is staged and updated at once: larger "
        "than the shard it disables tiling, and the staging copy is as large as the whole "
        "shard.",
        evidence="Lightning's strategy defaults (1e12); DeepSpeed runtime/zero/config.py, "
        "sub_group_size",
        when=(
            If("@offload_optimizer", "is not", "none"),
            If("@stage", "is", 3),
        ),
    ),
    Row(
        "overlap-off",
        "info",
        If("zero_optimization.overlap_comm", "off"),
        "`{key}` is false: less memory, but computation waits for all communication",
        "set it to true where memory allows",
        title="Communication that is not overlapped at stage 3.",
        why="At stage 3 DeepSpeed overlaps gathers and reductions with computation by default. "
        "Without it the step is the sum of both: up to twice as long where the network is "
        "slow. It saves the buffers of the communication that is under way.",
        evidence="every template of LLaMA-Factory; DeepSpeed runtime/zero/config.py, "
        "overlap_comm_valid",
        when=(
            If("@accelerator", "is not", "cpu"),
            If("@stage", "is", 3),
        ),
    ),
    Row(
        "contiguous-off",
        "warning",
        If("zero_optimization.contiguous_gradients", "off"),
        "`{key}` is false: memory fragments",
        "set it to true",
        title="Gradients that are not contiguous.",
        why="Gradients then stay where the backward pass allocated them, which fragments GPU "
        "memory. Stage 2 ignores the key where the optimizer is offloaded.",
        evidence="DeepSpeed runtime/zero/stage_1_and_2.py, contiguous_gradients",
        when=(
            If("@stage", "is", 2),
            If("@offload_optimizer", "is", "none"),
        ),
        also=(
            Look(
                If("zero_optimization.contiguous_gradients", "off"),
                "`{key}` is false: memory fragments",
                "set it to true",
                when=(If("@stage", "is", 3),),
            ),
        ),
    ),
    Row(
        "bucket-small",
        "warning",
        If(
            "zero_optimization.reduce_bucket_size zero_optimization.allgather_bucket_size",
            "between",
            (1, SMALL_BUCKET - 1),
        ),
        "`{key}` (={count} elements) makes many small messages",
        "use 5e7 to 5e8",
        title="A bucket so small that latency dominates.",
        why="Each bucket is one collective. Messages below about 2 MB are bound by latency, "
        "not bandwidth: a 100 Gb/s network moves them at a tenth of its rate.",
        evidence="deepspeedai/DeepSpeed#5766; DeepSpeed default 5e8",
        when=(If("@stage", "above", 0),),
    ),
    Row(
        "persistence-large",
        "warning",
        If(
            "zero_optimization.stage3_param_persistence_threshold "
            "zero_optimization.param_persistence_threshold",
            "above",
            LARGE_PERSISTENCE,
        ),
        "`{key}` (={count}): full weight matrices are replicated on every rank",
        "use 1e5 to 1e6",
        title="A threshold below which parameters are not sharded.",
        why="Parameters below this size are never sharded: a large threshold turns stage 3 "
        "back into replicated weights.",
        evidence="DeepSpeed runtime/zero/config.py, param_persistence_threshold (default 1e5)",
        when=(If("@stage", "is", 3),),
    ),
    Row(
        "breakdown-on",
        "warning",
        If("wall_clock_breakdown memory_breakdown dump_state", "on"),
        "`{key}` is on: it slows every step",
        "use it only in short trials",
        title="Timers or memory reports in every step.",
        why="Timers synchronise the GPU around every phase of every micro step, so nothing "
        "overlaps.",
        evidence="DeepSpeed utils/timer.py, SynchronizedWallClockTimer",
    ),
    Row(
        "profiler-on",
        "warning",
        If("flops_profiler.enabled comms_logger.enabled", "on"),
        "`{block}` is on: it slows every step",
        "disable it",
        title="A profiler in a training run.",
        why="The FLOPs profiler patches every function of the model in its step and switches "
        "the wall-clock breakdown on for the whole run.",
        evidence="DeepSpeed runtime/config.py, _initialize_params (wall_clock_breakdown)",
        when=(If("@name", "does not name", ("prof", "flops")),),
    ),
    Row(
        "autotuning-on",
        "warning",
        If("autotuning.enabled", "on"),
        "`autotuning` is on: trials run, or the run ends after its profile step",
        title="The autotuner switched on.",
        why="With the flag --autotuning the launcher starts trial runs instead of the training. "
        "The key alone ends the training after `end_profile_step`.",
        evidence="deepspeedai/DeepSpeed#4759, huggingface/transformers#27830",
        when=(If("@name", "does not name", ("tun",)),),
    ),
    Row(
        "steps-per-print-zero",
        "error",
        If("steps_per_print", "between", (0, 0)),
        "`{key}` (=0) divides by zero in the first step",
        "use null to switch the lines off",
        title="A line in the log for every 0 steps.",
        why="The engine takes the step modulo this number; null is what switches the lines off.",
        evidence="DeepSpeed runtime/engine.py, step",
        when=(If("@auto", "off"),),
    ),
    Row(
        "unused-fatal",
        "info",
        If("zero_optimization.ignore_unused_parameters", "off"),
        "`{key}` is false: frozen or skipped layers stop the run",
        title="Unused parameters made fatal.",
        why="`ignore_unused_parameters` is true by default: parameters without a gradient are "
        "skipped. Set to false, stage 2 stops at the first of them.",
        evidence="DeepSpeed runtime/zero/config.py, ignore_unused_parameters",
    ),
)
