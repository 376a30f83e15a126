"""TRL: `trl sft`, its scripts and YAML, and the recipes of alignment-handbook and open-r1."""

from __future__ import annotations

import re

from dsforge.importing.forms import Source
from dsforge.importing.parts.adapters import assume_lora
from dsforge.importing.parts.trainer_keys import Defaults, say_trainer
from dsforge.importing.python_source import Facts
from dsforge.importing.styles.trainer import (
    CLASSES,
    adapters_of,
    say_peft,
    settings_of_call,
)
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

SFT, DPO = "trl trainer/sft_config.py, SFTConfig", "trl trainer/dpo_config.py, DPOConfig"
PEFT = "trl trainer/model_config.py, ModelConfig"
OF_PAIRS = ("beta", "loss_type", "max_prompt_length", "num_generations", "reward_funcs")
DEFAULTS = {
    "sft": Defaults(
        SFT, learning_rate=2e-5, precision="bf16", recompute="full", sequence_length=1024
    ),
    "dpo": Defaults(
        DPO, learning_rate=1e-6, precision="bf16", recompute="full", sequence_length=1024
    ),
}


def read(work: Work, settings: Settings) -> None:
    """Keys of TrainingArguments with TRL's own defaults."""
    pairs = any(name in settings for name in OF_PAIRS)
    say_trainer(work, settings, DEFAULTS["dpo" if pairs else "sft"])
    say_peft(work, settings)
    assume_lora(work.draft, 16, 32, PEFT)


def read_python(work: Work, source: Source) -> bool:
    """A source that makes one of TRL's configs."""
    facts: Facts = source.facts
    made = facts.call(*(name for name in CLASSES if name.endswith("Config")))
    if made is None:
        return False
    pairs = made.name != "SFTConfig"
    settings = settings_of_call(facts, made)
    say_trainer(work, settings, DEFAULTS["dpo" if pairs else "sft"])
    adapters_of(work, facts, Settings({}))
    model = facts.call("from_pretrained", "SFTTrainer", "DPOTrainer", "GRPOTrainer")
    named = (
        (model.values.get("model_name") or model.values.get("0") or model.values.get("model"))
        if model
        else None
    )
    if isinstance(named, Value) and isinstance(named.value, str):
        work.draft.say("model", named.value, named.place)
    return True


STYLE = Style(
    name="trl",
    label="TRL",
    read=read,
    keys=words(
        "dataset_name dataset_config packing use_peft trl loss_type max_prompt_length beta "
        "num_generations reward_funcs dataset_mixer chat_template dataset_text_field "
        "dataset_mixture "
        "attn_implementation model_revision trust_remote_code dataset_configs dataset_train_split "
        "dataset_kwargs"
    ),
    fewest=2,
    programs=re.compile(
        r"^(trl|sft|dpo|grpo|kto|orpo|reward_modeling|rloo|gkd|run_sft|run_dpo|run_orpo|run_cpt|ppo)(\.py)?$|(^|[./])(trl\.scripts|open_r1)\b|alignment"
    ),
    python=read_python,
    takes_files=True,
    evidence=SFT,
)
