"""`--on kubernetes` with the real kubectl, against a small server in place of the API server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api_server import Api, api_server

import dsforge
from dsforge.errors import DsforgeError
from dsforge.jobs import follower
from dsforge.jobs.job import LOG, NOTE
from dsforge.jobs.keeper import STATE, is_kept, read_state

CLUSTER = {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 8, "inter_node": "ib-hdr"}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The server that kubectl asks; skips where there is no kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    with api_server(tmp_path) as (server, config):
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setenv("HOME", str(tmp_path))  # its cache of discovery
        yield server


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the manifest."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    dsforge.gen(
        "gpt2",
        CLUSTER,
        workload={"data": {"train": str(data)}},
        strategy={"back_end": "deepspeed"},
        out=tmp_path / "run",
        targets=("kubernetes",),
    )
    return tmp_path / "run"


def test_a_job_from_apply_to_delete(api: Api, run: Path) -> None:
    """Kubectl takes our words: service and job are made, watched, read and deleted."""
    made = dsforge.submit(run, on="kubernetes", namespace="train")
    path = f"/apis/batch/v1/namespaces/train/jobs/{made.job.id}"
    assert set(api.stored) == {path, f"/api/v1/namespaces/train/services/{made.job.id}"}
    assert dsforge.status(run).state == "queued"

    api.stored[path]["status"] = {"active": 2}
    assert dsforge.status(run).state == "running"
    with pytest.raises(DsforgeError, match="running already"):
        dsforge.submit(run, on="kubernetes", namespace="train")
    assert "".join(dsforge.logs(run)) == "[pod/pod-0/dsforge] step 1/2\n"

    api.log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    failed = {"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"}
    api.stored[path]["status"] = {"conditions": [failed]}
    found = dsforge.status(run)
    assert (found.state, found.reason) == ("failed", "BackoffLimitExceeded")
    assert found.causes[0].rule == "cuda-out-of-memory"

    api.stored[path]["status"] = {"active": 2}
    dsforge.cancel(run)
    assert api.stored == {}
    assert dsforge.status(run).state == "cancelled"
    asked = [each for each in api.requests if "/pods?" in each]
    assert all(f"labelSelector=job-name%3D{made.job.id}" in each for each in asked)


def test_no_answer_is_an_error_in_words(api: Api, run: Path) -> None:
    """A server that is gone is a message, not a traceback, and nothing is noted as started."""
    api.shutdown()
    api.server_close()

    with pytest.raises(DsforgeError, match="kubectl get"):
        dsforge.submit(run, on="kubernetes")
    with pytest.raises(DsforgeError, match="nothing was submitted"):
        dsforge.status(run)


LOST = (
    "[rank0]:[E ProcessGroupNCCL.cpp:475] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600029 milliseconds before timing out.\n"
)
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"}]}


def waited(run: Path, wanted: Callable[[dsforge.StatusDocument], bool]) -> dsforge.StatusDocument:
    """The first status that is as wanted."""
    end = time.monotonic() + 60
    while not wanted(found := dsforge.status(run)):
        assert time.monotonic() < end, (found.state, found.reason, (run / LOG).read_text())
        time.sleep(0.3)
    return found


@pytest.mark.parametrize("log", [LOST, MEMORY], ids=["timeout", "memory"])
def test_retries_submit_again_what_a_restart_cures(log: str, api: Api, run: Path) -> None:
    """A collective that timed out is cured, once as asked; memory is not."""
    made = dsforge.submit(run, on="kubernetes", namespace="train", retries=1)
    path = f"/apis/batch/v1/namespaces/train/jobs/{made.job.id}"
    try:
        waited(run, lambda _: (run / STATE).exists())
        api.log = log
        api.stored[path]["status"] = FAILED
        if log == LOST:
            assert waited(run, lambda found: found.attempt == 2).state == "queued"
            assert "status" not in api.stored[path]  # another job of the same name
            api.stored[path]["status"] = FAILED
        found = waited(run, lambda found: found.state == "failed")
    finally:
        follower.stop(run)

    deleted = [each for each in api.requests if each.startswith(f"DELETE {path}")]
    assert len(deleted) == (1 if log == LOST else 0)
    expected = "after 2 of 2 starts" if log == LOST else "GPU memory ran out"
    assert expected in found.reason, found


def test_a_cancelled_job_is_not_submitted_again(api: Api, run: Path) -> None:
    """`cancel` ends the follower first; nothing is left of the job."""
    dsforge.submit(run, on="kubernetes", namespace="train", retries=5)
    waited(run, lambda _: (run / STATE).exists())
    state = read_state(run)
    assert state is not None
    assert is_kept(state)
    dsforge.cancel(run)

    assert not is_kept(state)
    assert api.stored == {}
    assert dsforge.status(run).state == "cancelled"


def test_what_runs_under_the_name_already_is_left_alone(api: Api, run: Path) -> None:
    """A job that somebody applied by hand is refused; one that has ended is replaced."""
    name = dsforge.submit(run, on="kubernetes", namespace="train").job.id
    path = f"/apis/batch/v1/namespaces/train/jobs/{name}"
    (run / NOTE).unlink()
    api.stored[path]["status"] = {"active": 2}
    with pytest.raises(DsforgeError, match="running in the cluster already"):
        dsforge.submit(run, on="kubernetes", namespace="train")
    api.stored[path]["status"] = FAILED
    dsforge.submit(run, on="kubernetes", namespace="train")

    assert dsforge.status(run).state == "queued"
