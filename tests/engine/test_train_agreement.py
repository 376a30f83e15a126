"""Two real processes: what one rank does alone, and what becomes of the other when it fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.engine

RANK = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
from dsforge.errors import DsforgeError
from dsforge.train.parallel.agreement import on_first_rank

dist.init_process_group("gloo", timeout=timedelta(seconds=2))
rank = dist.get_rank()

def slow():
    time.sleep(4)  # longer than the process group waits
    return "written"

def broken():
    raise OSError("disk full")

def killed():
    os._exit(9)

try:
    print("result", on_first_rank({"slow": slow, "broken": broken, "killed": killed}[sys.argv[1]]))
except DsforgeError as error:
    print("told", error.message)
    sys.exit(1)
"""


def two_ranks(what: str) -> list[tuple[int, str]]:
    """Exit code and output of both ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, what],
            env={**os.environ, **place, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=90)[0].strip() for rank in ranks]
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]


def test_the_others_wait_longer_than_the_group_would() -> None:
    """Writing a large file outlasts the time limit of the process group."""
    first, other = two_ranks("slow")

    assert first == (0, "result written")
    assert other == (0, "result None")


def test_a_failure_of_the_first_rank_reaches_the_others() -> None:
    """The other rank ends with a message instead of waiting."""
    first, other = two_ranks("broken")

    assert first[0] == 1
    assert other == (1, "told the first rank failed")


def test_the_death_of_the_first_rank_frees_the_others() -> None:
    """A rank that is killed takes no other into an endless wait."""
    start = time.monotonic()
    first, other = two_ranks("killed")

    assert (first[0], other[0] != 0) == (9, True)
    assert time.monotonic() - start < 60
