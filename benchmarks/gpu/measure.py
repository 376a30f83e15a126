"""What one rank does: build the model, start the engine, train a few steps, read the counters.

Model, engine config and step are those of `dsforge train`; only the samples are random tokens. The
weights are drawn on the device, which is quicker than on the host and holds no more than the
engine then keeps.
"""

from __future__ import annotations

import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from gpu.ranks import Report

WARMUP_STEPS = 2  # the first step allocates, the second still records the ZeRO-3 order of use
LEAST_STEPS, MOST_STEPS = 3, 10
RLIMIT_SLACK_BYTES = 256 << 20  # threads and libraries of a CPU rank, beside what it is granted


class Counters(Protocol):
    """Memory of this rank."""

    def facts(self) -> dict[str, Any]:
        """What is known before the model is built."""

    def reset(self) -> None:
        """Begin a new peak."""

    def read(self) -> dict[str, int]:
        """Bytes now and at the peak since the last reset."""


class CudaCounters:
    """torch's counters and the driver's, of one GPU."""

    def __init__(self, index: int) -> None:
        import torch

        self.busy_bytes = busy_bytes(index)
        torch.cuda.set_device(index)
        self.context_bytes = self._used()  # asking creates the context

    def facts(self) -> dict[str, Any]:
        """Name and size of the card, and what was in use before us."""
        import torch

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "counter": "cuda",
            "device": properties.name,
            "total_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "busy_bytes": self.busy_bytes,
            "context_bytes": self.context_bytes,
            "attention_kernels": _attention_kernels(),
        }

    def reset(self) -> None:
        """Give cached blocks back and begin new peaks."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> dict[str, int]:
        """Allocated, requested (without rounding), reserved, and used as the driver sees it."""
        import torch

        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        return {
            "resident_bytes": torch.cuda.memory_allocated(),
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "requested_bytes": int(stats.get("requested_bytes.all.peak", 0)),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_bytes": self._used(),
            "host_bytes": _process_bytes("VmHWM"),
        }

    def _used(self) -> int:
        """Bytes in use on the device, without what others had there before."""
        import torch

        free, total = torch.cuda.mem_get_info()
        return max(0, total - free - self.busy_bytes)


class ProcessCounters:
    """The resident memory of a CPU rank; torch counts none there."""

    def facts(self) -> dict[str, Any]:
        """The interpreter and its libraries, before the model."""
        return {"counter": "process", "context_bytes": _process_bytes("VmRSS")}

    def reset(self) -> None:
        """Begin a new peak (see proc(5), clear_refs)."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def read(self) -> dict[str, int]:
        """The only counter that a CPU rank has stands for the device's."""
        return {
            "resident_bytes": _process_bytes("VmRSS"),
            "device_bytes": _process_bytes("VmHWM"),
            "host_bytes": _process_bytes("VmHWM"),
        }


def build_adam(task: dict[str, Any], report: Report) -> None:
    """Compile DeepSpeed's own Adam for the device and for the host, once for all ranks."""
    from deepspeed.accelerator import get_accelerator

    from dsforge.train.parallel.ranks import prefer_own_tools

    prefer_own_tools()
    for name in task["builders"]:
        report.add(phase=name)
        get_accelerator().create_op_builder(name).load()
    report.add(phase="done", outcome="measured")


def measure(task: dict[str, Any], report: Report) -> None:
    """Measure one configuration on this rank; the report grows with each phase."""
    from dsforge.train.parallel.ranks import (
        choose_device,
        join,
        leave,
        place_of_process,
        prefer_own_tools,
    )

    prefer_own_tools()
    place = place_of_process()
    counters: Counters = CudaCounters(place.local_rank) if task["cuda"] else ProcessCounters()
    choose_device(place)
    if task["cuda"]:
        _share_cores(place.world_size)
    else:
        _limit_memory(task["card_bytes"])
    report.add(phase="init", **counters.facts())
    join(place)
    counters.reset()
    engine, stepper = _engine(task, place)
    report.add(init=counters.read())
    counters.reset()
    report.add(phase="step", ready=counters.read())
    _steps(task, stepper, counters, report)
    report.add(phase="done", optimizer=type(engine.optimizer).__name__, outcome="measured")
    leave()


def _engine(task: dict[str, Any], place: Any) -> tuple[Any, Any]:
    """The engine around the model, and dsforge's own stepper on it."""
    import deepspeed
    import torch

    from dsforge.job import TrainJob
    from dsforge.train.engines.deepspeed import DeepSpeedEngine
    from dsforge.train.model.build import build_model
    from dsforge.train.parallel.engine_config import read_engine_config
    from dsforge.train.run.step import Stepper

    folder = Path(task["folder"])
    job = TrainJob.model_validate(task["job"])
    config = read_engine_config(folder / job.deepspeed_config, place.world_size)
    with torch.device("cuda", place.local_rank) if task["cuda"] else torch.device("cpu"):
        model = build_model(job, folder, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config.settings)
    return engine, Stepper(DeepSpeedEngine(engine), job, 0, place)


def _steps(task: dict[str, Any], stepper: Any, counters: Counters, report: Report) -> None:
    """Warm-up steps, then as many as fill the time; seconds and peaks of each."""
    from dsforge.train.parallel.agreement import largest
    from dsforge.train.run.signals import Attendant

    samples = _samples(task)
    seconds: list[float] = []
    peaks: list[dict[str, int]] = []
    losses: list[float] = []
    total = WARMUP_STEPS + LEAST_STEPS
    while len(seconds) < total:
        if len(seconds) == WARMUP_STEPS:
            wanted = task["seconds"] / largest(seconds[-1])[0]
            total = WARMUP_STEPS + round(min(MOST_STEPS, max(LEAST_STEPS, wanted)))
        begin = time.perf_counter()
        result = stepper.step(len(seconds), samples, Attendant())
        seconds.append(time.perf_counter() - begin)  # its last collective ends it on every rank
        peaks.append(counters.read())
        losses.append(result.loss)
        report.add(
            warmup_steps=WARMUP_STEPS,
            step_s=seconds,
            losses=losses,
            peak={name: max(peak[name] for peak in peaks) for name in peaks[0]},
        )


def _samples(task: dict[str, Any]) -> list[Any]:
    """A global batch of random tokens, the same on every rank; the loss counts all of them."""
    import numpy as np

    from dsforge.train.data.samples import Sample

    shape = task["global_batch_size"], task["sequence_length"]
    tokens = np.random.default_rng(0).integers(0, task["vocab_size"], shape, dtype=np.int64)
    return [Sample(row, row) for row in tokens]


def busy_bytes(index: int) -> int:
    """Bytes that other processes use on a GPU, by NVML; 0 where it cannot be asked."""
    import os

    try:
        import pynvml
    except ImportError:
        return 0
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    physical = int(words[index]) if index < len(words) and words[index].isdecimal() else index
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(physical)
        version = getattr(pynvml, "nvmlMemory_v2", None)  # the first one counts the driver's share
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=version).used)
    except pynvml.NVMLError:
        return 0


def _attention_kernels() -> list[str]:
    """Which kernels scaled dot-product attention may choose from."""
    import torch

    switches = torch.backends.cuda
    kinds = ("flash", "mem_efficient", "cudnn", "math")
    return [kind for kind in kinds if getattr(switches, f"{kind}_sdp_enabled", bool)()]


def _share_cores(ranks: int) -> None:
    """Divide the cores among the ranks, for an optimizer on the host."""
    import os

    import torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def _limit_memory(card_bytes: int) -> None:
    """Grant this CPU rank so much data beside what it holds now, as a card would."""
    granted = _process_bytes("VmData") + card_bytes + RLIMIT_SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (granted, granted))


def _process_bytes(name: str) -> int:
    """A figure of this process from proc(5)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
