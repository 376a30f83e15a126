"""Bytes per token that the layers of a pipeline stage save, on the device or in RAM."""

from __future__ import annotations

from dsforge.estimate.activations import element_bytes, kept_token_bytes
from dsforge.estimate.dropout import edge_mask_bytes
from dsforge.estimate.states import Load
from dsforge.estimate.vision import saved_elements
from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import Strategy
from dsforge.traced import named

KEPT = "saved from forward to backward: all, or layer inputs with full recomputation"


def saved_token_bytes(
    model: ModelSpec, workload: Workload, strategy: Strategy, load: Load
) -> float:
    """Bytes saved per token in one stage from forward to backward."""
    found = 0.0
    if load.stage.has_embedding:
        found += edge_mask_bytes(model, strategy)
        found += element_bytes(workload) * saved_elements(model, workload, strategy)
    if strategy.runs_as.offload_activations:
        return found
    return found + layers_kept_bytes(model, workload, strategy, load)


def waiting_token_bytes(
    model: ModelSpec, workload: Workload, strategy: Strategy, load: Load
) -> float:
    """Bytes of one token that wait in RAM from forward to backward."""
    if not strategy.runs_as.offload_activations:
        return 0.0
    return named(layers_kept_bytes(model, workload, strategy, load), "waiting_token_bytes", "bytes")


def layers_kept_bytes(
    model: ModelSpec, workload: Workload, strategy: Strategy, load: Load
) -> float:
    """Bytes of one token that the layers of a stage keep, wherever they lie."""
    stage, tokens = load.stage, load.tokens
    kept = kept_token_bytes(model, workload, strategy, tokens.dense_layer)
    total = stage.dense_layers * named(kept, "dense_layer_kept_bytes", "bytes", KEPT)
    if stage.moe_layers:
        kept = kept_token_bytes(model, workload, strategy, tokens.moe_layer)
        total += stage.moe_layers * named(kept, "moe_layer_kept_bytes", "bytes", KEPT)
    return named(total, "saved_token_bytes", "bytes")


def working_token_bytes(
    model: ModelSpec, workload: Workload, strategy: Strategy, load: Load
) -> float:
    """Bytes per token in the layer in backward: its gradients and recomputed activations."""
    tokens = load.tokens
    if strategy.recompute == "none":
        return named(tokens.gradients, "working_token_bytes", "bytes")
    whole = tokens.moe_layer if load.stage.moe_layers else tokens.dense_layer
    whole = tokens.widest if model.layer_mixers else whole
    again = whole - kept_token_bytes(model, workload, strategy, whole)
    return named(tokens.gradients + again, "working_token_bytes", "bytes")
