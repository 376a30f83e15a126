"""What autograd keeps of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def saved_of(module: Any) -> Iterator[dict[int, Any]]:
    """A tensor of each storage that is saved for backward, parameters and buffers left out."""
    import torch

    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    found: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            found[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def stored_bytes(found: dict[int, Any]) -> int:
    """Bytes of the storages of some tensors."""
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())
