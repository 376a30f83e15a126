"""QLoRA: a model whose frozen matrices are stored in 4 bits, through bitsandbytes.

Its checkpoints hold what trains and nothing else: the frozen weights are in the model's own files,
quantising them gives the same bits each time, and bitsandbytes' scales have no place in a strict
load. Its export is the adapters alone: merged into 4 bits they would lose what they learnt.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from dsforge.constraints import Case
from dsforge.constraints.inputs import qlora_stage
from dsforge.errors import Problem, first_line
from dsforge.job import TrainJob
from dsforge.origin import install_command
from dsforge.specs import QLORA_BITS
from dsforge.train.parallel.engine_config import EngineConfig

PACKAGES = ("bitsandbytes", "accelerate")


def asks_for_4_bits(job: TrainJob) -> bool:
    """Whether a job freezes its matrices in 4 bits."""
    return job.lora is not None and job.lora.bits == QLORA_BITS


def is_in_4_bits(model: Any) -> bool:
    """Whether a model was loaded so, adapters around it or not."""
    return bool(getattr(model, "is_loaded_in_4bit", False))


def quantisation_problems(job: TrainJob, config: EngineConfig, *, gguf: bool) -> list[Problem]:
    """Why a job cannot use QLoRA here; empty where it can or does not ask for it."""
    if not asks_for_4_bits(job):
        return []
    problems = [_package_problem()]
    problems.append(qlora_stage(Case(is_quantised=True, zero_stage=config.zero_stage)))
    if job.random_weights or gguf:
        what = "random weights" if job.random_weights else "a GGUF file"
        message = f"`model` (={job.model}) must be stored weights with QLoRA, not {what}"
        problems.append(Problem("qlora-weights", message, "name a folder or hub id, or `bits: 16`"))
    return [problem for problem in problems if problem is not None]


def _package_problem() -> Problem | None:
    """The library that is missing, or does not run on this machine."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    hint = f"{install_command('qlora')}, or `bits: 16`"
    if missing:
        message = f"QLoRA (`lora.bits: 4`) needs {' and '.join(missing)}, not installed here"
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


def loading_options(dtype: Any) -> dict[str, Any]:
    """What `from_pretrained` needs to pack matrices as it reads them, on this rank's device."""
    from transformers import BitsAndBytesConfig

    chosen = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": chosen, "device_map": {"": device()}}


def keep_trained_state_only(model: Any) -> None:
    """Have the model's state dict hold what trains, and load from such a one."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}

    def drop_frozen(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
        for name in [n for n in state if n.removeprefix(prefix) not in trained]:
            del state[name]

    def expect_trained(_: Any, odd: Any) -> None:
        odd.missing_keys[:] = [name for name in odd.missing_keys if name in trained]

    model.register_state_dict_post_hook(drop_frozen)
    model.register_load_state_dict_post_hook(expect_trained)
