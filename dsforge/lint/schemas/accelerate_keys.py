"""The keys that the configuration file of accelerate may have (commands/config/config_args.py)."""

from __future__ import annotations

KEYS = (
    "compute_environment debug distributed_type downcast_bf16 dynamo_config enable_cpu_affinity "
    "fp8_config fsdp_config gpu_ids machine_rank main_process_ip main_process_port "
    "main_training_function megatron_lm_config mixed_precision mpirun_config num_machines "
    "num_processes parallelism_config rdzv_backend same_network tpu_env tpu_use_cluster "
    "tpu_use_sudo tpu_name tpu_zone tpu_vm use_cpu command_file commands deepspeed_config "
    "dynamo_backend fp16"  # former ones, which BaseConfig.process_config converts
).split()
OF_SAGEMAKER = (  # SageMakerConfig
    "ec2_instance_type iam_role_name image_uri profile region base_job_name pytorch_version "
    "transformers_version py_version sagemaker_inputs_file sagemaker_metrics_file additional_args"
).split()
