"""What backward computes again: layers (activation checkpointing) and the tiles of their MLPs.

The input of a checkpointed layer may wait in host memory (`offload_activations`), through torch's
own `save_on_cpu`. A tiled MLP takes a stretch of the sequence at a time, each in a checkpoint of
its own, as in ALST (Bekman et al. 2025): its wide vectors exist for one stretch. It is torch's
checkpoint and not DeepSpeed's `TiledMLP`, whose backward adds to a weight's gradient once a
stretch: of engines, only DeepSpeed's hooks are told of that (`ds_grad_is_ready`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsforge.constraints import Case
from dsforge.constraints.checkpoints import (
    compiled_checkpoints,
    offload_activations_recompute,
    tiled_mlp_recompute,
)
from dsforge.errors import DsforgeError, Problem
from dsforge.job import TrainJob

MLPS = ("mlp", "feed_forward")  # of the decoder layers of transformers


def checkpointing_problems(job: TrainJob) -> list[Problem]:
    """Why a job cannot checkpoint as it asks; empty where it can."""
    case = Case(
        recompute="full" if job.gradient_checkpointing else "none",
        offload_activations=job.offload_activations,
        tiled_mlp=job.tiled_mlp,
        compiled=job.compile,
    )
    rules = (offload_activations_recompute, tiled_mlp_recompute, compiled_checkpoints)
    return [problem for rule in rules if (problem := rule(case)) is not None]


def checkpoint_layers(model: Any, *, packed_shards: bool, in_ram: bool = False) -> None:
    """Have a model compute its layers again in backward, from inputs on the device or in RAM.

    Where ZeRO stage 3 shards packed matrices the first forward must build no graph: bitsandbytes
    keeps each gathered matrix in it (`autograd/_functions.py`, `MatMul4Bit`, `ctx.tensors`), where
    the hooks of non-reentrant checkpoints do not see it, and all of them stay gathered.
    """
    model.gradient_checkpointing_enable({"use_reentrant": packed_shards})
    if packed_shards:
        model.enable_input_require_grads()
    if not in_ram:
        return
    for module in model.modules():
        checkpoint = getattr(module, "_gradient_checkpointing_func", None)
        if checkpoint is not None:
            module._gradient_checkpointing_func = _with_inputs_in_ram(checkpoint)  # noqa: SLF001


def _with_inputs_in_ram(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    """A checkpoint whose inputs wait in host memory, pinned where there is a device."""
    from torch import cuda
    from torch.autograd.graph import save_on_cpu

    def run(layer: Callable[..., Any], *inputs: Any) -> Any:
        with save_on_cpu(pin_memory=cuda.is_available()):
            return checkpoint(layer, *inputs)

    return run


def tile_mlps(model: Any, *, shards: bool = False) -> None:
    """Have the MLP of each decoder layer take as many tokens at a time as the hidden size.

    Where ZeRO stage 3 `shards` parameters, each MLP is gathered as a whole: ranks whose batches are
    of different lengths have different numbers of tiles, and would wait for each other's gathers.
    Raises DsforgeError for a model whose layers have no MLP that is a module of its own.
    """
    from dsforge.train.engines.plain_torch.placement import decoder_layers

    layers, length = decoder_layers(model), model.config.get_text_config().hidden_size
    named = [getattr(layer, name, None) for layer in layers for name in MLPS]
    mlps = [mlp for mlp in named if mlp is not None and not hasattr(mlp, "experts")]
    if not mlps or len(mlps) < len(layers):
        message = f"`tiled_mlp` cannot be applied to {type(model).__name__}"
        hint = "set `tiled_mlp: false`"
        raise DsforgeError(f"{message}: not each of its layers has a dense module `mlp`", hint)
    for mlp in mlps:
        mlp.forward = _tiled(mlp.forward, length)
        if shards:
            from deepspeed.utils import set_z3_leaf_module

            set_z3_leaf_module(mlp, True)


def _tiled(forward: Callable[[Any], Any], length: int) -> Callable[[Any], Any]:
    """A module's forward over stretches of at most so many tokens: (..., tokens, hidden)."""
    import torch
    from torch.utils.checkpoint import checkpoint

    def run(hidden: Any) -> Any:
        if hidden.shape[-2] <= length or not torch.is_grad_enabled():
            return forward(hidden)
        parts = hidden.split(length, dim=-2)
        return torch.cat([checkpoint(forward, part, use_reentrant=False) for part in parts], dim=-2)

    return run
