"""Two ranks that share each sample through DeepSpeed's Ulysses, against one that has it whole.

`python sequence_ranks.py llama qwen3`: prints a JSON object, kind -> the largest difference of the
logits over the largest logit, and what a layer saves more for each token, in elements.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from multiprocessing import get_context
from typing import Any

RANKS, SAMPLES, TOKENS, HEADS, SIZE = 2, 2, 32, 4, 16


def model_of(kind: str, *, layers: int = 2, kv_heads: int = 2) -> Any:
    """A tiny model of a kind, without dropout; windows are switched off."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    wanted = {
        "num_hidden_layers": layers,
        "hidden_size": HEADS * SIZE,
        "intermediate_size": 96,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": SIZE,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
        **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
        **dict.fromkeys(("attention_dropout", "hidden_dropout"), 0.0),
        "sliding_window": None,
    }
    always = {"head_dim", "num_key_value_heads"}
    known = set(AutoConfig.for_model(kind).to_dict()) | always
    config = AutoConfig.for_model(kind, **{k: v for k, v in wanted.items() if k in known})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def saved_elements(model: Any, tokens: Any, positions: Any) -> int:
    """Elements of the tensors that a forward pass keeps for backward, parameters left out."""
    import torch

    own = {value.untyped_storage().data_ptr() for value in model.parameters()}
    seen, kept = {}, []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # else its address is used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=tokens, position_ids=positions, use_cache=False)
    return sum(seen.values()) // 4


def compared(rank: int, kind: str, port: int, answers: Any) -> None:
    """One rank: the difference, and what a layer saves more."""
    import deepspeed
    import torch
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.init_distributed("gloo", verbose=False)
    model, deeper, few = model_of(kind), model_of(kind, layers=3), model_of(kind, kv_heads=1)
    deepest = model_of(kind, layers=3, kv_heads=1)
    torch.manual_seed(1)
    tokens = torch.randint(3, 500, (SAMPLES, TOKENS))
    positions = torch.arange(TOKENS)[None].expand(SAMPLES, TOKENS)
    width = TOKENS // RANKS
    part = slice(rank * width, (rank + 1) * width)
    share = tokens[:, part].contiguous(), positions[:, part].contiguous()
    with torch.no_grad():
        whole = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, part]
    pairs = ((model, deeper), (few, deepest))
    before = [saved_elements(b, *share) - saved_elements(a, *share) for a, b in pairs]
    saved = []
    for (a, b), alone in zip(pairs, before, strict=True):
        exchange(UlyssesSPAttentionHF, a)
        if a is model:
            with torch.no_grad():
                found = a(input_ids=share[0], position_ids=share[1], use_cache=False).logits
        more = saved_elements(b, *share) - saved_elements(a, *share) - alone
        saved.append(more / (SAMPLES * width))
    difference = float((found - whole).abs().max() / whole.abs().max())
    answers.put((difference, saved))


def exchange(kind: Any, model: Any) -> None:
    """Put the exchange for a model in the place of transformers' attention."""
    from deepspeed.runtime.sequence_parallel import parallel_state_sp as groups
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention_forward
    groups._release_sequence_parallel_groups()
    kind.register_with_transformers(
        model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=RANKS,
        micro_batch_size=SAMPLES,
    )


def main(kinds: list[str]) -> dict[str, Any]:
    """The answers of rank pairs, one pair after the other."""
    import deepspeed  # noqa: F401 - once, before the ranks are forked
    import transformers  # noqa: F401

    found, forked = {}, get_context("fork")
    for number, kind in enumerate(kinds):
        answers = forked.Queue()
        port = 29700 + (os.getpid() + number) % 2000
        ranks = [
            forked.Process(target=compared, args=(rank, kind, port, answers))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        both = [answers.get(timeout=120) for _ in ranks]
        for process in ranks:
            process.join()
        found[kind] = {"difference": max(one for one, _ in both), "saved": both[0][1]}
    return found


if __name__ == "__main__":
    document = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print
    os.environ["DS_ACCELERATOR"] = "cpu"
    print(json.dumps(main(sys.argv[1:])), file=document, flush=True)
