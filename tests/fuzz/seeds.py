"""First inputs of those targets for which the repository holds no file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
NOTE = {
    "step": 6,
    "world_size": 2,
    "zero_stage": 1,
    "global_batch_size": 8,
    "seed": 1,
    "samples": 9,
    "files": {"mp_rank_00_model_states.pt": {"bytes": 9, "crc32": 7}},
}
ROWS = (
    {"text": "a"},
    {"prompt": "a", "completion": "b"},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
)
MANIFEST = {"schema_version": 1, "files": {"plan.json": "0" * 64, "launch/torchrun.sh": "1"}}


def _plan() -> bytes:
    """A plan as it is stored."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import plans

    return plans.plan().to_json().encode()


def written(target: str) -> tuple[bytes, ...]:
    """The inputs of a target; none where it takes files of the repository."""
    return {
        "model_config": lambda: (_json(LLAMA), _json(MIXTRAL)),
        "note": lambda: (_json(NOTE),),
        "rows": lambda: (b"\n".join(map(_json, ROWS)),),
        "plan_json": lambda: (_plan(),),
        "manifest": lambda: (b"\xff\xfe".join((_json(MANIFEST), b"", b'["plan.json"]')),),
    }.get(target, tuple)()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
