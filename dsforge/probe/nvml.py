"""NVML: NVIDIA's driver asked about its GPUs, where the library and a driver are there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dsforge.probe.node_facts import GpuFact

TRANSFERS_PER_CLOCK = 2  # double data rate
BF16_CAPABILITY = 8  # Ampere
MAX_NVLINKS = 18


def gpu_facts() -> tuple[tuple[GpuFact, ...], str]:
    """The GPUs of this node, and why there are none where that is so."""
    try:
        import pynvml
    except ImportError:
        return (), "the package `nvidia-ml-py` is not installed, so GPUs cannot be detected"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"the NVIDIA driver does not respond ({error})"
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        return tuple(_fact(pynvml, handle) for handle in handles), ""
    except pynvml.NVMLError as error:
        return (), f"the NVIDIA driver does not describe its GPUs ({error})"
    finally:
        pynvml.nvmlShutdown()


def _fact(nvml: Any, handle: Any) -> GpuFact:
    """One GPU; what an old driver or card cannot say stays unknown."""
    name = nvml.nvmlDeviceGetName(handle)

    def asked(question: Callable[..., Any], *more: Any) -> Any:
        with suppress(nvml.NVMLError, AttributeError):
            return question(handle, *more)
        return None

    clock = asked(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM)
    width = asked(nvml.nvmlDeviceGetMemoryBusWidth)
    capability = asked(nvml.nvmlDeviceGetCudaComputeCapability)
    states = (asked(nvml.nvmlDeviceGetNvLinkState, link) for link in range(MAX_NVLINKS))
    return GpuFact(
        name=name.decode() if isinstance(name, bytes) else name,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        nvlinks=sum(state == nvml.NVML_FEATURE_ENABLED for state in states),
        pcie_generation=asked(nvml.nvmlDeviceGetMaxPcieLinkGeneration),
        cuda_cores=asked(nvml.nvmlDeviceGetNumGpuCores),
        clock_mhz=asked(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        memory_bytes_per_s=clock * 1e6 * TRANSFERS_PER_CLOCK * width / 8
        if clock and width
        else None,
        has_bf16=capability is None or capability[0] >= BF16_CAPABILITY,
    )
