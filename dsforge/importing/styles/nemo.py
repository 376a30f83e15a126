"""NeMo and Megatron-Bridge: YAML of Hydra, overrides in scripts, and recipes in Python."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.forms import Source
from dsforge.importing.parts.megatron_keys import OVERLAPS_TENSOR, SIZES, say_switch, say_types
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.python_source import Facts
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

CONFIG = "NeMo examples/nlp/language_modeling/conf/megatron_gpt_config.yaml"
BRIDGE = "Megatron-Bridge src/megatron/bridge/training/config.py"
_DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim")
_OF_PROVIDER = (  # attributes of a model provider, whatever the script calls it
    *(key for _, key in SIZES),
    *("virtual_pipeline_model_parallel_size", "seq_length", "sequence_parallel"),
    "recompute_granularity",
)
_BLOCKS = {
    "TrainingConfig": "train",
    "OptimizerConfig": "optimizer",
    "MegatronStrategy": "model",
    "GPTDatasetConfig": "dataset",
    "FinetuningDatasetConfig": "dataset",
    "DistributedDataParallelConfig": "ddp",
    "LoRA": "peft",
}


def read(work: Work, settings: Settings) -> None:
    """Blocks `trainer`, `model` and `train`."""
    draft = work.draft
    draft.say("engine", "megatron", CONFIG)
    draft.whole("nodes", settings.find("trainer.num_nodes", "num_nodes"))
    devices = settings.find("trainer.devices", "trainer.gpus")
    if devices is not None and devices.whole != -1:
        draft.whole("gpus_per_node", devices)
    _sizes(draft, settings)
    precision = settings.find("trainer.precision", "model.precision", "mixed_precision")
    if precision is not None and not precision.is_open and str(precision.value) not in ("", "None"):
        word = precision.word.replace("_mixed", "").replace("-mixed", "")
        say_precision(draft, precision._replace(value=word or precision.value))
    say_types(draft, settings.below("model"))
    recipe = settings.find("recipe", "recipe_name")
    if recipe is not None and "fp8" in recipe.word and not draft.is_said("precision"):
        draft.say("precision", "fp8", f"{recipe.place} (by the name of the recipe)", "named")
    if recipe is not None:
        draft.assume("zero_stage", 1, BRIDGE)
        mode = settings.find("mode", "peft_scheme")
        peft = "peft" in recipe.word or (mode is not None and mode.word == "lora")
        if peft:
            draft.say("adapter", "lora", (mode or recipe).place, "named")
    name = settings.find("model.optim.name", "optimizer.optimizer", "optim.name")
    say_optimizer(draft, name)
    draft.number("learning_rate", settings.find("model.optim.lr", "optimizer.lr", "optim.lr"))
    _sharding(draft, settings, name)
    _recompute(draft, settings)
    _adapters(draft, settings)
    for field, value in (
        ("recompute", "none"),
        ("zero_stage", 0),
        ("adapter", "none"),
        ("optimizer", "adamw"),
        ("precision", "bf16"),
    ):
        draft.assume(field, value, CONFIG)


def _sizes(draft: Draft, settings: Settings) -> None:
    for field, key in SIZES:
        draft.whole(field, settings.find(f"model.{key}", key, f"trainer.strategy.{key}"))
    draft.whole("virtual_stages", settings.find("model.virtual_pipeline_model_parallel_size"))
    draft.whole(
        "micro_batch_size",
        settings.find(
            "model.micro_batch_size",
            "train.micro_batch_size",
            "data.micro_batch_size",
            "micro_batch_size",
            "model.data.train_ds.micro_batch_size",
        ),
    )
    draft.whole(
        "global_batch_size",
        settings.find(
            "model.global_batch_size",
            "train.global_batch_size",
            "data.global_batch_size",
            "global_batch_size",
            "model.data.train_ds.global_batch_size",
        ),
    )
    draft.whole(
        "sequence_length",
        settings.find(
            "model.encoder_seq_length",
            "model.seq_length",
            "dataset.seq_length",
            "dataset.sequence_length",
            "data.seq_length",
            "model.data.train_ds.max_seq_length",
            "seq_length",
        ),
    )
    say_switch(draft, settings, "sequence_parallel", "model.sequence_parallel", "sequence_parallel")
    overlaps = (*(f"model.{name}" for name in OVERLAPS_TENSOR), *OVERLAPS_TENSOR)
    say_switch(draft, settings, "overlaps_tensor", *overlaps)


def _sharding(draft: Draft, settings: Settings, name: Value | None) -> None:
    fsdp = settings.find("model.fsdp")
    if fsdp is not None and fsdp.truth:
        draft.say("engine", "fsdp", fsdp.place)
        strategy = settings.find("model.fsdp_sharding_strategy")
        stage = {"full": 3, "grad": 2, "hybrid": 3}.get(strategy.word, 3) if strategy else 3
        draft.say("zero_stage", stage, (strategy or fsdp).place)
        return
    shared = settings.find(
        "optimizer.use_distributed_optimizer",
        "ddp.use_distributed_optimizer",
        "model.use_distributed_optimizer",
    )
    if shared is not None and shared.truth is not None:
        draft.say("zero_stage", int(shared.truth), shared.place)
    elif name is not None and name.word in _DISTRIBUTED:
        draft.say("zero_stage", 1, name.place)
    offload = settings.find("optimizer.optimizer_cpu_offload", "model.optim.optimizer_cpu_offload")
    if offload is not None and offload.truth:
        draft.say("offload_optimizer", "cpu", offload.place)


def _recompute(draft: Draft, settings: Settings) -> None:
    value = settings.find("model.activations_checkpoint_granularity", "model.recompute_granularity")
    if value is not None and value.word in ("full", "selective"):
        draft.say("recompute", value.word, value.place)
    elif (
        (method := settings.find("model.activations_checkpoint_method")) is not None
        and value is None
        and method.word in ("uniform", "block")
    ):
        draft.say("recompute", "full", method.place)


def _adapters(draft: Draft, settings: Settings) -> None:
    scheme = settings.find("model.peft.peft_scheme", "peft.peft_scheme", "peft", "model.peft")
    if scheme is not None and scheme.word in ("lora", "qlora", "dora"):
        draft.say("adapter", "qlora" if scheme.word == "qlora" else "lora", scheme.place)
        draft.whole("lora_rank", settings.find("model.peft.lora_tuning.adapter_dim", "peft.dim"))
        draft.number("lora_alpha", settings.find("model.peft.lora_tuning.alpha", "peft.alpha"))
    elif scheme is not None and scheme.word not in ("", "none", "null"):
        draft.lose("peft_scheme", scheme, "dsforge knows LoRA and QLoRA")


def say_strategy_class(draft: Draft, settings: Settings, place: str) -> None:
    """`MegatronStrategy(tensor_model_parallel_size=...)`."""
    draft.say("engine", "megatron", place)
    for field, key in SIZES:
        draft.whole(field, settings.find(key))
    say_switch(draft, settings, "sequence_parallel", "sequence_parallel")
    draft.assume("zero_stage", 1, "NeMo nemo/lightning/pytorch/strategies: MegatronStrategy")


def read_python(work: Work, source: Source) -> bool:
    """Recipes: assignments to a config, and the calls that make its parts."""
    facts = source.facts
    settings = Settings({**_of_calls(facts, source), **_of_assignments(facts)})
    known = {f"model.{key}" for _, key in SIZES} | {
        "train.global_batch_size",
        "train.micro_batch_size",
    }
    if len(known & settings.keys) < 2:  # noqa: PLR2004 - one alone is chance
        return False
    loaded = facts.call("from_hf_pretrained")
    model = loaded.values.get("0") if loaded is not None else None
    if model is not None and model.text:
        work.draft.say("model", model.text, model.place)
    read(work, settings)
    work.draft.assume("zero_stage", 1, BRIDGE)
    return True


def _of_calls(facts: Facts, source: Source) -> dict[str, Value]:
    """Arguments of the classes that a config is made of, under the block of each."""
    values: dict[str, Value] = {}
    for call in facts.calls:
        block = _BLOCKS.get(call.name)
        if block:
            values |= {f"{block}.{key}": value for key, value in call.values.items()}
        rate = call.values.get("max_lr")
        if rate is not None and "adam" in call.name:
            values["optimizer.lr"] = rate
        if call.name == "LoRA" and "megatron" in source.text:
            values["peft"] = Value("lora", source.place(call.line))
        if call.name == "Trainer" and "num_nodes" in call.values:
            values |= {
                f"trainer.{k}": v for k, v in call.values.items() if k in ("devices", "num_nodes")
            }
    return values


def _of_assignments(facts: Facts) -> dict[str, Value]:
    """Attributes of a config, or of a model's provider."""
    values: dict[str, Value] = {}
    for name, value in facts.assigned.items():
        head, _, rest = name.partition(".")
        if rest and head in ("cfg", "config", "recipe", "conf", "pretrain", "finetune", "self"):
            rest = rest.removeprefix("trainer.strategy.") if "parallel" in rest else rest
            rest = rest.removeprefix("config.")
            values[rest if "." in rest else f"model.{rest}"] = value
        elif rest in _OF_PROVIDER:
            values[f"model.{rest}"] = value
    return values


STYLE = Style(
    name="nemo",
    label="NeMo, Megatron-Bridge",
    read=read,
    keys=words("trainer exp_manager model train ddp checkpoint dist peft"),
    fewest=2,
    python=read_python,
    programs=re.compile(
        r"megatron_\w+(pretraining|finetuning|tuning)\.py$|pretrain_\w+\.py$|megatron\.bridge|run_recipe\.py"
    ),
    takes_files=True,
    evidence=CONFIG,
)
