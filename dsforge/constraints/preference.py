"""Constraints of preference training: which losses, references and parallelism it has."""

from __future__ import annotations

from dsforge.constraints.case import Broken, Case, constraint

TRAINED = ("dpo",)
TRAINED_REFERENCES = ("adapters_off", "precomputed")


@constraint("preference-training", source="dsforge: train/run/preference_step.py")
def preference_training(case: Case) -> Broken | None:
    """A loss on pairs of sequences, or a reference, that the scripts of dsforge have not."""
    if case.preference is None or case.by_others:
        return None
    if case.preference not in TRAINED:
        return Broken(
            f"preference={case.preference} is not available in `dsforge train`",
            f"use {', '.join(TRAINED)}, or --software others to price it",
        )
    if case.reference is None or case.reference in TRAINED_REFERENCES:
        return None
    return Broken(
        f"reference={case.reference} is not available in `dsforge train`, which holds one model",
        "use `reference: precomputed`, or with LoRA adapters_off; or --software others to price it",
    )


@constraint(
    "preference-engine",
    source="TRL's trainers run transformers models under ZeRO; Megatron-LM `pretrain_gpt.py` and "
    "DeepSpeed's pipeline have no loss on pairs",
)
def preference_engine(case: Case) -> Broken | None:
    """A loss on pairs of sequences under an engine that has none."""
    if case.preference is None:
        return None
    if case.on_megatron or case.pipeline_parallel_size > 1:
        what = "Megatron-LM" if case.on_megatron else "pipeline parallelism"
        return Broken(
            f"preference={case.preference} cannot be combined with {what}",
            "use ZeRO, or leave preference out",
        )
    return None


@constraint("preference-mode", source="dsforge: a rank needs the logits of whole sequences")
def preference_mode(case: Case) -> Broken | None:
    """A loss on pairs of sequences where ranks share a replica, in the scripts of dsforge."""
    if case.preference is None or case.by_others or case.on_megatron or case.model_ranks == 1:
        return None
    return Broken(
        f"preference={case.preference} cannot be combined with tensor, pipeline or sequence "
        f"parallelism ({case.model_ranks} ranks a replica)",
        "use data parallelism with ZeRO or FSDP",
    )


@constraint("preference-packing", source="dsforge: each sequence of a pair has a row of its own")
def preference_packing(case: Case) -> Broken | None:
    """A loss on pairs of sequences that share rows with others."""
    if case.preference is None or not case.packing:
        return None
    return Broken(
        f"packing=true cannot be combined with preference={case.preference}, whose sequences are "
        "compared one by one",
        "set `packing: false`",
    )
