"""Optimizers by the names that programs give them."""

from __future__ import annotations

from dsforge.importing.draft import Draft
from dsforge.importing.values import Value

NAMES = {
    **dict.fromkeys(
        (
            *("adam", "adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "fused_adam"),
            *("adamw_apex_fused", "adamw_anyprecision", "fusedadam", "cpuadam", "deepspeedcpuadam"),
            *("cpu_adam", "distributed_fused_adam", "hybridadam", "hybrid_adam", "adamw_torch_xla"),
            *("torchadamw", "fused_adamw", "megatron_fused_adam", "mcore_distributed_optim"),
            *("adamw_torch_npu_fused", "cpuadamoptimizer", "deepspeed_cpu_adam", "adamwscale"),
        ),
        "adamw",
    ),
    **dict.fromkeys(("lion", "lion_32bit", "fusedlion", "lion_pytorch"), "lion"),
    **dict.fromkeys(("sgd", "momentum"), "sgd"),
    **dict.fromkeys(("adafactor",), "adafactor"),
    **dict.fromkeys(("muon", "dist_muon"), "muon"),
    **dict.fromkeys(
        ("adamw_8bit", "adamw_bnb_8bit", "adam8bit", "adamw8bit", "adam_8bit"), "adamw_8bit"
    ),
    **dict.fromkeys(("paged_adamw_8bit", "pagedadamw8bit"), "paged_adamw_8bit"),
    **dict.fromkeys(
        ("paged_adamw_32bit", "paged_adamw", "pagedadamw", "pagedadamw32bit"), "paged_adamw_32bit"
    ),
}


def say_optimizer(draft: Draft, value: Value | None, *, only_unsaid: bool = False) -> None:
    """The optimizer that a value names; one without a word in the glossary is lost."""
    if value is None or (only_unsaid and draft.is_said("optimizer")):
        return
    if value.is_open or not value.word:
        return
    name = NAMES.get(value.word.rpartition(".")[2].replace("-", "_"))
    if name is None:
        draft.said.pop("optimizer", None)
        draft.lose("optimizer", value, "an optimizer that dsforge has no figures for")
        return
    draft.say("optimizer", name, value.place)
