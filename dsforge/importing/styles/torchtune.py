"""torchtune: YAML of a recipe; the recipe itself stands in the command, or in a comment."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.forms import Source
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.parts.trainer_keys import say_recompute
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

RECIPES = "torchtune recipes"
COMMAND = re.compile(r"^#[# \t]*tune run[ \t]+(.*)$", re.MULTILINE)
_BUILDER = re.compile(  # torchtune models/*/_model_builders.py; `_base` is a plain name elsewhere
    r"(?:q?[ld]ora_)?(llama3_[1-3]|qwen2_5|[a-z]+\d*)_(\d+(?:_\d+)?b|mini)((?:_instruct)?)(?:_base)?"
)
_COUNT = re.compile(r"--(nnodes|nproc[_-]per[_-]node)[= ](\d{1,5})")


def read(work: Work, settings: Settings) -> None:
    """Keys of all recipes."""
    draft = work.draft
    draft.say("engine", "torchtune", RECIPES)
    component = settings.find("model._component_", "models.base")
    if component is not None and component.text:
        draft.say("model", _model_of(component.text.rpartition(".")[2]), component.place)
    draft.whole("micro_batch_size", settings.find("batch_size"))
    draft.whole("gradient_accumulation_steps", settings.find("gradient_accumulation_steps"))
    draft.whole("sequence_length", settings.find("tokenizer.max_seq_len", "dataset.max_seq_len"))
    kind = settings.find("dtype")
    say_precision(draft, kind)
    say_recompute(draft, settings.find("enable_activation_checkpointing"))
    say_optimizer(draft, settings.find("optimizer._component_", "optimizer"))
    draft.number("learning_rate", settings.find("optimizer.lr"))
    draft.whole("tensor_parallel_size", settings.find("tensor_parallel_dim"))
    draft.whole("context_parallel_size", settings.find("context_parallel_dim"))
    offload = settings.find("fsdp_cpu_offload", "fsdp.cpu_offload")
    if offload is not None and offload.truth:
        draft.say("offload_optimizer", "cpu", offload.place)
        draft.say("offload_parameters", "cpu", offload.place)
    _adapters(draft, settings, component)
    mesh = settings.at("tensor_parallel_dim", "data_parallel_shard_dim", "context_parallel_dim")
    if mesh is not None:
        draft.assume(
            "zero_stage", 3, f"{RECIPES}/full_finetune_distributed.py, tensor_parallel_dim"
        )
    for field, value in (
        ("gradient_accumulation_steps", 1),
        ("precision", "bf16"),
        ("recompute", "none"),
    ):
        draft.assume(field, value, RECIPES)


def _model_of(builder: str) -> str:
    """The model that a builder makes, as others write it: `lora_llama3_1_8b` is llama3.1-8b."""
    match = _BUILDER.fullmatch(builder)
    if match is None:
        return builder
    family, size, kind = match.groups()
    return f"{family.replace('_', '.')}-{size.replace('_', '.')}{kind.replace('_', '-')}"


def _adapters(draft: Draft, settings: Settings, component: Value | None) -> None:
    name = component.text.rpartition(".")[2].lower() if component is not None else ""
    quantises = settings.find("model.quantize_base")
    if "lora" in name or "dora" in name:
        four = "qlora" in name or "qdora" in name or (quantises is not None and quantises.truth)
        draft.say("adapter", "qlora" if four else "lora", component.place if component else "")
        draft.whole("lora_rank", settings.find("model.lora_rank"))
        draft.number("lora_alpha", settings.find("model.lora_alpha"))
        draft.assume("lora_rank", 8, "torchtune models: lora_rank")
        draft.assume("lora_alpha", 16.0, "torchtune models: lora_alpha")
    else:
        draft.assume("adapter", "none", RECIPES)


def say_recipe(draft: Draft, text: str, place: str) -> None:
    """Ranks and sharding by the recipe and the flags of `tune run`."""
    for name, count in _COUNT.findall(text):
        field = "nodes" if name == "nnodes" else "gpus_per_node"
        if not draft.is_said(field):
            draft.say(field, int(count), place, "named")
    if "distributed" in text or "fsdp" in text:
        draft.say("zero_stage", 3, place, "named")
        draft.assume("nodes", 1, "torch/distributed/run.py, get_args_parser")
    elif "single_device" in text:
        draft.say("zero_stage", 0, place, "named")
        draft.say("gpus_per_node", 1, place, "named")
        draft.say("nodes", 1, place, "named")


def say_comment(work: Work, source: Source) -> None:
    """The command that the head of a config names, where no script gives it; else its name."""
    if work.draft.is_said("zero_stage"):
        return
    match = COMMAND.search(source.text)
    if match is not None:
        rest = source.text[match.start() : match.start() + 300].replace("\\\n#", " ")
        line = source.text.count("\n", 0, match.start()) + 1
        say_recipe(work.draft, rest.partition("--config")[0], f"{source.place(line)} (a comment)")
    else:
        say_recipe(work.draft, source.base, f"{source.name} (by its name)")


STYLE = Style(
    name="torchtune",
    label="torchtune",
    read=read,
    keys=words(
        "_component_ tokenizer checkpointer recipe_checkpoint enable_activation_checkpointing "
        "metric_logger resume_from_checkpoint max_steps_per_epoch log_peak_memory_stats dataset "
        "optimizer loss model profiler enable_activation_offloading"
    ),
    fewest=5,
    programs=re.compile(r"_(distributed|single_device)(\.py)?$"),
    takes_files=True,
    evidence=RECIPES,
)
