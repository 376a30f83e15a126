"""open-instruct: flags of its scripts, YAML, and `mason.py`, which asks a cluster for nodes."""

from __future__ import annotations

import re

from dsforge.importing.parts.adapters import assume_lora, quantised, say_adapters
from dsforge.importing.parts.trainer_keys import Defaults, say_trainer
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, Work, words

ARGUMENTS = "open-instruct open_instruct/finetune.py, FlatArguments"
DEFAULTS = Defaults(ARGUMENTS, learning_rate=2e-5, precision="bf16")


def read(work: Work, settings: Settings) -> None:
    """Keys of TrainingArguments with its own switches."""
    draft = work.draft
    if "num_learners_per_node" in settings or "deepspeed_stage" in settings:
        _learners(work, settings)
    say_trainer(work, settings, DEFAULTS)
    on = settings.find("use_lora", "use_qlora")
    if on is not None and on.truth:
        base = settings.find("use_qlora")
        over = base if base is not None and base.truth else quantised(settings)
        say_adapters(draft, settings, on, base=over)
        assume_lora(draft, 64, 16, ARGUMENTS)
    else:
        draft.assume("adapter", "none", ARGUMENTS)


def _learners(work: Work, settings: Settings) -> None:
    """GRPO: DeepSpeed by a flag for its stage, and learners on each node."""
    draft = work.draft
    draft.say("engine", "deepspeed", "open-instruct open_instruct/grpo_fast.py")
    stage = settings.find("deepspeed_stage")
    draft.whole("zero_stage", stage, 0)
    draft.assume("zero_stage", 0, "open-instruct open_instruct/grpo_fast.py")
    _rollouts(work, settings)
    learners = settings.find("num_learners_per_node")
    if learners is None:
        return
    counts = learners.value if isinstance(learners.value, list) else learners.text.split()
    whole = [int(one) for one in counts if str(one).isdigit()]
    if whole:
        draft.say("nodes", len(whole), learners.place)
        if len(set(whole)) == 1:
            draft.say("gpus_per_node", whole[0], learners.place)
        else:
            draft.leave_open("gpus_per_node", learners, "nodes with different numbers of learners")
    else:
        draft.whole("gpus_per_node", learners)
    offload = settings.find("deepspeed_offload_param")
    if offload is not None and offload.truth:
        draft.say("offload_parameters", "cpu", offload.place)
    offload = settings.find("deepspeed_offload_optimizer")
    if offload is not None and offload.truth:
        draft.say("offload_optimizer", "cpu", offload.place)


def _rollouts(work: Work, settings: Settings) -> None:
    """Samples of a step: prompts of a rollout times their answers, over the mini batches."""
    prompts = settings.find("num_unique_prompts_rollout")
    answers = settings.find("num_samples_per_prompt_rollout")
    parts = settings.find("num_mini_batches")
    if prompts is None or answers is None or not prompts.whole or not answers.whole:
        return
    share = parts.whole or 1 if parts is not None else 1
    work.draft.say("global_batch_size", prompts.whole * answers.whole // share, prompts.place)


STYLE = Style(
    name="open-instruct",
    label="open-instruct",
    read=read,
    keys=words(
        "dataset_mixer_list dataset_mixer use_slow_tokenizer model_revision tokenizer_name "
        "exp_name add_bos checkpointing_steps num_learners_per_node deepspeed_stage use_qlora "
        "hf_metadata_dataset try_launch_beaker_eval_jobs dataset_mix_dir"
    ),
    programs=re.compile(r"open_instruct|mason\.py$"),
    takes_files=True,
    evidence=ARGUMENTS,
)
