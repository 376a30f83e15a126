"""axolotl: its YAML."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.parts.adapters import LORA, note_base, quantised, say_adapters
from dsforge.importing.parts.engine_config import say_engine_file
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.parts.precisions import say_switches
from dsforge.importing.parts.sharding import say_fsdp, say_reduction, say_words
from dsforge.importing.parts.trainer_keys import say_recompute, say_spared
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

SCHEMA = "axolotl src/axolotl/utils/schemas/config.py"
LOSSES = {  # the later one wins
    "liger_cross_entropy": "fused_cross_entropy",
    "liger_fused_linear_cross_entropy": "fused",
    "cut_cross_entropy": "fused",
}
LAYER_KERNELS = (("liger_rms_norm",), ("liger_glu_activation", "liger_swiglu"), ("liger_rope",))
NORMAL = "axolotl src/axolotl/utils/config/__init__.py, normalize_config: bf16 where the GPU has it"


def read(work: Work, settings: Settings) -> None:
    """Its keys; `bf16: auto` is bf16 on every GPU that has it."""
    draft = work.draft
    model = settings.find("base_model")
    if model is not None and model.text:
        draft.say("model", model.text, model.place)
    _precision(draft, settings)
    _parallel(work, settings)
    draft.whole("sequence_length", settings.find("sequence_len"))
    micro = settings.find("micro_batch_size")
    draft.whole("micro_batch_size", micro)
    draft.whole("gradient_accumulation_steps", settings.find("gradient_accumulation_steps"))
    batch = settings.find("batch_size")
    whole = batch.whole if batch is not None else None
    if (
        whole
        and micro is not None
        and micro.whole
        and "gradient_accumulation_steps" not in settings
    ):
        # `batch_size // micro_batch_size` steps: the batch of one rank
        steps = whole // micro.whole
        draft.whole("gradient_accumulation_steps", batch._replace(value=steps) if batch else None)
    say_reduction(draft, settings)
    draft.number("learning_rate", settings.find("learning_rate"))
    say_optimizer(draft, settings.find("optimizer"))
    say_recompute(draft, settings.find("gradient_checkpointing"))
    say_spared(draft, settings)
    _liger(draft, settings)
    _adapters(draft, settings)
    for field, value in (
        ("micro_batch_size", 1),
        ("gradient_accumulation_steps", 1),
        ("sequence_length", 512),
        ("recompute", "none"),
    ):
        draft.assume(field, value, SCHEMA)
    if settings.at("optimizer") is None:
        draft.assume("optimizer", "adamw", SCHEMA)


def _liger(draft: Draft, settings: Settings) -> None:
    """Kernels of the plugins of Liger and of cut cross entropy, each with a switch of its own."""
    for key, loss in LOSSES.items():
        value = settings.find(key)
        if value is not None and value.truth:
            draft.say("loss", loss, value.place)
    switches = [settings.find(*names) for names in LAYER_KERNELS]
    if all(value is not None and value.truth for value in switches) and switches[0] is not None:
        draft.say("kernels", "fused", switches[0].place)


def _precision(draft: Draft, settings: Settings) -> None:
    bf16, fp16 = settings.at("bf16", "bfloat16"), settings.at("fp16", "float16")
    full = next((v for v in (bf16, fp16) if v is not None and v.word == "full"), None)
    if full is not None:
        draft.say("precision", "bf16" if full is bf16 else "fp16", full.place)
        settings.find("bf16", "fp16")
        return
    renamed = settings.renamed({"bfloat16": "bf16", "float16": "fp16"})
    automatic = bf16 is not None and bf16.word == "auto"
    settings.find("bf16", "fp16", "bfloat16", "float16", "tf32")
    on = (bf16 is not None and bf16.truth) or (fp16 is not None and fp16.truth)
    if automatic and bf16 is not None and not on:
        draft.say("precision", "bf16", f"{bf16.place} (auto: {NORMAL})")
    elif on:
        say_switches(draft, renamed)
    elif bf16 is None or bf16.value is None:
        if fp16 is None or fp16.truth is None:
            draft.assume("precision", "bf16", NORMAL)
        else:
            draft.assume("precision", "bf16", NORMAL)
    else:
        draft.assume("precision", "fp32", bf16.place)


def _parallel(work: Work, settings: Settings) -> None:
    draft = work.draft
    engine = settings.find("deepspeed")
    if engine is not None and engine.text:
        say_engine_file(work, engine)
    sharded = settings.find("fsdp")
    if (sharded is not None and sharded.value) or settings.has_block("fsdp_config"):
        place = sharded.place if sharded is not None else SCHEMA
        draft.say("engine", "fsdp", place)
        draft.assume("zero_stage", 3, SCHEMA)
        if sharded is not None and sharded.value:
            say_words(draft, sharded)
        if settings.has_block("fsdp_config"):
            say_fsdp(draft, settings.below("fsdp_config"), "fsdp_")
    settings.pass_over("fsdp_version", "fsdp_config")
    draft.whole("tensor_parallel_size", settings.find("tensor_parallel_size"))
    draft.whole(
        "context_parallel_size", settings.find("context_parallel_size", "sequence_parallel_degree")
    )
    draft.whole("expert_parallel_size", settings.find("expert_parallel_size"))
    copies, parts = settings.find("dp_replicate_size"), settings.find("dp_shard_size")
    if parts is not None and parts.whole:
        count = parts.whole * (copies.whole or 1 if copies is not None else 1)
        draft.say("data_parallel_size", count, parts.place)
        if count > parts.whole:
            draft.say("shard_group", parts.whole, parts.place)


def _adapters(draft: Draft, settings: Settings) -> None:
    kind = settings.find("adapter")
    if kind is None or kind.word not in LORA:
        if kind is not None and kind.word:
            draft.lose("adapter", kind, "dsforge knows LoRA and QLoRA")
        if settings.find("lora_model_dir") is None:
            draft.assume("adapter", "none", SCHEMA)
            note_base(draft, settings)
        return
    base: Value | None = kind if kind.word == "qlora" else quantised(settings, "gptq")
    say_adapters(draft, settings, kind, base=base)


STYLE = Style(
    name="axolotl",
    label="axolotl",
    read=read,
    keys=words(
        "base_model micro_batch_size datasets adapter sequence_len sample_packing num_epochs "
        "val_set_size load_in_8bit load_in_4bit dataset_prepared_path strict_mode special_tokens "
        "base_model_config lora_target_linear train_on_inputs wandb_entity"
    ),
    fewest=3,
    programs=re.compile(r"axolotl"),
    takes_files=True,
    evidence=SCHEMA,
)
