"""What a layer of transformers saves for backward, against `layer_token_bytes`, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from dsforge.estimate.activations import layer_token_bytes
from dsforge.huggingface import model_from_config
from dsforge.layout import Layout
from dsforge.specs import Workload
from dsforge.strategy import Execution, Strategy

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SAMPLES, TOKENS = 2, 64
LLAMA = {"intermediate_size": 768, "num_attention_heads": 8, "hidden_size": 256, "vocab_size": 512}
GPT2 = {"n_embd": 256, "n_inner": 1024, "n_head": 8, "vocab_size": 512}
QUIET = {"resid_pdrop": 0, "attn_pdrop": 0, "embd_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0}

CASES = {
    "llama": ("llama", {**LLAMA, "num_key_value_heads": 8}, "sdpa"),
    "llama-gqa": ("llama", {**LLAMA, "num_key_value_heads": 2}, "sdpa"),
    "llama-gqa-eager": ("llama", {**LLAMA, "num_key_value_heads": 2}, "eager"),
    "qwen3": ("qwen3", {**LLAMA, "num_key_value_heads": 2, "head_dim": 32}, "sdpa"),
    "gpt2": ("gpt2", {**GPT2, **QUIET}, "sdpa"),
}


def saved_bytes(config: Any) -> int:
    """Bytes of all storages that autograd keeps, parameters and buffers left out."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).train()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randint(0, config.vocab_size, (SAMPLES, TOKENS))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("name", CASES)
def test_a_layer_saves_what_the_ledger_says(name: str) -> None:
    """Two layers more save twice the bytes of a layer."""
    from transformers import AutoConfig

    kind, sizes, attention = CASES[name]
    few, many = (
        AutoConfig.for_model(kind, **sizes, attn_implementation=attention, **{depth: layers})
        for layers in (1, 3)
        for depth in ("n_layer" if kind == "gpt2" else "num_hidden_layers",)
    )
    measured = (saved_bytes(many) - saved_bytes(few)) / 2 / (SAMPLES * TOKENS)
    model = model_from_config(many.to_dict(), name)
    run = Execution(trainer="deepspeed", attention="eager" if attention == "eager" else "flash")
    how = Strategy(
        layout=Layout(), micro_batch_size=SAMPLES, gradient_accumulation_steps=1, execution=run
    )
    work = Workload(sequence_length=TOKENS, global_batch_size=SAMPLES, learning_rate=1e-4)

    assert layer_token_bytes(model, work, how) == pytest.approx(measured, rel=1e-3)
