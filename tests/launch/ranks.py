"""Real ranks without a launcher: forked from one process that has imported the engine already.

Twelve seconds of imports a launch would allow two or three modes in a test run; a forked rank is
there at once, and is as real as one that `deepspeed` starts: a process of its own with the same
environment, in a gloo process group with the others.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import runs

PRELOADED = ["deepspeed", "transformers", "peft", "dsforge.train.__main__", "ranks"]
LIMIT_S = 240
JOB = "train.yaml"


def server() -> ForkServerContext:
    """The process that ranks are forked from; it begins with the first of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def train(folder: Path, ranks: int, *options: str, job: str = JOB) -> str:
    """What a run of a job in a folder wrote to stderr; every rank must end well."""
    codes, text = outcome(folder, begun(folder, ranks, *options, job=job))
    assert codes == [0] * ranks, text[-4000:]
    return text


def ended(folder: Path, ranks: int, *options: str) -> tuple[list[int | None], str]:
    """Exit codes of the ranks of a run and what they wrote to stderr."""
    return outcome(folder, begun(folder, ranks, *options))


def begun(folder: Path, ranks: int, *options: str, job: str = JOB) -> list[BaseProcess]:
    """The processes of a run that has just been started."""
    port = runs.free_port()
    (folder / "ranks.log").unlink(missing_ok=True)
    context = server()
    processes: list[BaseProcess] = [
        context.Process(target=_rank, args=(str(folder), rank, ranks, port, [job, *options]))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return processes


def outcome(
    folder: Path, processes: list[BaseProcess], limit_s: float = LIMIT_S
) -> tuple[list[int | None], str]:
    """Exit codes of ranks, each of which may take so long, and what they wrote to stderr."""
    for process in processes:
        process.join(limit_s)
        if process.is_alive():
            process.kill()
            process.join()
    log = folder / "ranks.log"
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    return [process.exitcode for process in processes], text


def _rank(folder: str, rank: int, ranks: int, port: int, words: list[str]) -> None:
    """One rank: the place that a launcher would give it, then `dsforge train` with these words."""
    os.chdir(folder)
    log = os.open("ranks.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", LOCAL_SIZE=str(ranks), OMP_NUM_THREADS="1")
    import torch

    from dsforge.train.__main__ import main

    torch.set_num_threads(1)
    sys.argv = ["dsforge.train", *words]
    code = main()
    sys.stderr.flush()
    os._exit(code)
