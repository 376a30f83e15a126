"""What a key of a ds_config costs in a plan: the estimate of the config as it stands."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from dsforge.api.pricing import estimate
from dsforge.api.results import EstimateResult
from dsforge.errors import DsforgeError
from dsforge.lsp.session import Settings
from dsforge.units import gib

# The terms of the memory estimate that a key or a block decides.
TERMS = {
    "zero_optimization.offload_optimizer": ("optimizer_state",),
    "zero_optimization.offload_param": ("weights",),
    "zero_optimization.stage": ("weights", "gradients", "optimizer_state"),
    "zero_optimization.zero_hpz_partition_size": ("weights",),
    "zero_optimization.contiguous_gradients": ("gradients",),
    "zero_optimization": ("weights", "gradients", "optimizer_state", "buffers"),
    "train_micro_batch_size_per_gpu": ("activations", "logits"),
    "data_types": ("gradients",),
    "optimizer": ("optimizer_state",),
    "bf16": ("weights", "gradients"),
    "fp16": ("weights", "gradients"),
}
BUFFERS = ("bucket_size", "overlap_comm", "live_parameters", "reuse_distance", "sub_group_size")
WHOLE = (  # blocks of which each key decides the same terms
    *("zero_optimization.offload_optimizer", "zero_optimization.offload_param", "optimizer"),
    *("bf16", "fp16", "data_types"),
)
HOST = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")


def memory_text(settings: Settings, path: str, text: str) -> str:
    """One paragraph about the memory that a key decides; empty where no plan is named."""
    terms = terms_of(path)
    if not settings.model or not settings.cluster or not terms:
        return ""
    try:
        result = _estimated(settings, text)
    except DsforgeError as error:
        return f"Memory: no estimate ({error.message})."
    plan, memory = result.plan, result.document.memory
    parts = [f"{name.replace('_', ' ')} {gib(getattr(memory.terms, name))}" for name in terms]
    total = f"{gib(memory.device_bytes.likely)} per GPU"
    where = f"{plan.model.name} on {plan.cluster.gpus} x {plan.cluster.gpu.name}"
    said = f"Memory in this plan ({where}): {', '.join(parts)}, of {total}."
    if path.startswith(HOST):
        said += f" Host RAM: {gib(memory.host_bytes.peak)} per node at its peak."
    return said


def terms_of(path: str) -> tuple[str, ...]:
    """The terms that a key decides; none where it decides no memory."""
    if path.endswith(BUFFERS):
        return ("buffers",)
    inside = (TERMS[block] for block in WHOLE if path.startswith(block + "."))
    return TERMS.get(path) or next(inside, ())


@lru_cache(maxsize=8)
def _estimated(settings: Settings, text: str) -> EstimateResult:
    """The estimate of a config that need not be saved. Raises DsforgeError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ds_config.json")
        path.write_text(text, encoding="utf-8")
        return estimate(settings.model, settings.cluster, settings.workload, ds_config=path)
