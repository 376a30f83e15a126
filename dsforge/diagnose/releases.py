"""The releases with which public names and settings of packages came and went.

TRL and PEFT: read from the tags of their repositories (TRL 0.6 to 1.9, PEFT 0.3 to 0.20).
transformers: looked up in its wheels (2.8 to 3.0, 4.26 to 5.2). Torch: its release notes. A name
under "" is known to have come or gone, but not when. Each name is one that threads report as
missing, or a sibling of such a name in the same file.
"""

from __future__ import annotations

from collections.abc import Mapping

Names = Mapping[str, Mapping[str, str]]  # package or class: release: the names, space-separated

CAME: Names = {
    "transformers": {
        "": (
            "check_peft_version is_flash_attn_greater_or_equal_2_10 is_flash_attn_greater_or_equal "
            "EncoderDecoderCache is_fsdp_enabled AutoImageProcessor BitsAndBytesConfig Unpack "
            "GenerationConfig is_torch_npu_available ROPE_INIT_FUNCTIONS is_deepspeed_zero3_enabled"
        ),
        "2.9": "Trainer TrainingArguments HfArgumentParser",
        "3.0": "AutoModelForCausalLM AutoModelForSeq2SeqLM AutoModelForMaskedLM",
        "4.28": "LlamaForCausalLM LlamaTokenizer LlamaConfig",
        "4.34": "MistralForCausalLM MistralConfig",
        "4.36": "MixtralForCausalLM LlavaForConditionalGeneration DynamicCache",
        "4.37": "Qwen2ForCausalLM Qwen2Config SiglipVisionModel SiglipImageProcessor",
        "4.38": "GemmaForCausalLM GemmaTokenizer",
        "4.39": "LlavaNextForConditionalGeneration LlavaNextProcessor",
        "4.40": "Idefics2ForConditionalGeneration Qwen2MoeForCausalLM OlmoForCausalLM",
        "4.41": "PaliGemmaForConditionalGeneration Phi3ForCausalLM",
        "4.42": "Gemma2ForCausalLM Gemma2Config",
        "4.45": (
            "Qwen2VLForConditionalGeneration Qwen2VLProcessor Qwen2VLConfig "
            "MllamaForConditionalGeneration LlavaOnevisionForConditionalGeneration"
        ),
        "4.47": "FlashAttentionKwargs",
        "4.48": "ALL_ATTENTION_FUNCTIONS",
        "4.49": "Qwen2_5_VLForConditionalGeneration Qwen2_5_VLProcessor Qwen2_5_VLConfig",
        "4.50": "Gemma3ForConditionalGeneration Gemma3ForCausalLM Gemma3Processor",
        "4.51": "Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3Config Llama4ForConditionalGeneration",
        "4.52": "Qwen2_5OmniForConditionalGeneration Qwen2_5OmniThinkerForConditionalGeneration",
        "4.53": "Gemma3nForConditionalGeneration Glm4vForConditionalGeneration",
        "4.55": "GptOssForCausalLM Mxfp4Config",
        "4.57": "Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration",
    },
    "accelerate": {
        "": (
            "PartialState is_mlu_available is_npu_available is_xpu_available clear_device_cache "
            "DummyOptim init_empty_weights"
        )
    },
    "peft": {
        "0.4": "prepare_model_for_kbit_training AutoPeftModelForCausalLM AutoPeftModel IA3Config",
        "0.5": "load_peft_weights inject_adapter_in_model",
        "0.7": "LoftQConfig OFTConfig",
        "0.11": "BOFTConfig VeraConfig LNTuningConfig get_layer_status get_model_status",
        "0.12": "LoraRuntimeConfig FourierFTConfig HRAConfig XLoraConfig",
        "0.14": "EvaConfig BoneConfig CPTConfig initialize_lora_eva_weights",
        "0.15": "TrainableTokensConfig",
        "0.17": "MissConfig ShiraConfig",
    },
    "huggingface_hub": {"": "split_torch_state_dict_into_shards OfflineModeIsEnabled"},
    "torch": {
        "": "LRScheduler xpu",
        "1.4": "memory_reserved max_memory_reserved reset_peak_memory_stats",
        "1.7": (
            "fft linalg maximum minimum hypot count_nonzero movedim quantile nanquantile amax amin "
            "vstack hstack dstack fliplr flipud heaviside SiLU silu"
        ),
        "1.8": (
            "nan_to_num tile fmax fmin fx column_stack broadcast_to ravel swapaxes moveaxis diff "
            "kron sinc xlogy tensor_split float_power set_per_process_memory_fraction"
        ),
        "1.9": "inference_mode special HuberLoss aminmax is_inference_mode_enabled",
        "1.10": (
            "concat frombuffer nanmean isin cov corrcoef is_bf16_supported SequentialLR LinearLR "
            "ConstantLR CUDAGraph ao"
        ),
        "1.11": "asarray argwhere mem_get_info",
        "1.13": "all_gather_into_tensor reduce_scatter_tensor",
        "2.0": (
            "compile func mps set_default_device scaled_dot_product_attention vmap _dynamo "
            "UntypedStorage"
        ),
        "2.1": "compiler float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz",
        "2.2": "device_mesh init_device_mesh register_pytree_node",
        "2.3": "GradScaler uint16 uint32 uint64 uint4 get_default_device sdpa_kernel",
        "2.4": "RMSNorm rms_norm register_fake custom_op add_safe_globals custom_fwd custom_bwd",
        "2.5": "Buffer flex_attention",
        "2.6": "int1 int2 int4 accelerator fully_shard",
        "2.7": "float8_e8m0fnu",
        "2.8": "float4_e2m1fn_x2",
    },
    "trl": {
        "0.7.2": "DPOTrainer DataCollatorForCompletionOnlyLM",
        "0.7.10": "setup_chat_format",
        "0.8": "KTOTrainer KTOConfig TrlParser RichProgressCallback get_kbit_device_map",
        "0.8.2": "CPOTrainer CPOConfig ORPOTrainer ORPOConfig",
        "0.9.3": "SFTConfig DPOConfig",
        "0.10": "OnlineDPOTrainer OnlineDPOConfig BCOTrainer BasePairwiseJudge",
        "0.11": "GKDTrainer GKDConfig RLOOTrainer RLOOConfig XPOTrainer LogCompletionsCallback",
        "0.12": "ScriptArguments",
        "0.13": "PRMTrainer PRMConfig MergeModelCallback",
        "0.14": "GRPOTrainer GRPOConfig",
        "0.16": "pack_dataset truncate_dataset VLLMClient",
        "0.17": "WeightSyncWorkerExtension",
        "0.19": "clone_chat_template",
        "0.22": "DatasetMixtureConfig get_dataset BEMACallback",
    },
}
WENT: Names = {
    "transformers": {
        "": (
            "AdamW top_k_top_p_filtering HfDeepSpeedConfig HybridCache SlidingWindowCache "
            "shard_checkpoint apply_chunking_to_forward is_offline_mode LossKwargs SampleOutput "
            "find_pruneable_heads_and_indices is_torch_fx_available AutoModelForVision2Seq "
            "GreedySearchOutput FLAX_WEIGHTS_NAME _flash_attention_forward"
        ),
        "4.35": "_expand_mask _make_causal_mask",
        "4.48": "LlamaFlashAttention2 LlamaSdpaAttention LLAMA_ATTENTION_CLASSES",
        "4.49": "LogitsWarper",
        "5.0": (
            "DisjunctiveConstraint PhrasalConstraint BeamScorer BeamSearchScorer default_logdir "
            "ConstrainedBeamSearchScorer AutoModelWithLMHead is_tf_available"
        ),
    },
    "peft": {"0.10": "prepare_model_for_int8_training"},
    "huggingface_hub": {"": "cached_download HfFolder Repository"},
    "torch": {
        "": "log inf string_classes container_abcs set_training set_deterministic",
        "1.8": "rfft irfft SAVE_STATE_WARNING",
        "2.0": "symeig eig lstsq solve _six",
    },
    "deepspeed": {"": "required_torch_version"},
    "datasets": {"": "load_metric"},
    "pydantic": {"2.0": "BaseSettings"},
    "packaging": {"22.0": "LegacyVersion"},
    "trl": {
        "0.13": "PPOv2Trainer PPOv2Config SFTScriptArguments DPOScriptArguments",
        "0.17": "WeightSyncWorker",
        "0.20": "DataCollatorForCompletionOnlyLM pack_examples",
        "0.21": "TextEnvironment TextHistory",
        "0.24": "DDPOTrainer DDPOConfig AlignPropTrainer IterativeSFTTrainer",
        "0.26": "setup_chat_format",
        "0.29": (
            "PPOTrainer PPOConfig AutoModelForCausalLMWithValueHead ORPOTrainer ORPOConfig "
            "AutoModelForSeq2SeqLMWithValueHead PreTrainedModelWrapper CPOTrainer CPOConfig "
            "OnlineDPOTrainer OnlineDPOConfig GKDTrainer GKDConfig BCOTrainer PRMTrainer XPOTrainer"
        ),
    },
}
SETTINGS_CAME: Names = {
    "GRPOConfig": {
        "0.15": "log_completions reward_weights sync_ref_model ds3_gather_for_generation",
        "0.16": (
            "num_iterations epsilon epsilon_high scale_rewards min_p top_p top_k "
            "repetition_penalty cache_implementation vllm_server_host vllm_server_port "
            "vllm_server_timeout"
        ),
        "0.17": (
            "loss_type mask_truncated_completions disable_dropout shuffle_dataset "
            "num_completions_to_print"
        ),
        "0.18": (
            "vllm_mode steps_per_generation generation_batch_size delta "
            "vllm_tensor_parallel_size vllm_server_base_url"
        ),
        "0.19": "generation_kwargs",
        "0.20": "importance_sampling_level top_entropy_quantile use_transformers_paged",
        "0.21": "vllm_model_impl",
        "0.23": "vllm_enable_sleep_mode vllm_importance_sampling_correction",
        "0.25": "chat_template_kwargs cast_lm_head_to_fp32",
        "0.26": "log_unique_prompts num_generations_eval vllm_max_model_length",
        "0.27": "max_tool_calling_iterations vllm_structured_outputs_regex",
        "1.0": "pad_to_multiple_of",
    },
    "DPOConfig": {
        "0.11": "max_completion_length",
        "0.13": "precompute_ref_batch_size",
        "0.14": "padding_free tools",
        "0.18": "ld_alpha",
        "0.20": "loss_weights",
        "0.24": "pad_token",
        "0.29": "activation_offloading pad_to_multiple_of",
    },
    "SFTConfig": {
        "0.16": "max_length padding_free pad_token",
        "0.17": "completion_only_loss eos_token",
        "0.18": "activation_offloading pad_to_multiple_of",
        "0.19": "assistant_only_loss chat_template_path packing_strategy",
        "0.23": "loss_type",
        "0.26": "shuffle_dataset",
    },
    "RewardConfig": {
        "0.10": "center_rewards_coefficient dataset_num_proc",
        "0.14": "disable_dropout",
        "0.24": "model_init_kwargs chat_template_path eos_token pad_token activation_offloading",
    },
    "KTOConfig": {"0.12": "disable_dropout", "1.8": "activation_offloading pad_to_multiple_of"},
}
SETTINGS_WENT: Names = {
    "GRPOConfig": {
        "0.18": "vllm_device vllm_dtype vllm_enable_prefix_caching vllm_max_model_len",
        "0.27": "wandb_log_unique_prompts",
        "0.28": "max_prompt_length use_liger_loss vllm_guided_decoding_regex",
    },
    "DPOConfig": {
        "0.14": "max_target_length",
        "0.15": "is_encoder_decoder",
        "0.26": "padding_value",
        "0.28": "use_liger_loss",
        "0.29": (
            "max_prompt_length max_completion_length label_pad_token_id rpo_alpha reference_free "
            "force_use_ref_model generate_during_eval model_adapter_name ref_adapter_name "
            "base_model_attribute_name ref_model_init_kwargs tools use_logits_to_keep"
        ),
    },
    "SFTConfig": {
        "0.18": "chars_per_token dataset_batch_size num_of_sequences use_liger",
        "0.20": "max_seq_length",
    },
    "KTOConfig": {
        "0.26": (
            "max_prompt_length max_completion_length label_pad_token_id padding_value "
            "is_encoder_decoder truncation_mode generate_during_eval use_liger_loss"
        )
    },
    "PPOConfig": {
        "0.12": (
            "model_name ppo_epochs log_with init_kl_coef adap_kl_ctrl target_kl early_stopping "
            "optimize_cuda_cache is_encoder_decoder score_clip tracker_project_name target steps"
        )
    },
    "ORPOConfig": {"0.26": "max_prompt_length label_pad_token_id"},
    "CPOConfig": {"0.11": "max_target_length", "0.26": "max_prompt_length label_pad_token_id"},
    "RLOOConfig": {"0.22": "normalize_advantage", "0.25": "kl_coef rloo_k cliprange"},
}
RENAMED = {
    "tokenizer": "processing_class",
    "evaluation_strategy": "eval_strategy",
    "use_auth_token": "token",
    "no_cuda": "use_cpu",
    "logging_dir": "project_dir",
    "config_params": "config",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_token": "hub_token",
    "push_to_hub_model_id": "hub_model_id",
    "max_seq_length": "max_length",
    "use_liger": "use_liger_kernel",
    "use_liger_loss": "use_liger_kernel",
    "vllm_max_model_len": "vllm_max_model_length",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "wandb_log_unique_prompts": "log_unique_prompts",
    "ppo_epochs": "num_ppo_epochs",
    "init_kl_coef": "kl_coef",
    "normalize_advantage": "normalize_advantages",
}


def release_of(name: str, names: Mapping[str, str]) -> str | None:
    """The release under which a name stands ("" where it is not known); None for another name."""
    return next((release for release, known in names.items() if name in known.split()), None)
