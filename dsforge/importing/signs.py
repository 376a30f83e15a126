"""Signs of a program: keys that only its files have, or several of its own together.

A key that many programs share (`output_dir`, `trainer`, `train_batch_size`) is no sign by itself: a
file of an unknown program would be shown with the defaults of a known one.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.importing.parts.trainer_keys import ARGUMENTS
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
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, words

DEEPSPEED_LAUNCH = ds_config.STYLE._replace(read=ds_config.read_launch)
OF_TRAINER = words(  # names that only TrainingArguments and programs with them use
    "per_device_train_batch_size per_gpu_train_batch_size per_device_eval_batch_size save_strategy "
    "eval_strategy evaluation_strategy logging_strategy overwrite_output_dir save_total_limit "
    "load_best_model_at_end gradient_checkpointing_kwargs ddp_find_unused_parameters "
    "remove_unused_columns group_by_length logging_first_step hub_strategy"
)
HUGGING_FACE = OF_TRAINER | words(
    "num_train_epochs output_dir gradient_accumulation_steps lr_scheduler_type report_to"
)
_BLOCK = words(  # of Lightning's `Trainer`
    "trainer.accelerator trainer.devices trainer.gpus trainer.strategy trainer.max_epochs "
    "trainer.max_steps trainer.precision trainer.num_nodes trainer.accumulate_grad_batches "
    "trainer.gradient_clip_val trainer.val_check_interval trainer.check_val_every_n_epoch "
    "trainer.limit_val_batches trainer.log_every_n_steps trainer.num_sanity_val_steps "
    "trainer.callbacks trainer.benchmark trainer.enable_checkpointing trainer.min_epochs "
    "trainer.sync_batchnorm trainer.enable_progress_bar trainer.default_root_dir trainer.plugins"
)
_OTHERS_BATCH = words("train_batch_size micro_train_batch_size model_family pipeline_group_size")


DEEPEST = 3  # blocks of a key that any sign has


class Foreign(NamedTuple):
    """A program that is not read, and keys by which it is told from those that are."""

    name: str
    keys: frozenset[str]
    least: int = 1


FOREIGN: tuple[Foreign, ...] = (
    Foreign(
        "verl",
        words(
            "actor_rollout_ref trainer.n_gpus_per_node model.partial_pretrain "
            "data.micro_batch_size_per_gpu algorithm.adv_estimator reward_model.reward_manager"
        ),
    ),
    Foreign("ROLL", words("actor_train actor_infer")),
    Foreign(
        "FlagScale",
        words(
            "system.tensor_model_parallel_size system.pipeline_model_parallel_size "
            "system.precision.bf16 system.checkpoint.save_interval system.logging.log_interval"
        ),
    ),
    Foreign(
        "SimpleTuner",
        words("model_family model_flavour data_backend_config vae_cache_disable tracker_run_name"),
        least=2,
    ),
    Foreign("OpenChatKit", words("pipeline_group_size data_group_size"), least=2),
    Foreign(
        "diffusers",
        words("pretrained_model_name_or_path train_batch_size instance_prompt resolution"),
        least=2,
    ),
    Foreign("OLMo-core", words("trainer.max_duration train_module trainer.callbacks.lm_evaluator")),
    Foreign(
        "PaddleNLP",
        words(
            "tensor_parallel_degree pipeline_parallel_degree sharding_parallel_degree sharding "
            "unified_checkpoint"
        ),
        least=2,
    ),
    Foreign("NeMo-RL", words("policy.train_global_batch_size grpo.num_prompts_per_step")),
)


class Sign(NamedTuple):
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


SIGNS: tuple[Sign, ...] = (  # the first that holds decides; `*.key` is a key at any depth
    Sign(
        torchtitan.STYLE,
        words("training parallelism experimental job metrics activation_checkpoint"),
        least=3,
    ),
    Sign(torchtune.STYLE, words("*._component_")),
    Sign(
        gpt_neox.STYLE,
        words("pipe_parallel_size model_parallel_size pos_emb no_weight_tying checkpoint_factor"),
        least=2,
    ),
    Sign(accelerate.STYLE, words("compute_environment distributed_type")),
    Sign(
        accelerate.STYLE,
        words(
            "num_processes num_machines mixed_precision deepspeed_config fsdp_config "
            "parallelism_config"
        ),
        least=2,
        without=words("output_dir learning_rate model_name_or_path num_train_epochs"),
    ),
    Sign(
        axolotl.STYLE,
        axolotl.STYLE.keys - words("base_model"),
        least=2,
        needs=words("base_model"),
        without=words("data_path lora_target_modules.0 cutoff_len"),
    ),
    Sign(
        litgpt.STYLE,
        words("train.global_batch_size"),
        needs=words("train.micro_batch_size"),
        without=words(
            "trainer *.tensor_model_parallel_size *.pipeline_model_parallel_size recipe "
            "model.seq_length"
        ),
    ),
    Sign(nemo.STYLE, words("exp_manager model.restore_from_path"), needs=words("trainer model")),
    Sign(
        nemo.STYLE,
        words(
            "model.tensor_model_parallel_size model.micro_batch_size train.global_batch_size "
            "model.pipeline_model_parallel_size model.global_batch_size train.micro_batch_size "
            "model.encoder_seq_length recipe"
        ),
        least=2,
    ),
    Sign(
        lightning.STYLE,
        words(
            "lightning.trainer.devices lightning.trainer.gpus lightning.trainer.benchmark "
            "lightning.trainer.accumulate_grad_batches lightning.trainer.max_epochs "
            "lightning.trainer.max_steps lightning.trainer.accelerator"
        ),
    ),
    Sign(lightning.STYLE, _BLOCK, least=2, without=words("trainer.class_name")),
    Sign(
        lightning.STYLE,
        words("strategy devices gpus num_nodes accelerator max_epochs accumulate_grad_batches"),
        least=2,
        needs=words("strategy"),
        without=words("per_device_train_batch_size zero_stage micro_train_batch_size"),
    ),
    Sign(
        lightning.STYLE,
        words("strategy devices gpus num_nodes accelerator max_epochs trainer.devices"),
        needs=words("accumulate_grad_batches"),
        without=words("per_device_train_batch_size zero_stage micro_train_batch_size"),
    ),
    Sign(
        openrlhf.STYLE,
        words(
            "micro_train_batch_size adam_offload micro_rollout_batch_size ds.zero_stage "
            "actor_num_nodes actor.num_nodes zpg ref_num_nodes"
        ),
        least=2,
    ),
    Sign(openrlhf.STYLE, words("pretrain zero_stage"), needs=words("micro_train_batch_size")),
    Sign(openrlhf.STYLE, words("train.micro_batch_size"), needs=words("ds.zero_stage")),
    Sign(
        megatron_deepspeed.STYLE,
        words("deepspeed_config zero_stage deepspeed"),
        needs=words("num_layers hidden_size"),
    ),
    Sign(megatron.STYLE, megatron.STYLE.keys, least=4),
    Sign(megatron.STYLE, words("language_model model_parallel"), least=2),
    Sign(llama_factory.STYLE, words("finetuning_type dist_config.name")),
    Sign(
        llama_factory.STYLE,
        words("stage do_train dataset_dir lora_target cutoff_len"),
        needs=words("template dataset"),
    ),
    Sign(ms_swift.STYLE, words("split_dataset_ratio swift_version model_author")),
    Sign(ms_swift.STYLE, words("train_type tuner_type sft_type rlhf_type"), needs=words("dataset")),
    Sign(ms_swift.STYLE, words("train_type rlhf_type freeze_vit"), needs=words("tuner_type")),
    Sign(
        open_instruct.STYLE,
        words("dataset_mixer_list num_learners_per_node dataset_mix_dir"),
    ),
    Sign(
        open_instruct.STYLE,
        words(
            "use_slow_tokenizer use_flash_attn add_bos checkpointing_steps reduce_loss exp_name "
            "dataset_mixer with_tracking"
        ),
        least=2,
        without=words("dataset_config_name num_warmup_steps block_size"),  # of transformers
    ),
    Sign(open_instruct.STYLE, words("dataset_mixer"), needs=words("use_flash_attn")),
    Sign(ds_config.STYLE, words("zero_optimization train_micro_batch_size_per_gpu")),
    Sign(
        trl.STYLE,
        words(
            "dataset_mixer dataset_mixture use_peft max_prompt_length num_generations "
            "dataset_train_split dataset_test_split attn_implementation dataset_config"
        ),
        needs=words("model_name_or_path"),
        without=words("do_train dataset_config_name block_size") | _OTHERS_BATCH,
    ),
    Sign(
        trl.STYLE,
        words("dataset_name"),
        needs=words("model_name_or_path"),
        without=words("do_train dataset_config_name block_size train_file num_warmup_steps")
        | _OTHERS_BATCH,
    ),
    Sign(trainer.STYLE, OF_TRAINER, least=2, without=_OTHERS_BATCH),
    Sign(
        trainer.STYLE,
        HUGGING_FACE - OF_TRAINER,
        needs=words("per_device_train_batch_size"),
    ),
    Sign(
        colossalai.STYLE,
        words("plugin grad_checkpoint zero_cpu_offload accumulation_steps"),
        least=2,
    ),
    Sign(
        colossalai.STYLE,
        words(
            "tp pp zero_stage extra_dp_size ep_size pp_size tp_size placement offload_optim_frac"
        ),
        needs=words("plugin"),
    ),
    Sign(colossalai.STYLE, words("distplan")),
    Sign(dsforge_train.STYLE, dsforge_train.STYLE.keys, least=3),
    Sign(DEEPSPEED_LAUNCH, words("deepspeed_config ds_config")),
    Sign(
        trainer.STYLE,
        words("per_device_train_batch_size per_gpu_train_batch_size"),
        without=_OTHERS_BATCH,
    ),
    Sign(
        trainer.STYLE,  # alpaca-lora and its forks
        words("base_model cutoff_len lora_r lora_target_modules val_set_size train_on_inputs"),
        least=2,
        needs=words("batch_size micro_batch_size"),
    ),
    Sign(
        ds_config.STYLE,
        words(
            "fp16.enabled bf16.enabled train_batch_size optimizer.params.lr optimizer.type "
            "scheduler.type steps_per_print gradient_clipping wall_clock_breakdown "
            "zero_allow_untested_optimizer fp16.loss_scale gradient_accumulation_steps"
        ),
        least=2,
        without=HUGGING_FACE - words("gradient_accumulation_steps"),
    ),
)


VOCABULARY = ARGUMENTS.union(*(sign.keys | sign.needs | sign.style.keys for sign in SIGNS))


def is_known_word(key: str) -> bool:
    """Whether a key, or the argument that it is in, is a word of a program that is read."""
    return key in VOCABULARY or key.partition(".")[0] in ARGUMENTS


def _keys_of(settings: Settings) -> frozenset[str]:
    """All keys, the blocks that they are in, and `*.key` for a key at any depth.

    Of a deep key, only as many blocks as a sign has: all of them are bytes by the square.
    """
    found: set[str] = set()
    for key in settings.keys:
        *blocks, _ = key.split(".", DEEPEST)
        found |= {key, "*." + key.rpartition(".")[2]}
        found |= {".".join(blocks[: end + 1]) for end in range(len(blocks))}
    return frozenset(found)


def style_of(settings: Settings) -> Style | None:
    """Whose file some settings are; none where nobody's."""
    keys = _keys_of(settings)
    if _foreign(keys) is not None:
        return None
    return next((sign.style for sign in SIGNS if sign.holds(keys)), None)


def foreign_of(settings: Settings) -> str | None:
    """The program that is not read whose file some settings are; none where that is not known."""
    found = _foreign(_keys_of(settings))
    return None if found is None else found.name


def _foreign(keys: frozenset[str]) -> Foreign | None:
    return next((each for each in FOREIGN if len(each.keys & keys) >= each.least), None)
