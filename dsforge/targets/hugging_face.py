"""TrainingArguments of transformers, which the Trainer, TRL, LLaMA-Factory and ms-swift share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsforge.specs import Optimizer
from dsforge.targets.run import Option, Run, adam_values
from dsforge.zero_stages import FULLY_SHARDED

DS_CONFIG = "ds_config.json"
EACH_BATCH = {"sync_each_batch": True}
# transformers training_args.py, OptimizerNames.
OPTIMIZERS: dict[Optimizer, str] = {
    "adamw": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "paged_adamw_32bit": "paged_adamw_32bit",
    "lion": "lion_32bit",
    "sgd": "sgd",
    "adafactor": "adafactor",
}


def training_arguments(run: Run) -> tuple[Option, ...]:
    """Settings of a run under the names of TrainingArguments."""
    return (*_batch(run), *_optimizer(run), *_precision(run), *_length(run), *sharding(run))


def _batch(run: Run) -> Iterator[Option]:
    yield Option("output_dir", run.job.output)
    yield Option("per_device_train_batch_size", run.setup.micro_batch_size)
    yield Option("gradient_accumulation_steps", run.setup.gradient_accumulation_steps)


def _optimizer(run: Run) -> Iterator[Option]:
    """Optimizer and schedule; on DeepSpeed the ds_config must say the same."""
    work, job = run.workload, run.job
    yield Option("optim", OPTIMIZERS[work.optimizer])
    yield Option("learning_rate", work.learning_rate)
    yield Option("weight_decay", work.weight_decay)
    yield from adam_values()
    yield Option("max_grad_norm", work.gradient_clipping)
    yield Option("lr_scheduler_type", "cosine_with_min_lr")
    yield Option("lr_scheduler_kwargs", {"min_lr_rate": job.minimum_learning_rate_ratio})
    yield Option("warmup_steps", job.warmup_steps)


def _precision(run: Run) -> Iterator[Option]:
    precision, fsdp = run.setup.precision, not run.on_deepspeed
    yield Option("bf16", precision == "bf16")
    yield Option("fp16", precision == "fp16")
    if fsdp and run.setup.recompute != "none":
        return  # FSDP recomputes by itself: fsdp_config
    yield Option("gradient_checkpointing", run.setup.recompute != "none")
    if run.setup.offload_activations:
        yield Option("gradient_checkpointing_kwargs", {"offload": True})


def _length(run: Run) -> Iterator[Option]:
    job = run.job
    if job.steps is None:
        yield Option("num_train_epochs", job.epochs)
    else:
        yield Option("max_steps", job.steps)
    every = job.checkpoint_every
    yield Option("save_strategy", "epoch" if every is None else "steps")
    if every is not None:
        yield Option("save_steps", every)
    yield Option("logging_steps", 1)
    yield Option("report_to", "none")
    yield Option("seed", run.workload.seed)
    if run.plan.cluster.gpu.is_cpu:
        yield Option("use_cpu", True)


def sharding(run: Run) -> tuple[Option, ...]:
    """The ds_config, or FSDP's settings."""
    if run.on_deepspeed:
        return (Option("deepspeed", f"{run.folder}/{DS_CONFIG}"),)
    values = fsdp_values(run)
    values["cpu_offload"] = values.pop("offload_params")  # transformers' own name
    return (Option("fsdp", True), Option("fsdp_config", values), *accumulation(run))


def accumulation(run: Run) -> Iterator[Option]:
    """Gradients of FSDP reduced in each micro step, as the plan has them.

    The Trainer enters `no_sync` otherwise, and each rank keeps whole gradients (trainer.py,
    `sync_each_batch`).
    """
    if run.setup.gradient_accumulation_steps != 1 and not run.strategy.runs_as.no_sync:
        yield Option("accelerator_config", {"gradient_accumulation_kwargs": EACH_BATCH})


def fsdp_values(run: Run, version: int = 2) -> dict[str, Any]:
    """FSDP's settings without the prefix `fsdp_`: transformers takes both."""
    gathered_again = run.setup.zero_stage == FULLY_SHARDED
    reshard: bool | str = gathered_again
    if version == 1:
        reshard = "FULL_SHARD" if gathered_again else "SHARD_GRAD_OP"
    older = {
        "backward_prefetch": "BACKWARD_PRE",
        "forward_prefetch": True,
        "sync_module_states": True,
        "use_orig_params": True,
    }
    return {
        "version": version,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": reshard,
        "activation_checkpointing": run.setup.recompute != "none",
        "cpu_ram_efficient_loading": not run.workload.is_quantised,  # packed weights cannot be sent
        "offload_params": run.setup.offload_parameters == "cpu",
        "state_dict_type": "SHARDED_STATE_DICT",
        **(older if version == 1 else {}),
    }
