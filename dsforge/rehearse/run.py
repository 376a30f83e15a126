"""One rehearsal: the engine is started as one rank of N and taken through two optimizer steps.

Two, because the first allocates what every later one finds there; one micro step is enough for it.
"""

from __future__ import annotations

import gc
import logging
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from importlib.metadata import version
from types import FrameType
from typing import Any, NamedTuple

import deepspeed
import torch

from dsforge.errors import DsforgeError, first_line
from dsforge.rehearse.allocations import Tracker
from dsforge.rehearse.fake_gpu import NAME, fake_gpu_accelerator
from dsforge.rehearse.fake_kernels import no_kernels
from dsforge.rehearse.fake_ranks import rank_of
from dsforge.rehearse.fake_tensors import FakeTensors, without_sanity_checks
from dsforge.rehearse.rehearsed_engine import start
from dsforge.rehearse.rehearsed_job import RehearsedJob, mode_of
from dsforge.rehearse.report import Refusal
from dsforge.rehearse.steps import Samples, take_step
from dsforge.rehearse.storage_owners import Ownership
from dsforge.rehearse.timeline import Span, Timeline
from dsforge.train.model.answer_loss import loss_head
from dsforge.train.parallel.modes import Mode

Progress = Callable[[str], None]


class Rehearsal(NamedTuple):
    """What happened: the timeline up to the end, or up to where the engine refused."""

    timeline: Timeline
    refused: tuple[Refusal, ...]
    seconds: float


class _Recorder:
    """Records the phases of a rehearsal."""

    def __init__(self, tracker: Tracker, ownership: Ownership, say: Progress) -> None:
        self.tracker, self.ownership, self.say = tracker, ownership, say
        self.spans: list[Span] = []
        self.engine: Any = None
        self.name = "config"

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One phase of the timeline; a name that comes twice in a row is one phase."""
        self.name = name
        start = len(self.tracker.events)
        self.say(name)
        yield
        if self.engine is not None:
            self.ownership.claim(self.engine)
        if self.spans and self.spans[-1].name == name:
            start = self.spans.pop().start
        self.spans.append(Span(name, start, len(self.tracker.events)))

    def timeline(self) -> Timeline:
        """What was recorded so far."""
        return Timeline(self.ownership.changes(), tuple(self.spans))


def rehearse(
    job: RehearsedJob,
    settings: dict[str, Any],
    *,
    world_size: int,
    rank: int = 0,
    say: Progress = lambda _: None,
) -> Rehearsal:
    """The engine's own memory as `rank` of `world_size` under a ds_config.

    Raises DsforgeError where the engine itself would go on, but fake tensors cannot.
    """
    mode = mode_of(settings, world_size)
    begin = time.perf_counter()
    tracker = Tracker()
    recorder = _Recorder(tracker, Ownership(tracker), say)
    refused: tuple[Refusal, ...] = ()
    with _fake_environment(world_size, rank, tracker):
        try:
            _run_steps(recorder, job, deepcopy(settings), mode)
        except DsforgeError:
            raise
        except Exception as error:
            refused = (_refusal(error, recorder.name),)
        timeline = recorder.timeline()
        _release(recorder)
    return Rehearsal(timeline, refused, time.perf_counter() - begin)


def quieten() -> None:
    """Show only errors of DeepSpeed: it warns of what the rehearsal does on purpose."""
    deepspeed.utils.logger.setLevel(logging.ERROR)


def versions() -> dict[str, str]:
    """Versions of what was rehearsed."""
    return {name: version(name) for name in ("deepspeed", "torch", "transformers")}


@contextmanager
def _fake_environment(world_size: int, rank: int, tracker: Tracker) -> Iterator[None]:
    """Fake ranks, the fake GPU, fake tensors and the tracker.

    Backward runs in this thread: in one of torch's own, recomputing what makes tensors from plain
    lists (`x[..., [-1], :]` in Falcon) asks for kernels of the device.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(mode=False))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(fake_gpu_accelerator())
        stack.enter_context(no_kernels())
        stack.enter_context(without_sanity_checks())
        stack.enter_context(rank_of(world_size, rank, backend=f"cpu:fake,{NAME}:fake"))
        stack.enter_context(FakeTensors(allow_non_fake_inputs=True))
        stack.enter_context(tracker)
        yield


def _run_steps(
    recorder: _Recorder, job: RehearsedJob, settings: dict[str, Any], mode: Mode
) -> None:
    with recorder.phase("init"):
        recorder.engine = start(job, settings, mode, recorder.ownership)
    chunked = job.loss == "chunked" and mode.layout.pipeline_parallel_size == 1
    head = loss_head(recorder.engine.module) if chunked else None
    samples = Samples(job.sequence_length, head, job.reference)
    for first in (True, False):
        take_step(recorder.engine, recorder.phase, samples, first=first)


def _release(recorder: _Recorder) -> None:
    """Release the engine, so that another rehearsal starts from scratch."""
    if recorder.engine is not None:
        recorder.engine.destroy()
    recorder.engine = None
    gc.collect()


def _refusal(error: Exception, phase: str) -> Refusal:
    """The engine's objection. Raises DsforgeError for what is not one.

    Whose frame it is says the module, not the folder: a checkout may lie in any.
    """
    frames = [*traceback.walk_tb(error.__traceback__)]
    inside = next((f for f in reversed(frames) if _package(f[0]) == "deepspeed"), None)
    if inside is None or _package(frames[-1][0]) in ("torch", "dsforge", "transformers"):
        raise DsforgeError(
            f"the rehearsal stopped in {phase}: {type(error).__name__}: {first_line(error)}",
            f"at {_place(*frames[-1])}",
        ) from error
    message = " ".join(str(error).split()) or type(error).__name__
    return Refusal(phase=phase, message=message, source=_place(*inside))


def _package(frame: FrameType) -> str:
    """The top-level package of the code in a frame."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _place(frame: FrameType, line: int) -> str:
    """File and line of a frame, without the folder of installed packages."""
    return f"{frame.f_code.co_filename.split('site-packages/')[-1]}:{line}"
