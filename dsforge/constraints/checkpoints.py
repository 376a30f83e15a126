"""Constraints of what is done about activations: checkpoints in RAM, MLPs in tiles."""

from __future__ import annotations

from dsforge.constraints.case import Broken, Case, constraint


@constraint(
    "offload-activations-recompute",
    source="DeepSpeed runtime/activation_checkpointing/checkpointing.py: `cpu_checkpointing` moves "
    "the inputs of checkpointed layers",
)
def offload_activations_recompute(case: Case) -> Broken | None:
    """Activation checkpoints in RAM where nothing is checkpointed."""
    if not case.offload_activations or case.recompute in (None, "full"):
        return None
    if case.engine.offloads_saved:
        return None
    return Broken(
        f"offload_activations=true requires recompute=full (got {case.recompute})",
        "use recompute full, or keep activations on the device",
    )


@constraint(
    "tiled-mlp-recompute",
    source="dsforge: priced and tested where layers are checkpointed, as in ALST "
    "(Bekman et al. 2025)",
    ours=False,
)
def tiled_mlp_recompute(case: Case) -> Broken | None:
    """Tiled MLPs in layers that keep their activations."""
    if not case.tiled_mlp or case.recompute in (None, "full"):
        return None
    return Broken(
        f"tiled_mlp=true requires recompute=full (got {case.recompute})",
        "use recompute full, or leave out tiled_mlp",
    )


@constraint(
    "tiled-mlp-model",
    source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py, TiledMLP: weights of one MLP",
)
def tiled_mlp_model(case: Case) -> Broken | None:
    """Tiled MLPs in a model whose layers have experts, or no MLP of their own."""
    shape = case.shape
    if not case.tiled_mlp or shape is None:
        return None
    kind = "experts" if (shape.experts or 1) > 1 else "recurrent layers" if shape.recurrent else ""
    kind = "an encoder with a decoder" if shape.two_halves else kind
    if not kind:
        return None
    return Broken(f"tiled_mlp=true is not available with {kind}", "leave out tiled_mlp")


@constraint("compile-checkpoints", source="dsforge: not tested together")
def compiled_checkpoints(case: Case) -> Broken | None:
    """Compiled layers with checkpoints in RAM or tiled MLPs."""
    words = {"offload_activations": case.offload_activations, "tiled_mlp": case.tiled_mlp}
    asked = [name for name, on in words.items() if on]
    if not case.compiled or not asked:
        return None
    return Broken(
        f"compile=true cannot be combined with {' and '.join(asked)}",
        "use `compile: false`, or leave the other out",
    )
