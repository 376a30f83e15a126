"""Whose file something is: by the keys that only one program has, or by what a script launches."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.importing.forms import Source
from dsforge.importing.shell.launches import Launch
from dsforge.importing.styles import (
    accelerate,
    axolotl,
    colossalai,
    ds_config,
    dsforge_train,
    gpt_neox,
    lightning,
    litgpt,
    llama_factory,
    megatron,
    megatron_deepspeed,
    ms_swift,
    nemo,
    open_instruct,
    openrlhf,
    torchtitan,
    torchtune,
    trainer,
    trl,
)
from dsforge.importing.values import Settings, normal
from dsforge.importing.work import Style, words

STYLES: tuple[Style, ...] = (
    ds_config.STYLE,
    accelerate.STYLE,
    trainer.STYLE,
    trl.STYLE,
    llama_factory.STYLE,
    axolotl.STYLE,
    ms_swift.STYLE,
    torchtune.STYLE,
    torchtitan.STYLE,
    lightning.STYLE,
    litgpt.STYLE,
    nemo.STYLE,
    megatron.STYLE,
    megatron_deepspeed.STYLE,
    gpt_neox.STYLE,
    openrlhf.STYLE,
    open_instruct.STYLE,
    colossalai.STYLE,
    dsforge_train.STYLE,
)
DEEPSPEED_LAUNCH = ds_config.STYLE._replace(read=ds_config.read_launch)
_HUGGING_FACE = words(
    "per_device_train_batch_size per_gpu_train_batch_size num_train_epochs output_dir "
    "gradient_accumulation_steps save_strategy lr_scheduler_type report_to"
)


class _Sign(NamedTuple):
    """Keys by which a style is recognised: at least so many, all that it needs, none of others."""

    style: Style
    keys: frozenset[str]
    least: int = 1
    needs: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()

    def holds(self, keys: frozenset[str]) -> bool:
        """Whether these keys are those of the style."""
        enough = len(self.keys & keys) >= self.least
        return enough and self.needs <= keys and not self.without & keys


SIGNS: tuple[_Sign, ...] = (  # the first that holds decides; `*.key` is a key at any depth
    _Sign(
        torchtitan.STYLE,
        words("training parallelism experimental job metrics activation_checkpoint"),
        least=3,
    ),
    _Sign(torchtune.STYLE, words("*._component_")),
    _Sign(
        gpt_neox.STYLE,
        words("pipe_parallel_size model_parallel_size pos_emb no_weight_tying checkpoint_factor"),
        least=2,
    ),
    _Sign(accelerate.STYLE, words("compute_environment distributed_type")),
    _Sign(
        accelerate.STYLE,
        words(
            "num_processes num_machines mixed_precision deepspeed_config fsdp_config "
            "parallelism_config"
        ),
        least=2,
    ),
    _Sign(axolotl.STYLE, axolotl.STYLE.keys, least=3, needs=words("base_model")),
    _Sign(
        litgpt.STYLE,
        words("train.global_batch_size"),
        needs=words("train.micro_batch_size"),
        without=words(
            "trainer *.tensor_model_parallel_size *.pipeline_model_parallel_size recipe "
            "model.seq_length"
        ),
    ),
    _Sign(
        nemo.STYLE,
        words(
            "model.tensor_model_parallel_size model.micro_batch_size train.global_batch_size "
            "exp_manager model.pipeline_model_parallel_size"
        ),
    ),
    _Sign(
        lightning.STYLE,
        words(
            "lightning.trainer.devices lightning.trainer.gpus lightning.trainer.benchmark "
            "lightning.trainer.accumulate_grad_batches lightning.trainer.max_epochs "
            "lightning.trainer.max_steps lightning.trainer.accelerator"
        ),
    ),
    _Sign(lightning.STYLE, words("trainer"), without=words("trainer.class_name")),
    _Sign(
        lightning.STYLE,
        words("accumulate_grad_batches strategy devices gpus num_nodes trainer.devices"),
        least=2,
        without=words("per_device_train_batch_size zero_stage micro_train_batch_size"),
    ),
    _Sign(
        openrlhf.STYLE,
        words(
            "micro_train_batch_size train_batch_size zero_stage adam_offload pretrain "
            "rollout_batch_size ds.zero_stage train.micro_batch_size train.batch_size "
            "actor.num_nodes"
        ),
        least=2,
    ),
    _Sign(
        megatron_deepspeed.STYLE,
        words("deepspeed_config zero_stage deepspeed"),
        needs=words("num_layers hidden_size"),
    ),
    _Sign(megatron.STYLE, megatron.STYLE.keys, least=4),
    _Sign(llama_factory.STYLE, words("finetuning_type dist_config.name cutoff_len")),
    _Sign(
        llama_factory.STYLE,
        words("stage do_train dataset_dir lora_target"),
        needs=words("template dataset"),
    ),
    _Sign(ms_swift.STYLE, words("train_type tuner_type sft_type split_dataset_ratio")),
    _Sign(
        ms_swift.STYLE,
        words("rlhf_type target_modules torch_dtype freeze_vit model_author swift_version"),
        least=2,
    ),
    _Sign(
        open_instruct.STYLE,
        words("dataset_mixer_list num_learners_per_node use_slow_tokenizer dataset_mix_dir"),
    ),
    _Sign(open_instruct.STYLE, words("dataset_mixer"), needs=words("use_flash_attn")),
    _Sign(ds_config.STYLE, words("zero_optimization train_micro_batch_size_per_gpu")),
    _Sign(
        trl.STYLE,
        words(
            "dataset_mixer dataset_mixture use_peft max_prompt_length num_generations "
            "dataset_train_split dataset_test_split attn_implementation dataset_config"
        ),
        needs=words("model_name_or_path"),
        without=words("do_train dataset_config_name block_size"),
    ),
    _Sign(
        trl.STYLE,
        words("dataset_name"),
        needs=words("model_name_or_path"),
        without=words("do_train dataset_config_name block_size train_file"),
    ),
    _Sign(trainer.STYLE, _HUGGING_FACE, least=2),
    _Sign(
        colossalai.STYLE,
        words("plugin grad_checkpoint zero_cpu_offload accumulation_steps tp pp"),
        least=2,
    ),
    _Sign(
        colossalai.STYLE,
        words("zero_stage extra_dp_size ep_size pp_size tp_size placement offload_optim_frac"),
        needs=words("plugin"),
    ),
    _Sign(colossalai.STYLE, words("distplan")),
    _Sign(dsforge_train.STYLE, dsforge_train.STYLE.keys, least=3),
    _Sign(DEEPSPEED_LAUNCH, words("deepspeed_config ds_config")),
    _Sign(trainer.STYLE, words("per_device_train_batch_size per_gpu_train_batch_size")),
    _Sign(trainer.STYLE, words("batch_size"), needs=words("micro_batch_size")),
    _Sign(
        ds_config.STYLE,
        words("fp16.enabled bf16.enabled train_batch_size optimizer.params.lr"),
    ),
)
BY_LAUNCHER = {
    "swift": ms_swift.STYLE,
    "megatron": ms_swift.MEGATRON_STYLE,
    "llamafactory-cli": llama_factory.STYLE,
    "axolotl": axolotl.STYLE,
    "trl": trl.STYLE,
    "tune": torchtune.STYLE,
    "litgpt": litgpt.STYLE,
    "deepy.py": gpt_neox.STYLE,
    "colossalai": colossalai.STYLE,
}
BY_PROGRAM: tuple[Style, ...] = (
    dsforge_train.STYLE,
    gpt_neox.STYLE,
    openrlhf.STYLE,
    open_instruct.STYLE,
    torchtitan.STYLE,
    litgpt.STYLE,
    axolotl.STYLE,
)
PYTHON: tuple[Style, ...] = (
    *(nemo.STYLE, trl.STYLE, trainer.STYLE),
    *(colossalai.STYLE, lightning.STYLE),
)


def style_of(settings: Settings) -> Style | None:
    """Whose file some settings are; none where nobody's."""
    deep = {"*." + key.rpartition(".")[2] for key in settings.keys}
    keys = settings.keys | settings.heads | deep
    return next((sign.style for sign in SIGNS if sign.holds(keys)), None)


def style_of_file(source: Source) -> Style | None:
    """Whose a file of data is. Raises SpecError where it cannot be read."""
    return style_of(source.settings())


def style_of_launch(launch: Launch, settings: Settings) -> Style | None:
    """Whose program a command launches, by its launcher, its name, or its flags."""
    named = _style_of_name(launch, settings)
    if named is not None:
        return named
    found = style_of(settings)
    of_trl = trl.STYLE.programs
    if found is trainer.STYLE and of_trl is not None and of_trl.search(launch.name):
        return trl.STYLE
    if found in (None, trainer.STYLE) and _hands_on(found, settings):
        return DEEPSPEED_LAUNCH
    return DEEPSPEED_LAUNCH if found is ds_config.STYLE else found


def _style_of_name(launch: Launch, settings: Settings) -> Style | None:
    """The style that a launcher or a program's name decides."""
    for name, style in BY_LAUNCHER.items():
        if name in launch.launchers:
            return style
    text = launch.program.text
    for style in BY_PROGRAM:
        says = len(settings) > 0 or style is torchtitan.STYLE
        if style.programs is not None and style.programs.search(text) and says:
            return style
    return None


def _hands_on(found: Style | None, settings: Settings) -> bool:
    """Whether a program of its own hands a ds_config on, or makes it of flags (DeepSpeed-Chat).

    `--deepspeed` is a switch there, as `deepspeed.add_config_arguments` has it; programs with
    TrainingArguments take a file.
    """
    value = settings.at("deepspeed")
    if value is not None and value.truth is None:
        return found is None
    return bool({"deepspeed", "deepspeed_config", "zero_stage", "actor_zero_stage"} & settings.keys)


def weight_of(launch: Launch, style: Style, settings: Settings) -> int:
    """How much a command says: the more of its flags a style knows, the more likely it trains."""
    names = {normal(key).rpartition(".")[2] for key in settings.keys}
    told = len(style.keys & settings.keys) + len(names & _HUGGING_FACE)
    by_name = any(name in launch.launchers for name in BY_LAUNCHER)
    return told + (3 if by_name else 0) + (2 if launch.launchers else 0)
