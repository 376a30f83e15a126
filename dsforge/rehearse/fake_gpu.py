"""A pretended GPU: the accelerator that the engine believes in while it is rehearsed.

DeepSpeed takes any accelerator through `set_accelerator`, and torch any device through its
`privateuseone` back end; both are their own points of extension. So host and device stay apart
(offload, pinning), and the engine takes the paths of CUDA: streams, a second reduce bucket, fused
Adam, pinned buffers. No kernel ever runs: tensors on this device are always fake.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import real_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from dsforge.rehearse.cuda_attention import register_kernels
from dsforge.rehearse.fake_kernels import NoKernels

NAME = "gpu"
DEVICE = f"{NAME}:0"
PINNED = "_dsforge_pinned"
ROOM_BYTES = 1 << 60  # never too little: the engine would flatten on the host


class FakeStream:
    """A stream without work."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record_event(self, *_: Any) -> FakeEvent:
        """An event that has happened."""
        return FakeEvent()

    def wait_stream(self, *_: Any) -> None:
        """Nothing to wait for."""

    wait_event = synchronize = wait_stream


class FakeEvent:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds between two events."""
        return 0.0

    def record(self, *_: Any) -> None:
        """Nothing to record."""

    wait = synchronize = record


class PretendedGpu(CPU_Accelerator):
    """CUDA as the engine sees it (accelerator/cuda_accelerator.py), without its library."""

    def __init__(self) -> None:
        super().__init__()
        self._name = NAME
        self._communication_backend_name = "fake"

    def is_synchronized_device(self) -> bool:
        """Kernels run beside the host, as on CUDA."""
        return False

    def device_name(self, device_index: int | None = None) -> str:
        """`gpu`, or `gpu:0`."""
        return NAME if device_index is None else f"{NAME}:{device_index}"

    def device(self, device_index: int | None = None) -> torch.device:
        """The one device."""
        return torch.device(NAME, device_index or 0)

    def current_device(self) -> int:
        """Its index."""
        return 0

    def current_device_name(self) -> str:
        """Its full name."""
        return DEVICE

    def device_count(self) -> int:
        """Devices of this process."""
        return 1

    @property
    def Stream(self) -> type[FakeStream]:  # noqa: N802 - DeepSpeed's name
        """The type of streams."""
        return FakeStream

    @property
    def Event(self) -> type[FakeEvent]:  # noqa: N802 - DeepSpeed's name
        """The type of events."""
        return FakeEvent

    def current_stream(self, device_index: int | None = None) -> FakeStream:
        """A stream."""
        return FakeStream()

    default_stream = current_stream

    def total_memory(self, device_index: int | None = None) -> int:
        """More than any model needs."""
        return ROOM_BYTES

    available_memory = total_memory

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Nothing: the tracker counts."""
        return 0

    max_memory_allocated = memory_cached = max_memory_cached = memory_allocated
    memory_reserved = max_memory_reserved = memory_allocated

    def is_fp16_supported(self) -> bool:
        """As on every CUDA card since Volta."""
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        """What CUDA computes in."""
        return [torch.float, torch.half, torch.bfloat16]

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on the device."""
        return bool(tensor.device.type == NAME)

    _torch_pins_host_memory = True

    def pin_memory(
        self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True
    ) -> torch.Tensor:
        """A page-locked copy, as `tensor.pin_memory()` makes one."""
        pinned = torch.empty_like(tensor) if match_shape else tensor.new_empty(tensor.numel())
        if make_copy:
            pinned.copy_(tensor)
        setattr(pinned.untyped_storage(), PINNED, True)
        return pinned

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.pin_memory(tensor)

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Any) -> torch.Tensor:
        pinned = tensor.new_empty(shape)
        setattr(pinned.untyped_storage(), PINNED, True)
        return pinned

    def create_op_builder(self, op_name: str) -> NoKernels | None:
        """The builder of an op that exists here."""
        builder = self.op_builder(op_name)
        return builder() if builder else None

    def op_builder(self, class_name: str) -> type[NoKernels] | None:
        """Only optimizers; the shared-memory collectives of CPU ranks are none of CUDA's."""
        return NoKernels if class_name.removesuffix("Builder").endswith(OPTIMIZERS) else None

    get_op_builder = op_builder  # DeepSpeed's name


def _tensors(dtype: torch.dtype) -> property:
    return property(lambda _: partial(torch.tensor, dtype=dtype, device=DEVICE))


OPTIMIZERS = ("Adam", "Lion", "Lamb", "Adagrad")
for name, kind in {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.double,
    "FloatTensor": torch.float,
    "HalfTensor": torch.half,
    "IntTensor": torch.int,
    "LongTensor": torch.long,
}.items():
    setattr(PretendedGpu, name, _tensors(kind))


class _Module:
    """`torch.gpu`: what torch asks a device's module for."""

    def _yes(self) -> bool:
        return True

    def _no(self) -> bool:
        return False

    def _first(self) -> int:
        return 0

    def _one(self) -> int:
        return 1

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    def _random_state(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.empty(16, dtype=torch.uint8, device="cpu")  # CUDA's: seed and offset

    def _mixed_precisions(self) -> list[torch.dtype]:
        return [torch.half, torch.bfloat16]

    is_initialized = is_available = _yes
    _is_in_bad_fork = _no
    current_device, device_count = _first, _one
    manual_seed_all = set_rng_state = _nothing
    get_rng_state = _random_state
    get_amp_supported_dtype = _mixed_precisions


@lru_cache(maxsize=1)
def _register() -> None:
    """Make `gpu` a device of torch; once for a process, and for good."""
    _setup_privateuseone_for_python_backend(NAME, _Module())
    register_kernels()


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Context in which the engine's accelerator is the pretended one."""
    _register()
    before = real_accelerator.ds_accelerator
    deepspeed.accelerator.set_accelerator(PretendedGpu())
    try:
        yield
    finally:
        real_accelerator.ds_accelerator = before
