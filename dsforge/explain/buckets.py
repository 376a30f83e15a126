"""ZeRO's buffer sizes, worked out; sizes that a user has fixed are given."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate import buckets as sizes
from dsforge.estimate.states import Load
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan

SIZED = "estimate/buckets.py"


def take_buckets(sheet: Sheet, plan: Plan, load: Load) -> None:
    """Figures of the engine's buckets, or their values where nothing is sized."""
    found = load.buckets
    sheet.give(f"{SIZED}: overlap of reduction", reduce_buckets=2 if found.overlap_comm else 1)
    if plan.strategy.runs_as.buckets != "sized":
        sheet.give(
            "the engine's own sizes, or the user's",
            "elements",
            reduce_bucket_size=found.reduce_bucket_size,
            prefetch_bucket_size=found.prefetch_bucket_size,
            max_live_parameters=found.max_live_parameters,
            persistence_threshold=found.persistence_threshold,
            sub_group_size=found.sub_group_size,
        )
        return
    sheet.give(f"{SIZED}: keeps any link busy", "elements", busy_bucket=sizes.BUSY_BUCKET)
    sheet.give(
        f"{SIZED}: limits",
        "elements",
        largest_bucket=sizes.LARGEST_BUCKET,
        largest_live=sizes.LARGEST_LIVE,
    )
    per_hidden = sizes.PERSISTENT_PER_HIDDEN
    sheet.give(f"{SIZED}: the engine's own auto rule", persistent_per_hidden=per_hidden)
    sheet.give(
        f"{SIZED}: one tile of the step; a tenth where states are on disk",
        "elements",
        sub_group_size=found.sub_group_size,
    )
    experts = sizes.layer_experts(plan.model)
    sheet.give(f"{SIZED}: gathered at once", "elements", layer_experts=experts)
    sheet.work_out("buckets", tuple(_lines()))


def _lines() -> Iterator[Line]:
    why = f"{SIZED}: 100 MB in 16 bits, at least the engine's auto rule"
    yield Line("wanted_bucket", "elements", "max(hidden_size ** 2, busy_bucket)", why)
    even = "min(wanted_bucket, largest_bucket) // 2 * 2"
    whole = "max(2, (pace_held_parameters + 1) // 2 * 2)"
    why = f"{SIZED}: even, at most the whole model"
    yield Line("reduce_bucket_size", "elements", f"min({even}, {whole})", why)
    yield Line("layer_elements", "elements", "max(pace_held_parameters // layers, 1)", "mean layer")
    prefetch = "min(reduce_bucket_size, max(1, 9 * layer_elements // 10))"
    yield Line("prefetch_bucket_size", "elements", prefetch, f"{SIZED}: nine tenths of a layer")
    matrix = "max(vocab_size * embedding_size, hidden_size * ffn_hidden_size)"
    yield Line("largest_matrix", "elements", matrix, f"{SIZED}: the largest single gather")
    beside = "max(2 * largest_matrix, 2 * reduce_bucket_size)"
    live = f"max(min(4 * layer_elements, largest_live), {beside} + layer_experts)"
    why = f"{SIZED}: four layers; all experts of one, and what is prefetched beside them"
    yield Line("max_live_parameters", "elements", f"max(1, min(pace_held_parameters, {live}))", why)
    threshold = "persistent_per_hidden * hidden_size"
    why = f"{SIZED}: norms and biases stay whole"
    yield Line("persistence_threshold", "elements", threshold, why)
