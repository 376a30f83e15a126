"""QLoRA: a model whose frozen matrices are quantised, through bitsandbytes (nf4, fp4, int8).

Its checkpoints hold adapters (`trained_state.py`): quantising the model's own files gives the same
bits each time, and bitsandbytes' scales have no place in a strict load. Its export is the adapters
alone: merged into few bits they would lose what they learnt.

ZeRO stage 3 shards the packed parameters of 4-bit matrices. transformers does not build a
quantised model in partitions (`modeling_utils.py`, `get_init_context`), and DeepSpeed moves one
that has none to the device as a whole (`runtime/engine.py`, `_configure_distributed_model`), where
it may not fit. So it is packed in RAM, its scales are moved to the device, and `zero.Init` shards
it parameter by parameter before the engine sees it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from dsforge.constraints import Case
from dsforge.constraints.quantised import qlora_stage, storage_type
from dsforge.errors import Problem, first_line
from dsforge.job import TrainJob
from dsforge.origin import install_command
from dsforge.specs import BITSANDBYTES, BITSANDBYTES_4_BIT, LoraSpec
from dsforge.train.parallel.engine_config import EngineConfig

PACKAGES = ("bitsandbytes", "accelerate")
STORAGE = {"uint8": "uint8", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def quantises(job: TrainJob) -> bool:
    """Whether a job quantises its frozen matrices."""
    return job.lora is not None and job.lora.frozen_format is not None


def is_quantised(model: Any) -> bool:
    """Whether a model was loaded so, adapters around it or not."""
    marks = ("is_loaded_in_4bit", "is_loaded_in_8bit")
    return any(getattr(model, mark, False) for mark in marks)


def quantisation_problems(job: TrainJob, config: EngineConfig, *, gguf: bool) -> list[Problem]:
    """Why a job cannot use QLoRA here; empty where it can or does not ask for it."""
    if job.lora is None or not quantises(job):
        return []
    base = job.lora.frozen_format
    if base not in BITSANDBYTES:
        message = f"`lora.base` (={base}) cannot be trained here: bitsandbytes does not load it"
        hint = f"use {', '.join(BITSANDBYTES)}; `dsforge estimate` prices {base}"
        return [Problem("qlora-format", message, hint)]
    storage, precision = job.lora.quant_storage, config.precision
    case = Case(base=base, zero_stage=config.zero_stage, quant_storage=storage, precision=precision)
    problems = [_package_problem(), qlora_stage(case), storage_type(case)]
    if job.lora.upcast:
        message = "`lora.upcast` is undone by DeepSpeed, which casts all floating parameters"
        problems.append(Problem("qlora-upcast", message, "leave it out"))
    if job.random_weights or gguf:
        what = "random weights" if job.random_weights else "a GGUF file"
        message = f"`model` (={job.model}) must be stored weights with QLoRA, not {what}"
        problems.append(Problem("qlora-weights", message, "give a folder or hub id, or `bits: 16`"))
    return [problem for problem in problems if problem is not None]


def _package_problem() -> Problem | None:
    """The library that is missing, or does not run on this machine."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    hint = f"{install_command('qlora')}, or `bits: 16`"
    if missing:
        message = f"QLoRA (`lora.bits` below 16) needs {' and '.join(missing)}, not installed here"
        return Problem("qlora-bitsandbytes", message, hint)
    try:
        _quantise_once()
    except (ImportError, OSError, RuntimeError, AttributeError, NotImplementedError) as error:
        why = first_line(error)
        message = f"bitsandbytes cannot quantise to 4 bits on this machine: {why}"
        return Problem("qlora-bitsandbytes", message, hint)
    return None


def _quantise_once() -> None:
    """Quantise a block and back on the device of this rank; raises what bitsandbytes raises."""
    import torch
    from bitsandbytes import functional

    block = torch.ones(64, 64, device=device())
    packed, state = functional.quantize_4bit(block, quant_type="nf4", compress_statistics=True)
    functional.dequantize_4bit(packed, state)


def device() -> str:
    """The accelerator of this rank, as torch names it."""
    from deepspeed.accelerator import get_accelerator

    return str(get_accelerator().current_device_name())


def loading_options(lora: LoraSpec, dtype: Any, *, sharded: bool) -> dict[str, Any]:
    """What `from_pretrained` needs to pack matrices as it reads them.

    On this rank's device, or in RAM where ZeRO stage 3 shards them afterwards.
    """
    import torch
    from transformers import BitsAndBytesConfig

    where = {"device_map": {"": "cpu" if sharded else device()}}
    if lora.frozen_format not in BITSANDBYTES_4_BIT:
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True), **where}
    storage = torch.uint8
    if lora.quant_storage is not None:
        storage = getattr(torch, STORAGE[lora.quant_storage])
    elif sharded:
        storage = dtype
    chosen = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=lora.frozen_format,
        bnb_4bit_use_double_quant=lora.double_quant,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=storage,
    )
    return {"quantization_config": chosen, **where}


def shard(model: Any, settings: dict[str, Any]) -> None:
    """Shard a model that was packed in RAM over the ranks; its scales stay whole on each device."""
    import deepspeed

    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            state.to(device())
    deepspeed.zero.Init(module=model, config_dict_or_path=settings)
