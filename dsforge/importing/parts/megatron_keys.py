"""The arguments of Megatron-LM, which its forks and wrappers take as they are."""

from __future__ import annotations

from dsforge.importing.draft import Draft
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.values import Settings, Value

ARGUMENTS = "Megatron-LM megatron/training/arguments.py"
SIZES = (
    ("tensor_parallel_size", "tensor_model_parallel_size"),
    ("pipeline_parallel_size", "pipeline_model_parallel_size"),
    ("context_parallel_size", "context_parallel_size"),
    ("expert_parallel_size", "expert_model_parallel_size"),
)
OVERLAPS_TENSOR = ("tp_comm_overlap", "ub_tp_comm_overlap")  # of Megatron-LM, of NeMo
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def say_megatron(draft: Draft, settings: Settings) -> None:
    """Sizes, batch, precision, recomputation and what is sharded."""
    for field, key in SIZES:
        draft.whole(field, settings.find(key))
    old = settings.find("model_parallel_size")
    if old is not None and not draft.is_said("tensor_parallel_size"):
        draft.whole("tensor_parallel_size", old)
    draft.whole("micro_batch_size", settings.find("micro_batch_size", "batch_size"))
    draft.whole("global_batch_size", settings.find("global_batch_size"))
    length = settings.find("seq_length", "encoder_seq_length", "max_length")
    draft.whole("sequence_length", length)
    draft.number("learning_rate", settings.find("lr", "learning_rate"))
    say_optimizer(draft, settings.find("optimizer"))
    say_switch(draft, settings, "sequence_parallel", "sequence_parallel")
    say_switch(draft, settings, "overlaps_tensor", *OVERLAPS_TENSOR)
    say_types(draft, settings)
    say_granularity(draft, settings)
    say_chunks(draft, settings)
    model = settings.find("load", "pretrained_checkpoint", "model")
    if model is not None and model.text and settings.at("model") is model:
        draft.say("model", model.text, model.place)


def say_switch(draft: Draft, settings: Settings, field: str, *names: str) -> None:
    """What a switch says, true or false, under the first of some names."""
    value = settings.find(*names)
    if value is not None and value.truth is not None:
        draft.say(field, value.truth, value.place)


def say_types(draft: Draft, settings: Settings) -> None:
    """fp8 recipes run over bf16 or fp16; without any switch Megatron trains in fp32."""
    fp8 = settings.find("fp8_format", "fp8_hybrid", "fp8_e4m3", "fp8_recipe", "fp8")
    switch = settings.at("fp8")
    if switch is not None and switch.truth is False:
        fp8 = None
    half = [(kind, settings.find(kind)) for kind in ("bf16", "fp16")]
    if (fp8 is not None and fp8.word not in ("none", "false", "")) or (fp8 and fp8.truth):
        draft.say("precision", "fp8", fp8.place if fp8 else "")
        return
    for kind, value in half:
        if value is not None and value.truth:
            draft.say("precision", kind, value.place)
            return


def say_granularity(draft: Draft, settings: Settings) -> None:
    """`--recompute-granularity`, and the spellings before it."""
    value = settings.find("recompute_granularity") or settings.at("recompute_granularity")
    if value is not None and value.is_open:
        draft.leave_open("recompute", value)
    elif value is not None and value.word in ("full", "selective", "none"):
        draft.say("recompute", value.word, value.place)
    for name, kind in (
        ("recompute_activations", "selective"),
        ("checkpoint_activations", "full"),
        ("deepspeed_activation_checkpointing", "full"),
        ("activations_checkpoint_method", "full"),
    ):
        switch = settings.find(name)
        known = switch is not None and (switch.truth or switch.word in ("uniform", "block"))
        if known and switch is not None and not draft.is_said("recompute"):
            draft.say("recompute", kind, switch.place)
    settings.pass_over("recompute_method", "recompute_num_layers", "checkpoint_num_layers")


def say_chunks(draft: Draft, settings: Settings) -> None:
    """Chunks of a pipeline rank: given, or by the layers of each."""
    chunks_of = ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size")
    draft.whole("virtual_stages", settings.find(*chunks_of))
    each = settings.find("num_layers_per_virtual_pipeline_stage")
    layers, stages = settings.find("num_layers"), draft.value("pipeline_parallel_size") or 1
    if each is None or layers is None or not each.whole or not layers.whole:
        return
    chunks, rest = divmod(layers.whole, each.whole * stages)
    if chunks and not rest:
        draft.say("virtual_stages", chunks, each.place)


def say_sharding(draft: Draft, settings: Settings) -> None:
    """A distributed optimizer is stage 1; Megatron-FSDP and torch's FSDP shard more."""
    fsdp = settings.find("use_megatron_fsdp", "use_custom_fsdp")
    torch_fsdp = settings.find("use_torch_fsdp2")
    strategy = settings.find("data_parallel_sharding_strategy")
    if fsdp is not None and fsdp.truth:
        draft.say("engine", "megatron-fsdp", fsdp.place)
        stage = STRATEGIES.get(strategy.word, 0) if strategy is not None else 0
        draft.say("zero_stage", stage, (strategy or fsdp).place)
    elif torch_fsdp is not None and torch_fsdp.truth:
        draft.say("zero_stage", 3, torch_fsdp.place)
    else:
        shared = settings.find("use_distributed_optimizer")
        if shared is not None and shared.is_open:
            draft.leave_open("zero_stage", shared)
        elif shared is not None and shared.truth:
            draft.say("zero_stage", 1, shared.place)
        elif shared is not None and shared.truth is False:
            draft.say("zero_stage", 0, shared.place)
    offload: Value | None = settings.find("optimizer_cpu_offload")
    if offload is not None and offload.truth:
        draft.say("offload_optimizer", "cpu", offload.place)
