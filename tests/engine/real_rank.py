"""One real rank of two on this machine: what its engine holds by owner, as one line of JSON.

`python real_rank.py STAGE` under the variables of a launcher. Real tensors on CPU, gloo, no
rehearsal: the check of the rehearsal itself.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import deepspeed
import torch
from rehearsed import TOKENS, Cell
from transformers import AutoConfig, AutoModelForCausalLM

from dsforge.huggingface import config_from_model
from dsforge.rehearse.storage_owners import Ownership
from dsforge.train.parallel.ranks import join, place_of_process

KEPT = ("parameter", "gradient", "optimizer_state")


class Sizes:
    """Storages by address; numbers are passed over, as torch's Adam counts steps in tensors."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}

    def index(self, tensor: torch.Tensor) -> int | None:
        """The address of a tensor's storage."""
        storage = tensor.untyped_storage()
        if tensor.numel() <= 1 or not storage.nbytes():
            return None
        self.sizes[storage.data_ptr()] = storage.nbytes()
        return storage.data_ptr()


def held(engine: Any) -> dict[str, int]:
    """Bytes by owner now."""
    sizes = Sizes()
    ownership = Ownership(sizes)  # type: ignore[arg-type] - it only asks for an index
    ownership.claim(engine)
    owners = ownership.owners
    return {kept: sum(sizes.sizes[a] for a, o in owners.items() if o == kept) for kept in KEPT}


def main(cell: Cell) -> None:
    """Two steps; the states after init and around the second step."""
    join(place_of_process())
    values = config_from_model(cell.model())
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config)
    settings = cell.settings()
    settings["optimizer"]["params"]["torch_adam"] = True  # no compiler
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=settings
    )
    found = {"init": held(engine)}
    tokens = torch.zeros(2, TOKENS, dtype=torch.long)
    for _ in range(2):
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        found["backward"] = held(engine)
        engine.step()
        found["step"] = held(engine)
    print("HELD " + json.dumps(found), flush=True)


if __name__ == "__main__":
    stage = int(sys.argv[1])
    main(Cell(stage, False, "bf16" if stage else "fp32", 1, False, False, 2))  # type: ignore[arg-type]
