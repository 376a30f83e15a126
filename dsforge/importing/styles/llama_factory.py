"""LLaMA-Factory: YAML, and the flags of `llamafactory-cli train`."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.parts.adapters import note_base, quantised, say_adapters
from dsforge.importing.parts.megatron_keys import SIZES
from dsforge.importing.parts.trainer_keys import Defaults, say_trainer
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

ARGUMENTS = "llamafactory hparams/finetuning_args.py"
DEFAULTS = Defaults(sequence_length=2048, recompute="full")  # model_utils/checkpointing.py


def read(work: Work, settings: Settings) -> None:
    """Keys of TrainingArguments with those of its own; adapters and checkpointing by default."""
    draft = work.draft
    if "dist_config.name" in settings or (
        "micro_batch_size" in settings and "template" in settings
    ):
        _second(work, settings)
        return
    pure = settings.find("pure_bf16")
    say_trainer(work, settings, DEFAULTS, types=("infer_dtype",))
    if pure is not None and pure.truth:
        draft.say("precision", "bf16", pure.place)
        draft.say("bf16_states", value=True, place=pure.place)
    if not draft.is_said("precision"):
        draft.said.pop("precision", None)
        open_type = Value("auto", ARGUMENTS)
        draft.leave_open(
            "precision", open_type, "the type of the checkpoint: bf16 and fp16 are off"
        )
    for field, key in SIZES:
        draft.whole(field, settings.find(key))
    off = settings.find("disable_gradient_checkpointing")
    if off is not None and off.truth:
        draft.say("recompute", "none", off.place)
    _adapters(draft, settings)


def _adapters(draft: Draft, settings: Settings) -> None:
    kind = settings.find("finetuning_type")
    word = kind.word if kind is not None else "lora"
    if word == "lora":
        say_adapters(draft, settings, kind, default=ARGUMENTS)
        draft.assume("lora_rank", 8, ARGUMENTS)
        if draft.value("lora_rank"):
            draft.assume("lora_alpha", 2.0 * draft.value("lora_rank"), ARGUMENTS)
        return
    draft.say("adapter", "none", kind.place if kind else ARGUMENTS)
    if kind is not None and word not in ("full", "none"):
        draft.lose("finetuning_type", kind, "dsforge knows full training and LoRA")
    note_base(draft, settings)


def _second(work: Work, settings: Settings) -> None:
    """The files of its second version: `dist_config`, `peft_config`, `quant_config`."""
    draft = work.draft
    model = settings.find("model", "model_name_or_path")
    if model is not None and model.text:
        draft.say("model", model.text, model.place)
    kind = settings.find("dist_config.name")
    if kind is not None and kind.word.startswith("fsdp"):
        draft.say("engine", "fsdp", kind.place)
        draft.say("zero_stage", 3, kind.place)
    elif kind is not None and kind.word == "deepspeed":
        from dsforge.importing.parts.engine_config import say_engine_file

        say_engine_file(work, settings.find("dist_config.config_file"))
    offload = settings.find("dist_config.offload_params")
    if offload is not None and offload.truth:
        draft.say("offload_parameters", "cpu", offload.place)
        draft.say("offload_optimizer", "cpu", offload.place)
    draft.whole("micro_batch_size", settings.find("micro_batch_size"))
    draft.whole("global_batch_size", settings.find("global_batch_size"))
    draft.whole("sequence_length", settings.find("cutoff_len"))
    draft.whole("context_parallel_size", settings.find("dist_config.cp_size"))
    draft.whole("expert_parallel_size", settings.find("dist_config.ep_size"))
    draft.number("learning_rate", settings.find("learning_rate"))
    bf16 = settings.find("bf16")
    if bf16 is not None and bf16.truth:
        draft.say("precision", "bf16", bf16.place)
    draft.assume("micro_batch_size", 1, ARGUMENTS)
    if not draft.is_said("global_batch_size"):
        draft.assume("gradient_accumulation_steps", 1, ARGUMENTS)
    draft.assume("precision", "bf16", "llamafactory v1/config/training_args.py")
    peft = settings.find("peft_config.name")
    if peft is not None and peft.word == "lora":
        base = settings.find("quant_config.quantization_bit") or quantised(settings)
        say_adapters(draft, settings.below("peft_config").renamed({"r": "lora_r"}), peft, base=base)
    checkpointing = settings.find("enable_activation_checkpointing", "gradient_checkpointing")
    off = checkpointing is not None and checkpointing.truth is False
    draft.assume("recompute", "none" if off else "full", "llamafactory v1/config/training_args.py")


STYLE = Style(
    name="llama-factory",
    label="LLaMA-Factory",
    read=read,
    keys=words(
        "finetuning_type cutoff_len template dataset_dir lora_target quantization_bit stage "
        "dataset "
        "overwrite_cache preprocessing_num_workers pref_loss infer_backend max_samples "
        "adapter_name_or_path dist_config peft_config init_config"
    ),
    programs=re.compile(
        r"^(llamafactory-cli|lmf)$|llamafactory|train_bash\.py|LLaMA-Factory|^src/train\.py"
    ),
    takes_files=True,
    evidence=ARGUMENTS,
)
