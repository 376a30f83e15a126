"""Files of other programs that look like a ds_config, recognised by the keys that only they have.

Trainers share keys with DeepSpeed (`bf16`, `optimizer`, `gradient_accumulation_steps`) and mean
something else by them, so a file is judged only after it is known whose it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Program(NamedTuple):
    """A program with a file of its own, and the keys by which the file is recognised."""

    file: str  # what its file is, as a message says it
    signs: frozenset[str]
    evidence: str


def _program(file: str, signs: str, evidence: str) -> Program:
    return Program(file, frozenset(signs.split()), evidence)


# The first with the most signs is taken: a file that two could have is one of the first.
PROGRAMS = (
    _program(
        "a configuration of GPT-NeoX",
        "pipe_parallel_size model_parallel_size hidden_size num_layers num_attention_heads "
        "seq_length max_position_embeddings train_iters lr_decay_iters lr_decay_style data_path "
        "vocab_file merge_file tokenizer_type pos_emb no_weight_tying norm log_dir eval_interval "
        "checkpoint_factor data_impl attention_config sparsity_config partition_activations",
        "EleutherAI/gpt-neox megatron/neox_arguments/neox_args.py",
    ),
    _program(
        "a training file of Axolotl",
        "base_model micro_batch_size datasets adapter sequence_len sample_packing num_epochs "
        "val_set_size load_in_8bit load_in_4bit lr_scheduler dataset_prepared_path wandb_project "
        "flash_attention special_tokens chat_template warmup_ratio base_model_config rl "
        "output_dir learning_rate",
        "axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/config.py",
    ),
    _program(
        "a training file of LLaMA-Factory",
        "finetuning_type cutoff_len template dataset lora_target lora_rank dataset_dir stage "
        "do_train do_predict model_name_or_path quantization_bit infer_backend pref_loss "
        "export_dir preprocessing_num_workers overwrite_cache adapter_name_or_path",
        "hiyouga/LLaMA-Factory src/llamafactory/hparams",
    ),
    _program(
        "arguments of ms-swift",
        "train_type tuner_type target_modules model_author model_name torch_dtype lora_alpha "
        "split_dataset_ratio rlhf_type infer_backend",
        "modelscope/ms-swift swift/llm/argument",
    ),
    _program(
        "arguments of the Hugging Face Trainer",
        "model_name_or_path output_dir learning_rate per_device_train_batch_size num_train_epochs "
        "per_device_eval_batch_size lr_scheduler_type gradient_checkpointing save_strategy "
        "eval_strategy evaluation_strategy do_train do_eval logging_steps report_to "
        "gradient_checkpointing_kwargs max_steps warmup_ratio warmup_steps push_to_hub "
        "hub_model_id overwrite_output_dir save_steps save_total_limit dataset_mixer dataset_name "
        "max_length max_seq_length optim trl attn_implementation remove_unused_columns",
        "transformers training_args.py, TrainingArguments; trl scripts/utils.py",
    ),
    _program(
        "a configuration of a Hugging Face model",
        "architectures model_type hidden_size vocab_size num_hidden_layers transformers_version "
        "_name_or_path torch_dtype intermediate_size",
        "transformers configuration_utils.py, PretrainedConfig",
    ),
    _program(
        "a configuration of Hydra",
        "_target_ defaults hydra",
        "facebookresearch/hydra, Instantiating objects",
    ),
    _program(
        "a configuration of torchtune",
        "_component_ tokenizer checkpointer",
        "meta-pytorch/torchtune docs, All About Configs",
    ),
    _program(
        "a Kubernetes manifest",
        "apiVersion kind metadata spec",
        "Kubernetes, Objects in Kubernetes",
    ),
    _program(
        "a workflow",
        "jobs steps runs on",
        "GitHub Actions, workflow syntax",
    ),
)


class Match(NamedTuple):
    """The program whose file it probably is, and how many of its keys are there."""

    program: Program
    signs: int


def match_of(keys: Collection[str]) -> Match | None:
    """The program with the most of its own keys in a file; none where no key is anyone's."""
    plain = {key.replace("-", "_") for key in keys}
    best = max((Match(p, len(p.signs & plain)) for p in PROGRAMS), key=lambda match: match.signs)
    return best if best.signs else None
