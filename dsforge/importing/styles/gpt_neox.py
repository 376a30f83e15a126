"""GPT-NeoX: one or several YAML files of arguments."""

from __future__ import annotations

import re

from dsforge.importing.parts.engine_config import say_engine_settings
from dsforge.importing.parts.launching import say_hostfile
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.parts.trainer_keys import _nested
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, Work, words

ARGUMENTS = "gpt-neox megatron/neox_arguments/neox_args.py"
_ENGINE = (
    *("zero_optimization", "fp16", "bf16", "optimizer", "gradient_accumulation_steps"),
    *("train_batch_size", "train_micro_batch_size_per_gpu"),
)

DEFAULTS = {
    "gradient_accumulation_steps": 1,
    "precision": "fp32",
    "recompute": "none",
    "optimizer": "adamw",
    "adapter": "none",
}


def read(work: Work, settings: Settings) -> None:
    """Sizes, and the keys of a ds_config that stand among them."""
    draft = work.draft
    inner = {
        k: v for k in settings.keys if k.partition(".")[0] in _ENGINE and (v := settings.at(k))
    }
    engine = Settings(inner)
    settings.pass_over(*_ENGINE)
    kind = settings.find("precision") or settings.find("fp16.type", "bf16.type")
    if kind is not None:
        say_precision(draft, kind)
    say_engine_settings(draft, _nested(engine), engine, ARGUMENTS)
    say_optimizer(draft, settings.at("optimizer.type"))
    draft.whole("tensor_parallel_size", settings.find("model_parallel_size"))
    pipes = settings.find("pipe_parallel_size")
    if pipes is not None and (pipes.whole or 0) > 1:  # 0: no pipeline module; 1: one of one stage
        draft.whole("pipeline_parallel_size", pipes)
    elif pipes is not None and pipes.is_open:
        draft.leave_open("pipeline_parallel_size", pipes)
    draft.whole("context_parallel_size", settings.find("context_parallel_size"))
    draft.whole("expert_parallel_size", settings.find("moe_expert_parallel_size"))
    draft.whole("sequence_length", settings.find("seq_length"))
    parallel = settings.find("sequence_parallel")
    if parallel is not None and parallel.truth:
        draft.say("sequence_parallel", value=True, place=parallel.place)
    checkpoints = settings.find("checkpoint_activations")
    if checkpoints is not None and checkpoints.truth is not None:
        draft.say("recompute", "full" if checkpoints.truth else "none", checkpoints.place)
    nodes, devices = settings.find("num_nodes"), settings.find("num_gpus")
    draft.whole("nodes", nodes)
    draft.whole("gpus_per_node", devices)
    if devices is not None:
        draft.assume("nodes", 1, ARGUMENTS)
    say_hostfile(work, settings.find("hostfile"))
    draft.assume_all(DEFAULTS, ARGUMENTS)


STYLE = Style(
    name="gpt-neox",
    label="GPT-NeoX",
    read=read,
    keys=words(
        "pipe_parallel_size model_parallel_size hidden_size num_layers num_attention_heads "
        "seq_length max_position_embeddings train_iters lr_decay_iters pos_emb no_weight_tying "
        "norm "
        "checkpoint_factor data_impl attention_config partition_activations "
        "train_micro_batch_size_per_gpu synchronize_each_layer checkpoint_activations"
    ),
    fewest=3,
    programs=re.compile(r"deepy\.py$"),
    takes_files=True,
    evidence=ARGUMENTS,
)
