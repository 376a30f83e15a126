"""Random numbers of tensor ranks: the same outside of sharded layers, their own inside attention.

Tensor ranks hold copies of what is not sharded, so its dropout must drop the same elements on all
of them; each computes other heads, and those should not share one mask (Megatron-LM,
`tensor_parallel/random.py`, does the same by a second generator).
"""

from __future__ import annotations

from typing import Any

SEED_BITS = 62


def vary_attention_dropout(model: Any, tensor_rank: int) -> None:
    """Have the attention of a model drop other elements on each tensor rank.

    Nothing is changed where attention drops none.
    """
    for module in model.modules():
        if getattr(module, "attention_dropout", 0):
            stream = _Stream(tensor_rank)
            module.register_forward_pre_hook(stream.begin)
            module.register_forward_hook(stream.end, always_call=True)


class _Stream:
    """Random numbers of one module on one rank.

    They begin at a number drawn from the common ones, so a layer that is computed again in backward
    with the state of the first time drops the same elements.
    """

    def __init__(self, tensor_rank: int) -> None:
        self.tensor_rank = tensor_rank
        self.states: list[tuple[Any, Any]] = []

    def begin(self, module: Any, inputs: Any) -> None:
        """Draw a seed, keep the common state, and go on with numbers of this rank."""
        import torch
        from deepspeed.accelerator import get_accelerator

        seed = int(torch.randint(2**SEED_BITS, ()))
        self.states.append((torch.get_rng_state(), get_accelerator().get_rng_state()))
        torch.manual_seed(seed + self.tensor_rank)

    def end(self, module: Any, inputs: Any, output: Any) -> None:
        """Go on with the common numbers."""
        import torch
        from deepspeed.accelerator import get_accelerator

        if self.states:
            common, of_device = self.states.pop()
            torch.set_rng_state(common)
            get_accelerator().set_rng_state(of_device)
