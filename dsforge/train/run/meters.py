"""Meters: seconds, memory, traffic and losses of a run, and the Measurement they end in."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, time

from dsforge import __version__
from dsforge.artifacts.whole import write_whole
from dsforge.measurement import MeasuredMemory, Measurement, StepMetrics
from dsforge.train.parallel.agreement import largest
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.ranks import Place
from dsforge.train.run.prediction import Prediction, summary
from dsforge.train.run.step import StepResult
from dsforge.train.run.traffic import Traffic
from dsforge.units import gib

WARMUP_STEPS = 2  # the first step allocates, the second still records the ZeRO-3 order of use


@dataclass(slots=True)
class Meters:
    """The meters of this rank; `packages` are those of its engine."""

    config: EngineConfig
    place: Place
    packages: tuple[str, ...]
    prediction: Prediction | None = None
    traffic: Traffic = field(default_factory=Traffic)
    results: list[StepResult] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)

    def measured(self, step: Callable[[], StepResult]) -> StepMetrics:
        """The figures of a step that is run here; its last collective ends it on every rank."""
        sent, begin = self.traffic.sent_bytes, perf_counter()
        result = step()
        self.step_s.append(perf_counter() - begin)
        self.sent_bytes.append(self.traffic.sent_bytes - sent)
        self.results.append(result)
        tokens_per_s = result.tokens / self.step_s[-1]
        return StepMetrics(
            step=result.step,
            loss=result.loss,
            learning_rate=result.learning_rate,
            gradient_norm=result.gradient_norm,
            step_s=self.step_s[-1],
            tokens=result.tokens,
            tokens_per_s=tokens_per_s,
            host_bytes=host_bytes(),
            allocated_bytes=_device_bytes()[0],
            mfu=None if self.prediction is None else self.prediction.mfu(tokens_per_s),
            ended_at=time(),
            reward_margin=result.reward_margin,
            reward_accuracy=result.reward_accuracy,
        )

    @property
    def mean_step_s(self) -> float:
        """Mean seconds of a step, warm-up left out where there are enough steps."""
        counted = self.step_s[self._warmup :]
        return sum(counted) / len(counted)

    @property
    def _warmup(self) -> int:
        return min(WARMUP_STEPS, max(0, len(self.step_s) - 1))

    def write(self, path: Path) -> list[str]:
        """Write the Measurement of the steps run by this launch; all ranks must call it.

        Returned are lines that say it beside the prediction; none on ranks other than the first.
        """
        peaks = [int(value) for value in largest(*map(float, (*_device_bytes(), host_bytes())))]
        if not self.place.is_first or not self.results:
            return []
        counted = self.sent_bytes[self._warmup :]
        measurement = Measurement(
            engine=self.config.engine,
            strategy=self.config.strategy,
            zero_stage=self.config.zero_stage,
            world_size=self.place.world_size,
            micro_batch_size=self.config.micro_batch_size,
            gradient_accumulation_steps=self.config.gradient_accumulation_steps,
            tokens_per_step=sum(r.tokens for r in self.results) / len(self.results),
            warmup_steps=self._warmup,
            step_s=tuple(self.step_s[self._warmup :]),
            losses=tuple(result.loss for result in self.results),
            memory=MeasuredMemory(
                allocated_bytes=peaks[0],
                reserved_bytes=peaks[1],
                device_bytes=peaks[2],
                host_bytes=peaks[3],
            ),
            sent_bytes=round(sum(counted) / len(counted)),
            versions={
                "python": platform.python_version(),
                "dsforge": __version__,
                **{name: version(name) for name in (*self.packages, "transformers", "peft")},
            },
            hardware=_hardware(),
        )
        text = measurement.model_dump_json(indent=2) + "\n"
        write_whole(path, text, over_links=True)
        return summary(measurement, peaks[0] or peaks[3], self.prediction)


def host_bytes() -> int:
    """Peak resident bytes of this process, as Linux counts them (VmHWM)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _device_bytes() -> tuple[int, int, int]:
    """Peak allocated, peak reserved and now used bytes of the accelerator; zeros on CPU ranks."""
    import torch

    if not torch.cuda.is_available():
        return 0, 0, 0
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free


def _hardware() -> dict[str, str]:
    """Names of what the run ran on."""
    import torch

    page_bytes, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "accelerator": device,
        "cpu": platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": gib(page_bytes * pages),
    }
