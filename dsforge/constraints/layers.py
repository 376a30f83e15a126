"""Constraints of layers: state-space, linear attention, short convolutions, indexed attention.

A recurrent layer passes a state from token to token. Nothing that shares heads or cuts sequences
around attention shares that state.
"""

from __future__ import annotations

from dsforge.constraints.case import Broken, Case, constraint

RECURRENT_TYPES = ("linear_attention", "mamba", "conv", "hybrid", "recurrent")  # `layer_types`

INDEXED_TYPE = "indexed_attention"


@constraint(
    "recurrent-parallel",
    source="dsforge: no engine here shares the state of a recurrence (DeepSpeed "
    "module_inject/auto_tp.py shares attention and MLP, ulysses_sp.py attention heads), and "
    "pipeline stages of layers that differ are not priced",
    ours=False,
)
def recurrent_parallel(case: Case) -> Broken | None:
    """Recurrent layers with tensor, pipeline or context parallelism."""
    if case.shape is None or not case.shape.recurrent:
        return None
    if case.on_megatron and not case.by_others:
        return None  # `pretrain_gpt.py` cannot build such layers in any layout (megatron-model)
    sizes = {
        "tensor": case.tensor_parallel_size,
        "pipeline": case.pipeline_parallel_size,
        "context": case.context_parallel_size,
    }
    split = [f"{name} parallelism ({size})" for name, size in sizes.items() if size > 1]
    if not split:
        return None
    return Broken(
        f"{' and '.join(split)} cannot be combined with the recurrent layers of {case.shape.name}",
        "use data parallelism with ZeRO",
    )


@constraint(
    "recurrent-packing",
    source="transformers 5.23, recurrent layers: states pass from one packed sample to the next "
    "without `seq_idx`, which position ids do not give",
)
def recurrent_packing(case: Case) -> Broken | None:
    """Packed samples with recurrent layers."""
    if case.shape is None or not case.shape.recurrent or not case.packing:
        return None
    return Broken(
        f"packing=true cannot be combined with the recurrent layers of {case.shape.name}: their "
        "state would pass from one packed sample to the next",
        "set `packing: false`",
    )


@constraint(
    "indexed-attention",
    source="transformers 5.23 models/deepseek_v32/modeling_deepseek_v32.py: the indexer runs under "
    "`torch.no_grad`, and its choice masks the scores of all pairs; Megatron-LM arguments here "
    "write no indexer",
    ours=True,
)
def indexed_attention(case: Case) -> Broken | None:
    """Sparse attention whose tokens an indexer chooses (DeepSeek-V3.2, GLM-5)."""
    if case.shape is None or not case.shape.indexed:
        return None
    return Broken(
        f"{case.shape.name} attends to tokens that an indexer chooses: transformers does not train "
        "the indexer and computes the scores of all tokens",
        "plan for your own scripts and kernels with --software others, or train DeepSeek-V3",
    )
