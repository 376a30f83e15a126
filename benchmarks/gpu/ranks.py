"""Ranks of one configuration as processes of their own, watched until they end or time is up.

Importing torch, DeepSpeed and transformers takes longer than most measurements, so they are
imported once, here, before any CUDA call, and each rank is forked from this process. Where that is
not possible (a library has touched CUDA already) ranks start as fresh interpreters. Either way a
rank that dies, hangs or runs out of memory takes nothing with it but its own record.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

Start = Literal["fork", "spawn"]
Work = Callable[[dict[str, Any], "Report"], None]

POLL_S = 0.05
GRACE_S = 3.0  # ranks that wait for one that has failed
TAIL = 1500  # characters of a log that a record keeps
OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory", "cudaerrormemoryalloc")
BAD_FORK = "CUDA was used before this process was forked"


class Ended(NamedTuple):
    """What came of all ranks: the worst outcome, and what each rank reported."""

    outcome: str  # measured, oom, crashed, failed, timeout, bad-fork
    error: str
    ranks: tuple[dict[str, Any], ...]
    wall_s: float


class Report:
    """What one rank has found so far, on disk after every change: it may die at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {"phase": "start"}

    def add(self, **values: Any) -> None:
        """Add or replace values."""
        self.values |= values
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.values), encoding="utf-8")
        part.replace(self.path)


def preload(model_types: set[str]) -> None:
    """Import what ranks with models of these types need, without touching CUDA."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # or asking for GPUs would
    import deepspeed  # noqa: F401
    import peft  # noqa: F401
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: F401

    import dsforge.train.model.build
    import dsforge.train.run.step  # noqa: F401

    for kind in model_types:
        import_module(f"transformers.models.{kind}.modeling_{kind}")
    with suppress(ImportError):  # the engine asks whether the optimizer is Muon
        import_module("deepspeed.runtime.zero.muon.muon_optimizer")


def run(work: Work, task: dict[str, Any], *, ranks: int, limit_s: float, start: Start) -> Ended:
    """Run `work` on so many ranks of a new process group; never longer than `limit_s`."""
    context = get_context(start)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dsforge-gpu-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), _free_port()
        processes = [
            context.Process(target=_rank, args=(work, task, folder, (rank, ranks, port)))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            expired = _wait(processes, began + limit_s)
            codes = [process.exitcode for process in processes]  # none: still alive
        finally:
            for process in processes:
                process.kill()
                process.join()
        reports = tuple(_read(folder, rank) for rank in range(ranks))
        outcome, error = _judged(codes, reports, expired=expired)
    return Ended(outcome, error, reports, time.monotonic() - began)


def _wait(processes: list[Any], deadline: float) -> bool:
    """Wait until all have ended, or soon after one has failed; whether time ran out."""
    while any(process.is_alive() for process in processes):
        if time.monotonic() > deadline:
            return True
        if any(process.exitcode for process in processes):
            deadline = min(deadline, time.monotonic() + GRACE_S)
            while any(p.is_alive() for p in processes) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            return False
        time.sleep(POLL_S)
    return False


def _judged(
    codes: list[int | None], reports: tuple[dict[str, Any], ...], *, expired: bool
) -> tuple[str, str]:
    """Outcome and error of all ranks: the first cause, not what it did to the others.

    A rank without a code was still alive when it was over, and is no cause.
    """
    told = {r["outcome"]: r["error"] for r in reversed(_failures(reports))}  # the earliest stays
    for outcome in ("bad-fork", "oom"):
        if outcome in told:
            return outcome, told[outcome]
    for report, code in zip(reports, codes, strict=True):
        if code is not None and code < 0:
            how = f"{signal.Signals(-code).name} in phase {report['phase']!r}"
            return "crashed", f"a rank ended by {how}\n{report['log']}".rstrip()
    if "failed" in told:
        return "failed", told["failed"]
    if expired:
        phase = min(report["phase"] for report in reports)
        return "timeout", f"ran into the time limit in phase {phase!r}"
    return (
        ("crashed", f"exit codes {codes}\n{reports[0]['log']}") if any(codes) else ("measured", "")
    )


def _failures(reports: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """Reports that tell of an error, the earliest first."""
    return sorted((r for r in reports if r.get("error")), key=lambda report: report["failed_at"])


def _read(folder: Path, rank: int) -> dict[str, Any]:
    """What a rank has left: its report and the end of its log."""
    report, log = folder / f"rank{rank}.json", folder / f"rank{rank}.log"
    values = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return {"phase": "start", **values, "log": text[-TAIL:]}


def _rank(work: Work, task: dict[str, Any], folder: Path, place: tuple[int, int, int]) -> None:
    """One rank, in its own process: its place in the environment, its output in a file."""
    rank, ranks, port = place
    _divert_output(folder / f"rank{rank}.log")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "LOCAL_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    code = _worked(work, task, Report(folder / f"rank{rank}.json"))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads and finalizers of the libraries must not hold up the next run


def _worked(work: Work, task: dict[str, Any], report: Report) -> int:
    """The exit code after the work; what stopped it is in the report."""
    if _bad_fork():
        report.add(outcome="bad-fork", error=BAD_FORK, failed_at=time.time())
        return 1
    try:
        _compile_nothing()
        work(task, report)
    except BaseException as error:
        outcome = "oom" if is_out_of_memory(error) else "failed"
        report.add(outcome=outcome, error=_words(error), failed_at=time.time())
        traceback.print_exc()
        return 1
    return 0


def _compile_nothing() -> None:
    """Do without DeepSpeed's own C++ collectives of CPU ranks, the only op that would be built.

    A rank that is killed while it builds leaves a lock on which every later run of the user hangs.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}


def _bad_fork() -> bool:
    """Whether CUDA was touched before this process was forked, so that it cannot be used here."""
    import torch

    return bool(torch.cuda._is_in_bad_fork())  # noqa: SLF001 - torch has no public name for it


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory was refused, by the device or by the host."""
    text = str(error).lower()
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in text for words in OUT_OF_MEMORY)


def _words(error: BaseException) -> str:
    """Type and first line of an exception."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:500]


def _divert_output(path: Path) -> None:
    """Send what this process and its libraries print into a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
