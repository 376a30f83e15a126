"""Trains, saves, converts and loads again: two groups of parameters, one that is frozen, a buffer.

    python tests/checkpoints/grouped.py STAGE FOLDER

It says `all the same` where the engine that loaded has what the engine that saved had.
"""

from __future__ import annotations

import socket
import sys
from os import environ
from pathlib import Path
from typing import Any

STATES = ("exp_avg", "exp_avg_sq")


def network() -> Any:
    """A small model whose first entry is a buffer of whole numbers."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.arange(5))
            self.first, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
            self.second = nn.Linear(6, 6)

        def forward(self, given: Any) -> Any:
            return self.second(self.frozen(self.first(given)).relu()).pow(2).mean()

    return Network()


def engine_of(stage: int, seed: int, *, universal: bool) -> Any:
    """An engine with weights of its own."""
    import deepspeed
    import torch

    torch.manual_seed(seed)
    model = network()
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.ndim == 1], "weight_decay": 0.0},
    ]
    config = {
        "train_batch_size": 1,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(model=model, model_parameters=groups, config=config)[0]


def held(engine: Any) -> dict[str, Any]:
    """Master weights and states of every group of parameters."""
    own = engine.optimizer
    flats = getattr(own, "fp32_partitioned_groups_flat", None)
    found = {}
    for index, flat in enumerate(flats or own.single_partition_of_fp32_groups):
        found[f"{index}"] = flat.detach().clone()
        for state in STATES:
            found[f"{index} {state}"] = own.optimizer.state[flat][state].clone()
    return found


def main(stage: int, folder: Path) -> None:
    """Compare an engine with the one that it was loaded from."""
    import deepspeed
    import torch
    from safetensors.torch import load_file

    from dsforge.checkpoints.export import export
    from dsforge.checkpoints.folder import find_checkpoint
    from dsforge.checkpoints.verify.checkpoint import verify
    from dsforge.train.checkpoints.universal_conversion import convert

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environ["MASTER_PORT"] = str(free.getsockname()[1])
    deepspeed.init_distributed("gloo", verbose=False)
    engine = engine_of(stage, 3, universal=False)
    for _ in range(3):
        engine.backward(engine(torch.ones(1, 6)))
        engine.step()
    engine.save_checkpoint(str(folder / "run"), tag="global_step3")
    before = held(engine)
    found = find_checkpoint(folder / "run")
    assert verify(folder / "run") == []
    export(found, folder / "weights")
    written = load_file(folder / "weights/model.safetensors")
    if set(written) != set(engine.module.state_dict()):
        sys.exit(f"other tensors: {sorted(written)}")
    convert(found, folder / "universal")
    other = engine_of(stage, 5, universal=True)
    other.load_checkpoint(str(folder), tag="universal")
    after = held(other)
    odd = [name for name, values in before.items() if not torch.equal(values, after[name])]
    decays = [group["weight_decay"] for group in other.optimizer.optimizer.param_groups]
    if stage < 3 and decays != [0.1, 0.0]:
        odd.append(f"weight_decay {decays}")
    sys.exit(f"other values: {odd}") if odd else print("all the same")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
