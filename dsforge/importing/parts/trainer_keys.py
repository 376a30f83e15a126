"""The keys of transformers' TrainingArguments, which many programs take as they are."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.importing.draft import Draft
from dsforge.importing.parts.engine_config import (
    say_engine_settings,
    say_named_engine,
)
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.parts.precisions import say_switches
from dsforge.importing.parts.sharding import say_fsdp, say_reduction, say_words
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Work, words

SOURCE = "transformers training_args.py, TrainingArguments"
TYPES = ("torch_dtype", "dtype", "model_dtype", "model_init_kwargs.torch_dtype", "precision")
LENGTHS = (
    *("max_seq_length", "max_seq_len", "model_max_length", "max_length", "cutoff_len"),
    *("seq_length", "sequence_length", "block_size", "max_source_length", "max_len"),
)
LIGER = ("use_liger_kernel", "enable_liger_kernel", "use_liger")
# Switches of a vision tower and of its projector: those that freeze, those that train
# (LLaMA-Factory, ms-swift, InternVL; Qwen2.5-VL's and MiniCPM-V's own scripts).
TOWER_FROZEN = ("freeze_vision_tower", "freeze_vit", "freeze_vision_model", "freeze_backbone")
TOWER_TRAINED = ("tune_mm_vision", "tune_vision")
PROJECTOR_FROZEN = ("freeze_multi_modal_projector", "freeze_aligner", "freeze_mlp")
PROJECTOR_TRAINED = ("tune_mm_mlp",)
ARGUMENTS = words(  # all names of TrainingArguments, of any release since 4.0
    "output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate "
    "lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args "
    "weight_decay adam_beta1 adam_beta2 adam_epsilon adafactor optim_target_modules "
    "gradient_accumulation_steps average_tokens_across_devices max_grad_norm "
    "label_smoothing_factor bf16 fp16 fp16_opt_level half_precision_backend fp16_backend "
    "bf16_full_eval fp16_full_eval tf32 gradient_checkpointing gradient_checkpointing_kwargs "
    "torch_compile torch_compile_backend torch_compile_mode use_liger_kernel "
    "liger_kernel_config neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size "
    "logging_dir logging_strategy logging_steps logging_first_step log_on_each_node "
    "logging_nan_inf_filter include_tokens_per_second include_num_input_tokens_seen log_level "
    "log_level_replica disable_tqdm report_to run_name evaluation_strategy eval_strategy "
    "eval_steps eval_delay per_device_eval_batch_size per_gpu_train_batch_size "
    "per_gpu_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches "
    "eval_use_gather_object eval_accumulation_steps include_inputs_for_metrics "
    "include_for_metrics batch_eval_metrics overwrite_output_dir save_only_model save_strategy "
    "save_steps save_on_each_node save_safetensors save_total_limit push_to_hub hub_token "
    "hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision "
    "load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip "
    "restore_callback_states_from_checkpoint full_determinism seed data_seed use_cpu no_cuda "
    "use_mps_device jit_mode_eval use_ipex accelerator_config parallelism_config past_index "
    "dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
    "dataloader_persistent_workers dataloader_prefetch_factor remove_unused_columns label_names "
    "group_by_length length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb "
    "ddp_broadcast_buffers ddp_backend ddp_timeout fsdp fsdp_config fsdp_min_num_params "
    "fsdp_transformer_layer_cls_to_wrap deepspeed debug skip_memory_metrics do_train do_eval "
    "do_predict resume_from_checkpoint local_rank ray_scope torchdynamo"
)
MODELS = ("model_name_or_path", "base_model", "model", "model_id", "model_path", "pretrained_model")


class Defaults(NamedTuple):
    """What a program takes where a file does not say."""

    source: str = SOURCE
    micro_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    learning_rate: float = 5e-5
    precision: str = "fp32"
    optimizer: str = "adamw"
    recompute: str = "none"
    sequence_length: int | None = None


def say_trainer(
    work: Work,
    settings: Settings,
    defaults: Defaults = Defaults(),  # noqa: B008 - an immutable value
    *,
    types: tuple[str, ...] = TYPES,
) -> None:
    """All that TrainingArguments and their defaults say."""
    draft = work.draft
    model = settings.find(*MODELS)
    if model is not None and model.text:
        draft.say("model", model.text, model.place)
    draft.whole("sequence_length", settings.find(*LENGTHS))
    say_switches(draft, settings, types)
    say_parallel(work, settings)
    draft.whole(
        "micro_batch_size",
        settings.find(
            "per_device_train_batch_size", "per_gpu_train_batch_size", "batch_size_training"
        ),
    )
    draft.whole("gradient_accumulation_steps", settings.find("gradient_accumulation_steps"))
    say_reduction(draft, settings)
    rate = settings.find("learning_rate", "lr")
    if rate is not None:
        draft.number("learning_rate", rate)
    say_optimizer(draft, settings.find("optim", "optimizer"))
    say_recompute(draft, settings.find("gradient_checkpointing", "use_gradient_checkpointing"))
    say_spared(draft, settings)
    say_liger(draft, settings.find(*LIGER))
    say_vision(draft, settings)
    assume(draft, defaults)


def say_liger(draft: Draft, value: Value | None) -> None:
    """Liger's kernels, which are all on by default (`apply_liger_kernel_to_llama`)."""
    if value is not None and value.truth:
        draft.say("loss", "fused", value.place)
        draft.say("kernels", "fused", value.place)


def say_vision(draft: Draft, settings: Settings) -> None:
    """What trains of a vision tower; who trains the tower trains its projector as well."""
    for frozen, trained, part in (
        (PROJECTOR_FROZEN, PROJECTOR_TRAINED, "projector"),
        (TOWER_FROZEN, TOWER_TRAINED, "all"),
    ):
        off, on = settings.find(*frozen), settings.find(*trained)
        if off is not None and off.truth is False:
            draft.say("vision_training", part, off.place)
        elif on is not None and on.truth:
            draft.say("vision_training", part, on.place)


IN_RAM = ("unsloth", "offload", "legacy", "offload_disk")  # of axolotl's `gradient_checkpointing`


def say_recompute(draft: Draft, value: Value | None) -> None:
    """A switch for activation checkpointing, or where its checkpoints wait."""
    if value is None:
        return
    if value.word in IN_RAM:
        draft.say("offload_activations", True, value.place)
    if value.is_open:
        draft.leave_open("recompute", value)
    elif value.truth is False:
        draft.say("recompute", "none", value.place)
    elif value.truth or value.word in (*IN_RAM, "reentrant"):
        draft.say("recompute", "full", value.place)


def say_spared(draft: Draft, settings: Settings) -> None:
    """Checkpoints in RAM (transformers, TRL, axolotl), MLPs in tiles (axolotl)."""
    inside = settings.below("gradient_checkpointing_kwargs").find("offload")
    for field, value in (
        ("offload_activations", settings.find("activation_offloading", "offload_activations")),
        ("offload_activations", inside),
        ("tiled_mlp", settings.find("tiled_mlp")),
    ):
        if value is not None and (value.truth or value.word in IN_RAM):
            draft.say(field, True, value.place)


def say_parallel(work: Work, settings: Settings) -> None:
    """A ds_config by its file or as a block, or FSDP; without either, plain data parallelism."""
    draft = work.draft
    if settings.has_block("deepspeed"):
        block = settings.below("deepspeed")
        say_engine_settings(draft, _nested(block), block, "deepspeed")
    else:
        say_named_engine(work, settings)
    sharded = settings.find("fsdp")
    has_words = sharded is not None and sharded.value not in (False, "") and sharded.value != []
    config = settings.find("fsdp_config")
    if has_words and sharded is not None:
        draft.say("engine", "fsdp", sharded.place)
        draft.assume("zero_stage", 3, SOURCE)
        say_words(draft, sharded)
        if settings.has_block("fsdp_config"):
            say_fsdp(draft, settings.below("fsdp_config"), "fsdp_")
        elif config is not None:
            found = work.referred(config, "fsdp_config")
            if found is not None:
                say_fsdp(draft, found.settings(), "fsdp_")
    else:
        settings.pass_over("fsdp_config")


def assume(draft: Draft, defaults: Defaults) -> None:
    """A program's defaults for what no file says."""
    source = defaults.source
    draft.assume("micro_batch_size", defaults.micro_batch_size, source)
    draft.assume("gradient_accumulation_steps", defaults.gradient_accumulation_steps, source)
    draft.assume("learning_rate", defaults.learning_rate, source)
    draft.assume("precision", defaults.precision, source)
    draft.assume("optimizer", defaults.optimizer, source)
    draft.assume("recompute", defaults.recompute, source)
    if defaults.sequence_length:
        draft.assume("sequence_length", defaults.sequence_length, source)


def _nested(settings: Settings) -> dict[str, object]:
    """A mapping of mappings again."""
    root: dict[str, object] = {}
    for key in sorted(settings.keys):
        value = settings.at(key)
        inner = root
        *parents, last = key.split(".")
        for parent in parents:
            deeper = inner.setdefault(parent, {})
            if not isinstance(deeper, dict):
                break
            inner = deeper
        else:
            inner[last] = value.value if value is not None and not value.is_open else "auto"
    return root
