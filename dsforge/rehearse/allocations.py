"""Every allocation and release of the rehearsed engine, by storage.

A storage is born when an operator first returns a tensor on it and dies when the last tensor on it
does; a weak reference tells. Its owner is settled later (see ownership): here only the code that
asked for it is kept, which tells the engine's own buffers from the model's activations.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    in_kernel_invocation_manager,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from dsforge.rehearse.timeline import Owner

aten = torch.ops.aten
ITEM = aten._local_scalar_dense.default  # noqa: SLF001 - the operator behind `.item()`
# The fake mode checks each operator and looks it up in its cache; for these, whose tensors are all
# on one device and whose result is a new one, the meta kernel can be asked right away. ZeRO-3 makes
# a view per rank and parameter of whatever it gathers, and joins them.
DIRECT = frozenset(
    (
        *(aten.slice.Tensor, aten.view.default, aten.detach.default, aten.t.default),
        *(aten.transpose.int, aten.unsqueeze.default, aten.expand.default),
        *(aten._unsafe_view.default, aten.mm.default, aten.mul.Tensor, aten.add.Tensor),  # noqa: SLF001
        *(aten.mul.Scalar, aten.div.Scalar, aten.neg.default, aten.pow.Tensor_Scalar),
        *(aten.mean.dim, aten.rsqrt.default, aten.sum.dim_IntList, aten.silu.default),
        *(aten.silu_backward.default, aten.slice_backward.default),
    )
)
ZERO: dict[torch.dtype, object] = {torch.bool: False, torch.int: 0, torch.long: 0, torch.uint8: 0}
MODEL_CODE = (
    *("torch.nn.modules.", "transformers.", "peft.", "torch.autograd."),
    *(
        "dsforge.train.",
        "dsforge.rehearse.rehearsed_engine.",
    ),  # stages of a pipeline and their loss
)
_NO_ARGUMENTS: Mapping[str, Any] = {}


class Storage(NamedTuple):
    """One allocation. `by` is the owner as the allocating code tells it."""

    size_bytes: int
    on_device: bool
    by: Owner


class Tracker(TorchDispatchMode):
    """Lists `storages` and `events`: an index at its birth, its complement at its release.

    `.item()` of a tensor whose value nobody knows is answered with zero: no overflow, norm 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self.building = False  # a model that training has in host memory first
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._owner_of_module: dict[str, Owner | None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator and note the storages that it made."""
        result = None if kwargs or not args else _shortcut(func, args)
        if result is None:
            result = func(*args, **(kwargs or _NO_ARGUMENTS))
        if isinstance(result, torch.Tensor):
            self._note(result)
        elif isinstance(result, (tuple, list)):
            for tensor in tree_iter(result):
                if isinstance(tensor, torch.Tensor):
                    self._note(tensor)
        return result

    def index(self, tensor: torch.Tensor) -> int | None:
        """The index of a tensor's storage; None where it was never seen."""
        found = self._alive.get(_address(tensor.untyped_storage()))
        return None if found is None else found[0]

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's storage counts as host memory."""
        index = self.index(tensor)
        return index is not None and not self.storages[index].on_device

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = _address(storage)
        if key in self._alive:
            return
        on_device = tensor.device.type not in ("cpu", "meta") and not self.building
        if tensor.device.type == "meta":
            return
        index = len(self.storages)
        by = self._owner(sys._getframe(2))  # noqa: SLF001 - as `traceback` does, but fast
        self.storages.append(Storage(storage.nbytes(), on_device, by))
        self.events.append(index)
        self._alive[key] = index, weakref.ref(storage, lambda _: self._release(key, index))

    def _release(self, key: int, index: int) -> None:
        del self._alive[key]
        self.events.append(~index)

    def _owner(self, frame: FrameType | None) -> Owner:
        """The owner by the innermost frame that is the engine's or the model's."""
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name not in self._owner_of_module:
                self._owner_of_module[name] = _owner_of_module(name)
            owner = self._owner_of_module[name]
            if owner is not None:
                return owner
            frame = frame.f_back
        return "activation"  # autograd's own threads


def _address(storage: Any) -> int:
    """What tells storages apart."""
    return int(storage._cdata)  # noqa: SLF001 - torch has no public name for it


def _shortcut(func: Any, args: Any) -> Any:
    """The result of an operator that the fake mode would answer slowly or not at all, or None."""
    first = args[0]
    if func is aten.cat.default and isinstance(first[0], FakeTensor):
        return _at_once(func, args, first[0])
    if not isinstance(first, FakeTensor) or first.constant is not None:
        return None
    if func is torch.ops.prim.device.default:
        return first.fake_device
    if func is ITEM:
        return ZERO.get(first.dtype, 0.0)
    if func not in DIRECT:
        return None
    others = (one for one in args[1:] if isinstance(one, torch.Tensor))
    same = all(type(one) is FakeTensor and one.fake_device == first.fake_device for one in others)
    return _at_once(func, args, first) if same else None


def _at_once(func: Any, args: Any, like: FakeTensor) -> FakeTensor:
    """The fake result of an operator on the device of one of its inputs, as the mode makes it."""
    mode = like.fake_mode
    with in_kernel_invocation_manager(mode):
        result = func(*args)
    return FakeTensor(mode, result, like.fake_device)


def _owner_of_module(name: str) -> Owner | None:
    """Whose memory the code of a module asks for; None where its caller decides."""
    inside = f"{name}."
    if inside.startswith(("torch.optim.", "deepspeed.ops.")):
        return "optimizer_state"
    if inside.startswith("deepspeed."):
        kept = ".activation_checkpointing." in inside or inside.endswith(".zero.linear.")
        return "activation" if kept else "buffer"
    return "activation" if inside.startswith(MODEL_CODE) else None
