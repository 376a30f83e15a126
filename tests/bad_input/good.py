"""What every case of bad input starts from, and spoils in one place."""

from __future__ import annotations

# A command line that the planner answers, and a config.json of the smallest kind.
GOOD = ("--model", "llama-2-7b", "--gpu", "a100-80gb", "--nodes", "1", "--gpus-per-node", "8")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
