"""transformers' Trainer: flags in scripts, YAML, JSON, and calls in Python sources."""

from __future__ import annotations

from dsforge.importing.forms import Source
from dsforge.importing.parts.adapters import (
    assume_lora,
    note_base,
    quantised,
    say_adapters,
)
from dsforge.importing.parts.trainer_keys import SOURCE, Defaults, assume, say_trainer
from dsforge.importing.python_source import Call, Facts
from dsforge.importing.values import Settings, Unknown, Value
from dsforge.importing.work import Style, Work, words

PEFT = "peft tuners/lora/config.py, LoraConfig"
_ON = (
    "use_peft",
    "use_lora",
    "lora",
    "lora_enable",
    "with_lora",
    "qlora",
    "use_qlora",
    "peft",
    "lora_training",
)
_METHOD = (
    "train_mode",
    "finetuning_type",
    "train_method",
    "peft_type",
    "adapter_type",
    "adapter_name",
    "tuning_type",
    "peft_method",
    "tuner_type",
    "train_type",
    "method",
)
CLASSES = (
    *("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig"),
    *("RewardConfig", "KTOConfig", "ORPOConfig", "PPOConfig", "CPOConfig", "RLOOConfig"),
    *("UnslothTrainingArguments", "SentenceTransformerTrainingArguments", "GKDConfig"),
)
BY_BATCH_SIZE = ("batch_size",)


def read(work: Work, settings: Settings) -> None:
    """Arguments of a script that HfArgumentParser reads, or a file of them."""
    _alpaca(work, settings)
    say_trainer(work, settings)
    say_peft(work, settings)


def say_peft(work: Work, settings: Settings) -> None:
    """Adapters by any of the switches that scripts have."""
    draft = work.draft
    for name in _ON:
        value = settings.find(name)
        if value is not None and value.truth:
            say_adapters(draft, settings, value)
            return
        if value is not None and value.truth is False:
            draft.assume("adapter", "none", value.place)
            note_base(draft, settings)
            return
    for name in _METHOD:
        value = settings.find(name)
        if value is not None and value.word in ("lora", "qlora", "adalora", "dora"):
            base = value if value.word == "qlora" else None
            say_adapters(draft, settings, value, base=base)
            return
        if value is not None and value.word in ("full", "none"):
            draft.say("adapter", "none", value.place)
            return
    rank = settings.at(
        "lora_r", "lora_rank", "lora_dim", "lora_alpha", "lora_target_modules", "lora_target"
    )
    if rank is not None and rank.whole != 0:
        say_adapters(draft, settings, rank)
    else:
        note_base(draft, settings)


def _alpaca(work: Work, settings: Settings) -> None:
    """alpaca-lora's scripts name the batch of all steps and the micro batch."""
    batch, micro = settings.at("batch_size"), settings.at("micro_batch_size")
    if batch is None or micro is None or "per_device_train_batch_size" in settings:
        return
    settings.find("batch_size", "micro_batch_size")
    work.draft.whole("micro_batch_size", micro)
    if batch.whole and micro.whole and batch.whole >= micro.whole:
        work.draft.whole("global_batch_size", batch)


def read_python(work: Work, source: Source) -> bool:
    """The calls that make TrainingArguments, LoraConfig and BitsAndBytesConfig."""
    facts = source.facts
    made = facts.call(*CLASSES)
    if made is None:
        return False
    settings = settings_of_call(facts, made)
    say_trainer(work, settings)
    adapters_of(work, facts, Settings({}))
    model = facts.call("from_pretrained")
    named = (
        model.values.get("0") or model.values.get("pretrained_model_name_or_path")
        if model
        else None
    )
    if named is not None and isinstance(named.value, str):
        work.draft.say("model", named.value, named.place)
    for key, value in settings.unread():
        if not key.isdigit():
            work.draft.lose(key, value)
    return True


def settings_of_call(facts: Facts, call: Call) -> Settings:
    """The keywords of a call, with the defaults of arguments that they name."""
    values: dict[str, Value] = {}
    for key, given in call.values.items():
        named = given.value.text.rpartition(".")[2] if isinstance(given.value, Unknown) else ""
        value = facts.arguments.get(named, given)
        if isinstance(value.value, dict):
            for name, one in value.value.items():
                values[f"{key}.{name}"] = Value(one, value.place)
        else:
            values[key] = value
    return Settings(values)


def adapters_of(work: Work, facts: Facts, settings: Settings) -> None:
    """LoRA by its config class, over a base that a second class quantises."""
    lora = facts.call("LoraConfig")
    lora = lora or next((c for c in facts.calls if c.name == "get_peft_model" and c.owner), None)
    quant = facts.call("BitsAndBytesConfig")
    loads = [c for c in facts.calls if c.name == "from_pretrained"]
    flags: dict[str, Value] = {}
    for call in (*([quant] if quant else []), *loads):
        for key in ("load_in_4bit", "load_in_8bit", "quantization_config"):
            value = call.values.get(key)
            if value is not None and (value.truth or isinstance(value.value, Call)):
                flags.setdefault(key if key != "quantization_config" else "", value)
    flags.pop("", None)
    base = quantised(Settings(flags))
    if lora is None:
        return
    inner = settings_of_call(facts, lora)
    on = Value(value=True, place=f"{next(iter(lora.values.values())).place}" if lora.values else "")
    say_adapters(work.draft, inner.renamed({"r": "lora_r"}).joined(settings), on, base=base)
    assume_lora(work.draft, 8, 8, PEFT)


STYLE = Style(
    name="transformers",
    label="transformers Trainer",
    read=read,
    keys=words(
        "per_device_train_batch_size output_dir num_train_epochs gradient_accumulation_steps "
        "save_strategy lr_scheduler_type logging_steps save_steps save_total_limit fp16 bf16 "
        "warmup_ratio report_to per_gpu_train_batch_size gradient_checkpointing"
    ),
    python=read_python,
    takes_files=True,
    evidence=SOURCE,
)
__all__ = ["STYLE", "Defaults", "assume", "read", "read_python"]
