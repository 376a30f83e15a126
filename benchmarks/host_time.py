"""Host time of one kernel: a decoder layer of transformers on tensors too small to take time.

On a CPU core an operation of a few elements is Python and dispatch alone; a GPU adds the driver's
launch, about 5 us. Kernels of a pass are those that `tests/engine/test_kernels.py` counts.

    python benchmarks/host_time.py

One core of a shared 4-core machine, torch 2.13, transformers 5.23, peft 0.21, three runs: 7.3 to
11.1 us (0.27 to 0.41 ms a pass); under LoRA 7.4 to 13.5 us (0.58 to 1.07 ms).
"""

from __future__ import annotations

import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from dsforge.engines.deepspeed import ADAPTER_LAUNCHES, LAYER_LAUNCHES

LAYERS, SIZE, REPEATS = 8, 16, 60
MATRICES = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()


def forward_s(*, adapters: bool) -> float:
    """Seconds of a layer's forward pass on tensors of a few elements, of the quicker runs."""
    config = LlamaConfig(
        hidden_size=SIZE,
        intermediate_size=SIZE,
        num_attention_heads=1,
        num_key_value_heads=1,
        num_hidden_layers=LAYERS,
        vocab_size=SIZE,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).train()
    if adapters:
        model = get_peft_model(model, LoraConfig(r=4, target_modules=MATRICES))
    tokens = torch.zeros(1, 2, dtype=torch.long)
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        model(input_ids=tokens, use_cache=False)
        found.append(time.perf_counter() - start)
    return sorted(found)[REPEATS // 6] / LAYERS


if __name__ == "__main__":
    torch.set_num_threads(1)
    for adapters in (False, True):
        kernels = LAYER_LAUNCHES + adapters * ADAPTER_LAUNCHES
        seconds = forward_s(adapters=adapters)
        print(f"LoRA {adapters}: {seconds * 1e3:.2f} ms, {seconds / kernels * 1e6:.1f} us a kernel")
