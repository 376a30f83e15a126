"""Colossal-AI: flags of its examples, whose plugin decides what is sharded."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.parts.adapters import say_adapters
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.parts.trainer_keys import MODELS, say_recompute
from dsforge.importing.styles.colossalai_script import read_python
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words
from dsforge.zero_stages import FULLY_SHARDED

ARGUMENTS = "ColossalAI applications/ColossalChat/examples/training_scripts/train_sft.py"
PLUGINS = "ColossalAI colossalai/booster/plugin"
STAGES = {
    **dict.fromkeys(("ddp", "torch_ddp", "torch_ddp_fp16", "naive", "pytorch_ddp"), 0),
    # low_level_zero_plugin.py: `stage` is 1 where a script does not say it
    **dict.fromkeys(("zero1", "colossalai_zero1", "low_level_zero", "cai_zero1"), 1),
    **dict.fromkeys(
        (
            "zero2",
            "zero2_cpu",
            "colossalai_zero2",
            "colossalai_zero2_cpu",
            "zero",
            "cai_zero2",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "gemini",
            "gemini_auto",
            "colossalai_gemini",
            "fsdp",
            "torch_fsdp",
            "fsdp_cpu",
            "gemini_cpu",
            "hybrid_gemini",
            "cai_gemini",
        ),
        3,
    ),
}
OFFLOADED = ("_cpu",)
MOE = ("ep", "ep_zero", "hybrid")  # of the examples with experts, whose default is bf16
HYBRID = ("3d", "hybrid_parallel", "3d_cpu", "moe", *MOE)


def read(work: Work, settings: Settings) -> None:
    """The plugin, sizes, batch and types."""
    draft = work.draft
    model = settings.find("pretrain", *MODELS, "config", "c")
    if model is not None and model.text:
        draft.say("model", model.text, model.place)
    _plugin(draft, settings)
    draft.whole("tensor_parallel_size", settings.find("tp", "tp_size"))
    draft.whole("pipeline_parallel_size", settings.find("pp", "pp_size"))
    sequence = settings.find("sp", "sp_size")
    if sequence is not None and (sequence.whole or 0) > 1:
        draft.whole("context_parallel_size", sequence)
    batch = settings.find("batch_size", "local_batch_size", "train_micro_batch_size_per_gpu", "b")
    micro = settings.find("microbatch_size", "mbs", "micro_batch_size")
    _batch(draft, batch, micro, settings.find("accumulation_steps", "gradient_accumulation"))
    draft.whole("sequence_length", settings.find("max_len", "max_length", "max_seq_len", "l"))
    say_precision(draft, settings.find("mixed_precision"))
    draft.number("learning_rate", settings.find("lr", "learning_rate"))
    say_recompute(
        draft,
        settings.find("grad_checkpoint", "use_grad_checkpoint", "g", "gradient_checkpointing"),
    )
    rank = settings.find("lora_rank")
    if rank is not None and rank.whole:
        say_adapters(draft, Settings({"lora_rank": rank}), rank)
    config = settings.find("lora_config")
    if config is not None and config.text:
        found = work.referred(config, "lora_config")
        inner = found.settings().renamed({"r": "lora_r"}) if found is not None else Settings({})
        say_adapters(draft, inner, config)
    _precision(draft, settings)
    for field, value in (
        ("recompute", "none"),
        ("adapter", "none"),
        ("optimizer", "adamw"),
    ):
        draft.assume(field, value, ARGUMENTS)


def _batch(draft: Draft, batch: Value | None, micro: Value | None, steps: Value | None) -> None:
    """With pipelines, the batch of a rank is divided into micro batches."""
    divides = (draft.value("pipeline_parallel_size") or 1) > 1
    if divides and batch is not None and micro is not None and batch.whole and micro.whole:
        draft.whole("micro_batch_size", micro)
        more = steps.whole or 1 if steps is not None else 1
        draft.say(
            "gradient_accumulation_steps", max(1, batch.whole // micro.whole) * more, batch.place
        )
        return
    draft.whole("micro_batch_size", batch or micro)
    draft.whole("gradient_accumulation_steps", steps)
    if batch is None and micro is None:
        draft.assume("micro_batch_size", 4, ARGUMENTS)
    draft.assume("gradient_accumulation_steps", 1, PLUGINS)


def _precision(draft: Draft, settings: Settings) -> None:
    """The default of the script, where it is one that has a flag for it; else the plugin's."""
    plugin = settings.at("plugin", "p", "strategy", "distplan")
    word = plugin.word.lower() if plugin is not None else ""
    own = settings.at("pretrain", "rm_pretrain", "c", "g", "x")  # ColossalChat, benchmark.py
    if word in ("torch_ddp", "pytorch_ddp"):
        draft.assume("precision", "fp32", PLUGINS + "/torch_ddp_plugin.py")
    elif own is not None or plugin is None or word in MOE:
        draft.assume("precision", "bf16", ARGUMENTS)
    else:
        draft.assume("precision", "fp16", PLUGINS + ": precision")


def _experts(draft: Draft, settings: Settings, word: str) -> None:
    """Ranks that share the experts; with `ep_zero` all ranks of a replica of the experts."""
    copies, ranks = settings.find("extra_dp_size"), draft.value("gpus_per_node")
    if word == "ep_zero" and copies is not None and copies.whole and ranks:
        all_ranks = ranks * (draft.value("nodes") or 1)
        if all_ranks % copies.whole == 0:
            draft.say("expert_parallel_size", all_ranks // copies.whole, copies.place)
            return
    draft.whole("expert_parallel_size", settings.find("ep", "ep_size"))


def _plugin(draft: Draft, settings: Settings) -> None:
    plugin = settings.find("plugin", "p", "strategy", "distplan")
    stage = settings.find("zero", "zero_stage")
    word = plugin.word.lower() if plugin is not None else ""
    if word in STAGES and plugin is not None:
        draft.say("zero_stage", STAGES[word], plugin.place)
        if word.endswith(OFFLOADED):
            draft.say("offload_optimizer", "cpu", plugin.place)
            if STAGES[word] == FULLY_SHARDED:
                draft.say("offload_parameters", "cpu", plugin.place)
    elif word in HYBRID or (plugin is None and stage is not None):
        draft.assume("zero_stage", 0, PLUGINS)
        draft.whole("zero_stage", stage, 0)
        if word == "3d_cpu" and plugin is not None:
            draft.say("offload_optimizer", "cpu", plugin.place)
    elif plugin is not None:
        draft.leave_open("zero_stage", plugin)
    else:
        draft.assume("zero_stage", 3, ARGUMENTS + ": plugin gemini")
    _experts(draft, settings, word)
    _offload(draft, settings)


def _offload(draft: Draft, settings: Settings) -> None:
    """What of the states stays in host memory."""
    offload = settings.find("zero_cpu_offload", "offload_optim_frac")
    if offload is not None and (offload.truth or (offload.number or 0) > 0):
        draft.say("offload_optimizer", "cpu", offload.place)
    placed = settings.find("offload_param_frac")
    if placed is not None and (placed.number or 0) > 0:
        draft.say("offload_parameters", "cpu", placed.place)
    chunks = settings.find("placement", "placement_policy")  # of Gemini
    is_gemini = draft.value("zero_stage") == FULLY_SHARDED
    if chunks is not None and chunks.word == "cpu" and is_gemini:
        draft.say("offload_optimizer", "cpu", chunks.place)
        draft.say("offload_parameters", "cpu", chunks.place)


STYLE = Style(
    name="colossalai",
    label="Colossal-AI",
    read=read,
    keys=words(
        "plugin pretrain tp pp sp accumulation_steps grad_checkpoint zero_stage zero_cpu_offload"
    ),
    fewest=3,
    programs=re.compile(r"^colossalai$"),
    python=read_python,
    evidence=ARGUMENTS,
    replicates=False,  # its hybrid plugin has an optimizer of its own
)
