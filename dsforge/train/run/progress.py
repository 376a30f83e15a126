"""Progress display: one bar on a terminal, one line per logged step elsewhere.

Only the first rank shows anything; on the others every call does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsforge.masking import printable
from dsforge.measurement import StepMetrics
from dsforge.train.run.heartbeat import Heartbeat
from dsforge.train.run.prediction import Prediction
from dsforge.units import gib, seconds


class Screen:
    """Messages and progress on stderr, for the first rank."""

    def __init__(self, *, shown: bool, heartbeat: Heartbeat | None = None) -> None:
        self.shown = shown
        self._heartbeat = heartbeat or Heartbeat(shown=False)
        self.prediction: Prediction | None = None
        self._console = Console(file=sys.stderr, highlight=False, quiet=not shown)
        self._bar: Progress | None = None
        self._task: Any = None
        self._last = 0

    def say(self, message: str) -> None:
        """Show one line."""
        self._heartbeat.spoke()
        self._console.print(escape(printable(message)), soft_wrap=True)

    def doing(self, what: str) -> None:
        """Name what is under way: it is shown where nothing else is for some seconds."""
        self._heartbeat.doing(what)

    @contextmanager
    def counting(self, what: str, total: int, done: int = 0) -> Iterator[None]:
        """Show progress of `what` while inside; `advance` and `step` move it."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        live = self.shown and self._console.is_terminal
        with Progress(*columns, console=self._console, disable=not live) as bar:
            self._bar = bar
            self._task = bar.add_task(what, total=total, completed=done, figures="")
            yield
        self._bar = None
        if not live:
            self.say(f"{what}: done")

    def advance(self) -> None:
        """One more is done."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def step(self, metrics: StepMetrics, total: int, left_s: float, *, line: bool) -> None:
        """Show the figures of a step; away from a terminal only where a `line` is wanted."""
        figures = (
            f"loss {metrics.loss:.4f}  lr {metrics.learning_rate:.2e}  "
            f"{metrics.tokens_per_s:,.0f} tokens/s  {self._against_prediction(metrics)}"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=metrics.step, figures=figures)
        if line and not self._console.is_terminal:
            head = f"step {metrics.step}/{total}  {figures}"
            self.say(f"{head}  {seconds(metrics.step_s)}/step  {seconds(left_s)} left")

    def _against_prediction(self, metrics: StepMetrics) -> str:
        """Memory of this rank and, where the run was planned, MFU, beside what the plan said."""
        memory = gib(metrics.allocated_bytes or metrics.host_bytes)
        said = self.prediction
        if said is None or metrics.mfu is None:
            return memory
        mfu = f"MFU {metrics.mfu:.1%} (plan {said.likely_mfu:.1%})"
        return f"{mfu}  {said.memory_label} {memory} (plan {gib(said.memory_bytes.likely)})"
