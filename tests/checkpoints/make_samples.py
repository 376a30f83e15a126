"""Makes tests/checkpoints/samples: checkpoints of two real ranks, and what the engine held then.

    torchrun --nproc_per_node 2 tests/checkpoints/make_samples.py

The engine itself is asked for whole parameters and states, so the samples say what is right.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parent / "samples"
BF16 = {"bf16": {"enabled": True}}
FP32_GRADIENTS = {"data_types": {"grad_accum_dtype": "fp32"}}
CASES: dict[str, tuple[int, dict[str, Any], bool]] = {
    "zero0": (0, {}, False),
    "zero0-bf16": (0, BF16, False),
    "zero1": (1, {}, False),
    "zero1-bf16": (1, {**BF16, **FP32_GRADIENTS}, False),
    "zero2-bf16": (2, BF16, False),
    "zero2-lora": (2, BF16, True),
    "zero3-bf16": (3, BF16, False),
    "zero3-lora": (3, {}, True),
}


def tiny_model(dtype: Any, *, lora: bool) -> Any:
    """A Llama of one layer with random weights; sizes that no number of ranks divides."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=37,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(dtype)
    if not lora:
        return model
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=3, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, settings)


def make(name: str) -> None:
    """One checkpoint after three steps, and the weights and states that the engine held."""
    import deepspeed
    import torch
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    from safetensors.torch import save_file

    stage, more, lora = CASES[name]
    dtype = torch.bfloat16 if "bf16" in more else torch.float32
    model = tiny_model(dtype, lora=lora)
    config = {
        "train_batch_size": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        **more,
    }
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=config,
    )
    for step in range(3):
        torch.manual_seed(10 * step + deepspeed.comm.get_rank())
        tokens = torch.randint(0, 37, (1, 9))
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    folder = SAMPLES / name
    if deepspeed.comm.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    deepspeed.comm.barrier()
    engine.save_checkpoint(str(folder), tag="global_step3")
    held: dict[str, Any] = {}
    for parameter, own in engine.module.named_parameters():
        if not own.requires_grad:
            continue
        plain = stage == 0 and dtype == torch.float32
        for state in ("exp_avg", "exp_avg_sq"):
            held[f"{state}/{parameter}"] = (
                engine.optimizer.state[own][state]
                if plain
                else safe_get_full_optimizer_state(own, state)
            )
        held[f"fp32/{parameter}"] = own.detach() if plain else safe_get_full_fp32_param(own)
    for script in ("zero_to_fp32.py", "zero_to_torch.py"):  # DeepSpeed leaves them beside
        (folder / script).unlink(missing_ok=True)
    if deepspeed.comm.get_rank() == 0 and None not in held.values():
        save_file(
            {k: v.detach().clone().float().cpu() for k, v in held.items()},
            folder / "held.safetensors",
        )


if __name__ == "__main__":
    import deepspeed

    deepspeed.init_distributed(verbose=False)
    for case in CASES:
        make(case)
