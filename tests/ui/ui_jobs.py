"""Fifty jobs that people ask: sizes from 135 M to 671 B, one GPU to 1,024, mistakes among them."""

from __future__ import annotations

import json

Fields = dict[str, str]


def _job(model: str, gpu: str, nodes: int = 1, gpus: int = 1, **more: str) -> Fields:
    """The fields of a job."""
    size = {"nodes": str(nodes), "gpus_per_node": str(gpus)}
    return {"model": model, "gpu": gpu, **size, **more}


NDR = {"inter_node": "ib-ndr", "nics_per_node": "8"}
JOBS: tuple[Fields, ...] = (
    _job("llama-3.1-8b", "h100-80gb", 1, 8),
    _job("gpt3-175b", "a100-80gb", 128, 8),
    _job("gpt3-175b", "h100-80gb", 128, 8, tokens="300b", gpu_hour_price="2", **NDR),
    _job("smollm2-135m", "rtx-4090"),
    _job("gpt2", "v100-32gb"),
    _job("llama-2-7b", "a100-80gb", 2, 8, inter_node="100gbe"),
    _job("llama-2-7b", "a100-40gb", 1, 4, method="lora"),
    _job("llama-2-7b", "rtx-3090", 1, 2, method="qlora"),
    _job("llama-2-13b", "a100-80gb", 1, 8, zero_stage="3"),
    _job("llama-2-13b", "a100-80gb", 1, 8, offload_optimizer="cpu"),
    _job("llama-2-70b", "h100-80gb", 4, 8, **NDR),
    _job("llama-2-70b", "h100-80gb", 4, 8, back_end="megatron", **NDR),
    _job("llama-2-70b", "h100-80gb", 4, 8, back_end="deepspeed", **NDR),
    _job("llama-3.1-70b", "h200-141gb", 2, 8, seq_len="8k", **NDR),
    _job("llama-3.1-405b", "h100-80gb", 64, 8, **NDR),
    _job("mixtral-8x7b", "h100-80gb", 2, 8, **NDR),
    _job("mixtral-8x7b", "a100-80gb", 4, 8, ep="8", **NDR),
    _job("qwen2.5-7b", "a100-80gb", 1, 8, seq_len="32k"),
    _job("qwen2.5-14b", "l40s", 1, 4, method="lora"),
    _job("qwen2.5-72b", "h100-80gb", 8, 8, tp="8", **NDR),
    _job("mistral-7b", "a100-80gb", 1, 4, micro_batch="2"),
    _job("gpt2-xl", "v100-32gb", 1, 4, precision="fp16"),
    _job("pythia-6.9b", "v100-32gb", 1, 8, precision="fp16"),
    _job("bert-large", "v100-32gb", 1, 8),
    _job("llama-3.1-8b", "h100-80gb", 1, 8, precision="fp8", back_end="megatron"),
    _job("llama-3.1-8b", "h100-80gb", 1, 8, optimizer="lion"),
    _job("llama-3.1-8b", "h100-80gb", 1, 8, optimizer="sgd", recompute="full"),
    _job("llama-3.1-8b", "h100-80gb", 2, 8, objective="cheapest", tokens="2b"),
    _job("llama-3.1-8b", "h100-80gb", 4, 8, objective="fewest-gpus", **NDR),
    _job("llama-3.1-8b", "h100-80gb", 4, 8, deadline_days="2", tokens="20b", **NDR),
    _job("llama-3.1-8b", "h100-80gb", 1, 8, budget="500", tokens="1b", gpu_hour_price="3"),
    _job("llama-3.1-8b", "h100-80gb", 1, 8, prefer="1"),
    _job("llama-3.1-8b", "h100-80gb", 1, 8, risk="1"),
    _job("llama-3.1-8b", "rtx-4090", 1, 1, method="lora", seq_len="2k"),
    _job("llama-3.1-8b", "mi300x", 1, 8),
    _job("llama-3.1-8b", "b200", 1, 8),
    _job("7b", "h100-80gb", 1, 8),
    _job("13b", "h100-80gb", 2, 8, global_batch="1k"),
    _job("llama-2-7b", "a100-80gb", 1, 8, nvme_path="/nvme", offload_optimizer="nvme"),
    _job("llama-2-7b", "a100-80gb", 1, 8, pp="4"),
    _job("llama-2-7b", "a100-80gb", 1, 8, cp="2", seq_len="16k"),
    _job("llama-2-7b", "a100-80gb", 1, 8, host_memory="64"),
    _job("llama-2-7b", "a100-80gb", 1, 8, intra_node="pcie-4"),
    # What does not fit, and mistakes.
    _job("llama-3.1-70b", "rtx-4090"),
    _job("llama-3.1-405b", "v100-32gb", 1, 8),
    _job("lama-3.1-8b", "h100-80gb"),
    _job("llama-3.1-8b", "h1000"),
    _job("llama-3.1-8b", "h100-80gb", 0, 8),
    _job("llama-3.1-8b", "h100-80gb", 1, 8, tp="3", zero_stage="7"),
    {"model": "llama-3.1-8b"},
)
CONFIG = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
)
