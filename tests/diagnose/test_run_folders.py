"""The folder of a run: logs, dumps of the flight recorder, the kernel's log, Slurm's table.

The dumps were written by torch 2.13 on three ranks with Gloo; only paths in them were replaced.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from dsforge.diagnose import diagnose_error, diagnose_files, diagnose_text
from dsforge.diagnose.report import shortly

DUMPS = Path(__file__).parent / "flight_recorder"
GLOO = (
    "[rank0]: RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms "
    "for recv operation to complete\n"
)
ACCOUNT = (
    "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode\n"
    "------------ ---------- ---------- ---------- ---------- ---------- --------\n"
)
KILLED = (
    "[12345.678901] Memory cgroup out of memory: Killed process 4242 (python) total-vm:90000000kB\n"
)


def test_the_rank_that_is_behind_is_named(tmp_path: Path) -> None:
    """Of ranks 0, 1 and 2 the second never came to the fourth collective."""
    folder = shutil.copytree(DUMPS / "behind", tmp_path / "run")
    (folder / "rank0.log").write_text(GLOO)

    (cause,) = diagnose_files([folder])

    assert cause.rule == "recorder-behind"
    assert "for rank 1, which came no further than 3" in cause.message
    assert "/tmp/train.py:15" in cause.message


@pytest.mark.parametrize(
    ("form", "place"), [("mismatch", " at /tmp/train.py:17"), ("json", ", all_reduce")]
)
def test_ranks_that_called_different_collectives(form: str, place: str) -> None:
    """Rank 1 broadcast where the others reduced; pickles have both lines, JSON has none."""
    (cause,) = diagnose_files([DUMPS / form])

    assert cause.rule == "recorder-mismatch"
    assert f"broadcast on rank 1{place}" in cause.message


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    """What the others waited for has left nothing."""
    folder = shutil.copytree(DUMPS / "behind", tmp_path / "run")
    (folder / "nccl_trace_rank_1").unlink()

    (cause,) = diagnose_files([folder])

    assert "rank 1 left no dump" in cause.message


def test_dumps_of_a_run_that_went_on_are_no_cause(tmp_path: Path) -> None:
    """All collectives that were recorded are complete."""
    for rank in range(2):
        dump = json.loads((DUMPS / "json" / f"trace_rank_{rank}.json").read_text())
        dump["entries"] = [{**entry, "state": "completed"} for entry in dump["entries"][:3]]
        (tmp_path / f"trace_rank_{rank}.json").write_text(json.dumps(dump))

    assert diagnose_files([tmp_path]) == ()


class _Call:
    """A pickle of this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_nothing_in_a_dump_is_called(tmp_path: Path) -> None:
    """Hostile dumps, cut ones, and JSON of other programs are passed over."""
    made = tmp_path / "made"
    folder = shutil.copytree(DUMPS / "behind", tmp_path / "run")
    (folder / "nccl_trace_rank_7").write_bytes(pickle.dumps({"entries": [_Call(made)]}, 2))
    (folder / "nccl_trace_rank_8").write_bytes((folder / "nccl_trace_rank_0").read_bytes()[:200])
    (folder / "other_rank_9.json").write_text('{"entries": [1, {"collective_seq_id": "x"}]}')
    (folder / "other_rank_10.json").write_text("{" * 100_000)

    causes = diagnose_files([folder])

    assert [cause.rule for cause in causes] == ["recorder-behind"]
    assert not made.exists()


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ("123456     train  gpu  project  64 OUT_OF_ME+    0:125\n", "slurm-host-memory"),
        ("123456     train  gpu  project  64    TIMEOUT      0:0\n", "slurm-time-limit"),
        ("123456     train  gpu  project  64  NODE_FAIL      1:0\n", "slurm-preempted"),
        ("123456|train|PREEMPTED|0:0|\n", "slurm-preempted"),
        ("123456.0   train       project  64     FAILED      1:0\n", "slurm-job-failed"),
    ],
)
def test_the_table_of_slurm_is_read(tmp_path: Path, row: str, rule: str) -> None:
    """The state of a job that did not end well, in columns or with bars."""
    (tmp_path / "sacct.csv").write_text(ACCOUNT + row)

    assert diagnose_files([tmp_path])[0].rule == rule


def test_the_kernel_log_says_who_was_killed(tmp_path: Path) -> None:
    """A rank's log ends with signal 9; the log of the kernel beside it has the reason."""
    (tmp_path / "rank0.log").write_text("exits with return code = -9\n")
    (tmp_path / "dmesg").write_text(KILLED)

    assert diagnose_files([tmp_path])[0].rule == "kernel-oom"


class OddError(Exception):
    """No rule knows it."""


def test_an_unknown_error_under_a_failed_run_says_so() -> None:
    """Where no rule knows the error, the lines under the run say that, and where to start."""
    try:
        raise OddError("the flange has no sprocket")  # noqa: TRY301
    except OddError as error:
        lines = shortly(diagnose_error(error))

    assert lines[0].startswith("cause: not known; ")
    assert any("test_run_folders.py" in line for line in lines)
    assert any("search for: OddError the flange has no sprocket" in line for line in lines)
    assert shortly(diagnose_text("exits with return code = 3")) == []
