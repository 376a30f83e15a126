"""Collectives outside the layers: gradients, weights, what stages hand on."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate import traffic
from dsforge.estimate.frame import Frame
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan
from dsforge.strategy import FULLY_SHARDED, Strategy

FITTED = "estimate/traffic.py: fitted over all published rows"
EXPOSED = "what is not hidden beside compute; never less than a share"
WIRE = "estimate/traffic.py, read in the engine"


def take_exchanges(sheet: Sheet, plan: Plan, frame: Frame) -> None:
    """Seconds on the wire, and what of them shows."""
    lines = (*_exchanges(sheet, plan, frame), *_between(sheet, plan.strategy))
    sheet.work_out("collectives outside the layers", lines)


def name_of(exchange: traffic.Exchange) -> str:
    """What an exchange is called in formulas."""
    return exchange.name.replace(",", "").replace("-", "_").replace(" ", "_")


def _exchanges(sheet: Sheet, plan: Plan, frame: Frame) -> Iterator[Line]:
    """Gradients and weights."""
    found = traffic.exchanges(frame, plan.strategy)
    sheet.give(FITTED, never_hidden=traffic.NEVER_HIDDEN)
    if found:
        yield from _payloads(sheet, plan)
    for exchange in found:
        name = name_of(exchange)
        sheet.give(
            f"{FITTED}; share of a micro batch's compute that may hide it",
            **{f"{name}_hiding": exchange.hidden_share},
        )
        experts = "expert_data_ranks" in sheet.values
        yield Line(f"{name}_s", "s", _wire(name, experts=experts), WIRE)
        shown = f"max({name}_s - {name}_hiding * micro_compute_s, never_hidden * {name}_s)"
        yield Line(f"{name}_exposed_s", "s", shown, EXPOSED)


def _payloads(sheet: Sheet, plan: Plan) -> Iterator[Line]:
    """Bytes of gradients and weights; experts apart where fewer ranks hold the same ones."""
    strategy, engine = plan.strategy, plan.strategy.back_end == "deepspeed"
    run = strategy.runs_as
    shared = strategy.layout.context_parallel_size > 1
    held = "the rank with the most parameters"
    wide = not engine or shared or run.reduced == "fp32"
    size, size_of_weight = "4" if wide else "element_bytes", "element_bytes"
    trained = "pace_trained_parameters"
    if strategy.zero_stage == FULLY_SHARDED and run.quantized_gradients:
        size = f"{traffic.QUANTIZED_GRADIENT}"
    if strategy.zero_stage == FULLY_SHARDED and run.quantized_weights:
        size_of_weight = f"{traffic.QUANTIZED_WEIGHT}"
    if "expert_ranks" in sheet.values:
        for kind, moved in (("gradient", size), ("updated", "element_bytes")):
            formula = f"{moved} * pace_trained_experts"
            yield Line(f"expert_{kind}_bytes", "bytes", formula, f"{held}: its experts")
        trained = "(pace_trained_parameters - pace_trained_experts)"
    yield Line("gradient_bytes", "bytes", f"{size} * {trained}", held)
    yield Line("weight_bytes", "bytes", f"{size_of_weight} * pace_held_parameters", held)
    yield Line("updated_bytes", "bytes", f"element_bytes * {trained}", held)
    if "pipeline_ranks" in sheet.values:
        words = f"{size} * vocab_size * embedding_size / tp"
        yield Line("tied_bytes", "bytes", words, "the embedding, on the first and the last stage")
    if strategy.zero_stage == FULLY_SHARDED:
        gathers = 3 if strategy.recompute == "full" else 2
        sheet.give("forward, backward, recomputation: weights gathered for each", gathers=gathers)
        return
    sheet.give(FITTED, "bytes", message_bytes=traffic.MESSAGE_BYTES)
    message = "element_bytes * reduce_bucket_size" if engine else "message_bytes"
    yield Line("bucket_bytes", "bytes", message, "one message")


def _wire(name: str, *, experts: bool) -> str:
    """Seconds on the wire of one exchange."""
    kind = {
        "gradients_all_reduced": "reduce",
        "gradients_scattered": "scatter",
        "updated_weights_gathered": "gather",
    }.get(name)
    if kind is None:
        return _WIRES[name]
    payload = "updated_bytes" if kind == "gather" else "gradient_bytes"
    formula = _moved(kind, payload, "data")
    return f"{formula} + {_moved(kind, f'expert_{payload}', 'expert_data')}" if experts else formula


def _moved(kind: str, payload: str, group: str) -> str:
    """Seconds of one kind of collective of a payload in messages of a bucket."""
    rate = f"{group}_rate" if kind == "gather" else f"({group}_rate * {group}_{kind}_share)"
    ways, wait = ("2 * ", "tree_s") if kind == "reduce" else ("", "round_s")
    moved = f"{ways}{payload} * ({group}_ranks - 1) / {group}_ranks / {rate}"
    return f"{moved} + max(1, {payload} / bucket_bytes) * {group}_{wait}"


_SHARE = "(data_ranks - 1) / data_ranks"
_WIRES = {
    "tied_embeddings_summed": "tied_bytes / (pipeline_rate * pipeline_reduce_share)"
    " + pipeline_tree_s",
    "weights_gathered_in_groups_gradients_scattered": "gathers * weight_bytes"
    " * (group_ranks - 1) / group_ranks / group_rate"
    f" + gradient_bytes * {_SHARE} / (data_rate * data_scatter_share)"
    " + slowest_layers * (gathers * group_round_s + data_round_s)",
    "weights_gathered_from_all_ranks": "weight_bytes * pace_trained_parameters"
    f" / pace_held_parameters * {_SHARE} / data_rate"
    " + slowest_layers * data_round_s",
    "weights_gathered_gradients_scattered": "(gathers * weight_bytes"
    f" + gradient_bytes / data_scatter_share) * {_SHARE} / data_rate"
    " + slowest_layers * (gathers + 1) * data_round_s",
}


def _between(sheet: Sheet, strategy: Strategy) -> Iterator[Line]:
    """What pipeline stages hand on, over every hop."""
    if "pipeline_ranks" not in sheet.values:
        return
    virtual = strategy.virtual_stages
    exposed = traffic.PIPELINE_EXPOSED if virtual == 1 else traffic.INTERLEAVED_EXPOSED
    sheet.give(f"{FITTED}; of sends between stages", send_exposed=exposed)
    source = "estimate/traffic.py: share of compute that hides sends at most"
    sheet.give(source, sends_hiding=traffic.PIPELINE_OVERLAP)
    cut = " / tp" if strategy.sequence_parallel else ""
    parts = "" if strategy.sequence_parallel else " / tp"
    sent = f"micro_tokens * hidden_size * element_bytes{cut}"
    for name in ("pipeline", "neighbour"):
        why = "activations of a micro batch: over the slowest hop, or inside a node"
        formula = f"{name}_round_s + {sent} / {name}_rate"
        yield Line(f"{name}_send_s", "s", formula, why)
    far = "min(pp - 1, ceil(nodes / nvlink_domain_nodes) - 1)"
    yield Line("far_hops", "hops", far, "hops that leave a node, or its NVLink domain")
    filling = "2 * (far_hops * pipeline_send_s + (pp - 1 - far_hops) * neighbour_send_s)"
    why = "the first and the last micro batch pass every hop, there and back"
    yield Line("filling_s", "s", filling, why)
    wire = "2 * virtual_stages * accumulation_steps * pipeline_send_s + filling_s"
    yield Line("sends_s", "s", wire, "each chunk of each micro batch, forward and backward")
    all_compute = "accumulation_steps * micro_compute_s"
    shown = f"max(send_exposed * sends_s, sends_s{parts} - sends_hiding * {all_compute})"
    yield Line("sends_exposed_s", "s", shown, EXPOSED)
