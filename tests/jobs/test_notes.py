"""Notes of jobs are read like a stranger's files, and what is refused is refused in words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import dsforge
from dsforge.diagnose.rulebook import rulebook
from dsforge.errors import DsforgeError
from dsforge.jobs import PLACES, keeper, kubernetes, slurm, ssh
from dsforge.jobs.curable import CURABLE, is_curable
from dsforge.jobs.job import NOTE, Job
from dsforge.jobs.keeper import LOG, STATE, log_part
from dsforge.jobs.place import Death

CLUSTER = {"gpu": "a100-80gb", "nodes": 1, "gpus_per_node": 2}
GOOD: dict[str, Any] = {
    "place": "slurm",
    "id": "12",
    "script": "launch/slurm.sbatch",
    "submitted_at": 1.0,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with data."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    work = {"data": {"train": str(data)}}
    dsforge.gen("gpt2", CLUSTER, workload=work, out=tmp_path / "run", targets=("kubernetes",))
    return tmp_path / "run"


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "--all"},
        {"id": "1; rm -rf /"},
        {"id": ""},
        {"id": "x" * 200},
        {"place": "nowhere"},
        {"script": "../../etc/passwd"},
        {"script": "/etc/passwd"},
        {"namespace": "-n"},
        {"retries": -1},
        {"submitted_at": "NaN"},
        {"host": "h" * 300},
        {"schema_version": 2},
    ],
)
def test_a_hostile_note_is_refused(changed: dict[str, Any], run: Path) -> None:
    """Nothing of it reaches a command."""
    (run / NOTE).write_text(json.dumps(GOOD | changed))

    for ask in (dsforge.status, dsforge.cancel):
        with pytest.raises(DsforgeError, match="not a note of dsforge"):
            ask(run)


def test_a_note_that_is_no_file_is_refused(run: Path) -> None:
    """A pipe, a huge file and broken JSON do not hang or fill the memory."""
    os.mkfifo(run / NOTE)
    with pytest.raises(DsforgeError, match="not a note"):
        dsforge.status(run)
    (run / NOTE).unlink()
    for text in ("{", "[]", " " * (1 << 17), "null"):
        (run / NOTE).write_text(text)
        with pytest.raises(DsforgeError, match="not a note"):
            dsforge.status(run)


def test_the_host_of_a_note_cannot_be_an_option(run: Path) -> None:
    """`-oProxyCommand=...` is no host."""
    for host in ("-oProxyCommand=touch /tmp/x", "a b", "$(id)", "me@host", ""):
        (run / NOTE).write_text(json.dumps(GOOD | {"place": "ssh", "host": host}))
        with pytest.raises(DsforgeError):
            dsforge.status(run)


def test_the_log_is_not_followed_as_a_link(run: Path) -> None:
    """A link in place of the log shows nothing of what it names."""
    secret = run.parent / "secret"
    secret.write_text("secret")
    (run / LOG).symlink_to(secret)

    assert log_part(run, 0).text == ""


def test_the_rules_that_a_restart_cures_exist() -> None:
    """Each is a rule of diagnose, and none is a mistake of the user."""
    rules = rulebook(with_plan=True)

    assert set(rules) >= CURABLE
    assert not {"cuda-out-of-memory", "config-json", "data-files-missing", "kernel-oom"} & CURABLE


@pytest.mark.parametrize(
    ("log", "code", "expected"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1, False),
        ("KeyError: 'prompt'", 1, False),
        ("", 1, False),
        ("", 137, True),
        ("ssh: connect to host 10.0.0.2 port 22: Connection timed out", 255, True),
    ],
)
def test_what_a_restart_cures(log: str, code: int, *, expected: bool) -> None:
    """Machines that are gone; not memory, and not mistakes."""
    assert is_curable(log, code)[0] is expected


def test_submit_checks_the_files_first(run: Path) -> None:
    """A config that would fail is refused before anything is started."""
    config = run / "deepspeed/ds_config.json"
    values = json.loads(config.read_text())
    values["zero_optimization"]["stage"] = 5
    config.write_text(json.dumps(values))

    with pytest.raises(DsforgeError, match="would not start"):
        dsforge.submit(run)
    assert not (run / STATE).exists()
    assert not (run / NOTE).exists()


def test_submit_refuses_what_the_place_cannot_do(run: Path, tmp_path: Path) -> None:
    """Resume without a checkpoint, a folder that is none."""
    with pytest.raises(DsforgeError, match="no checkpoint"):
        dsforge.submit(run, resume=True)
    with pytest.raises(DsforgeError, match="not a folder"):
        dsforge.submit(tmp_path / "nothing")
    with pytest.raises(DsforgeError, match="must be one of local, ssh, slurm, kubernetes"):
        dsforge.submit(run, on="moon")  # type: ignore[arg-type]


def test_places_are_those_of_the_note() -> None:
    """Each place can be noted, and the other way round."""
    assert set(PLACES) == set(Job.model_json_schema()["properties"]["place"]["enum"])


def test_slurm_states() -> None:
    """Words of squeue: what is not known to be well has failed."""
    words = {"PENDING": "queued", "RUNNING": "running", "COMPLETED": "finished"}
    words |= {"OUT_OF_MEMORY": "failed", "TIMEOUT": "failed", "NODE_FAIL": "failed"}

    for word, state in words.items():
        assert slurm._seen(word, "", 1).state == state


def test_kubernetes_states() -> None:
    """Conditions of Job, TrainJob, PyTorchJob and MPIJob."""
    true = "True"
    cases = [
        ({"conditions": [{"type": "Complete", "status": true}], "succeeded": 2}, "finished"),
        ({"conditions": [{"type": "Succeeded", "status": true}]}, "finished"),
        ({"conditions": [{"type": "Failed", "status": true, "message": "OOM"}]}, "failed"),
        ({"conditions": [{"type": "Failed", "status": "False"}], "active": 1}, "running"),
        ({"conditions": [{"type": "Running", "status": true}]}, "running"),
        ({}, "queued"),
        ({"conditions": "nonsense"}, "queued"),
    ]
    for status, state in cases:
        assert kubernetes._seen(status).state == state


def test_ssh_takes_the_first_host(run: Path) -> None:
    """The hostfile decides; a line that could be an option is refused."""
    (run / "hostfile").write_text("10.0.0.7 slots=2\n10.0.0.8 slots=2\n")
    assert ssh.first_host(run) == "10.0.0.7"
    for text in ("-oProxyCommand=id slots=2\n", "192.0.2.1 slots=2\n", "", "# nobody\n"):
        (run / "hostfile").write_text(text)
        with pytest.raises(DsforgeError):
            ssh.first_host(run)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], Death()),
        ([{"containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]}], Death(137)),
        ([{"containerStatuses": [{"state": {"terminated": {"exitCode": True}}}]}], Death(1)),
        ([{"reason": "Evicted", "phase": "Failed"}], Death(lost="pod lost: Evicted")),
        (
            [{"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "Gone"}]}],
            Death(lost="pod lost: Gone"),
        ),
        ([None, "x", {"containerStatuses": "x"}, {"conditions": [1]}], Death()),
    ],
)
def test_how_pods_ended(statuses: list[Any], expected: Death) -> None:
    """Nodes that were lost and codes of containers, also of an answer that is no status."""
    assert kubernetes._death(statuses) == expected


def test_memory_of_a_pod_is_hopeless_whatever_else_it_says() -> None:
    """A container that the kernel ended for its memory ends again after a restart."""
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    status = {"reason": "Evicted", "containerStatuses": [{"state": killed}]}

    assert "host memory" in kubernetes._death([status]).hopeless


def test_every_place_starts_runs_again() -> None:
    """By its own keeper, or by a follower that is told how a job ended."""
    kept = {name for name, place in PLACES.items() if place.death is None}

    assert kept == {"local", "ssh"}


@pytest.mark.parametrize(
    ("engine", "targets", "expected"),
    [
        ({"back_end": "deepspeed"}, (), "launch/deepspeed.sh"),
        ({"program": "torch"}, ("mpich",), "for/mpich/launch.sh"),
        ({"program": "torch"}, ("kubernetes",), None),
        ({"back_end": "megatron"}, (), None),
    ],
)
def test_several_hosts_need_a_script_that_starts_all(
    engine: dict[str, Any],
    targets: tuple[str, ...],
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torchrun starts one host: the error says so before anything is started."""
    monkeypatch.delenv("NODE_RANK", raising=False)
    on, run = {**CLUSTER, "nodes": 2, "inter_node": "ib-hdr"}, tmp_path / "run"
    work = {"sequence_length": 512, "global_batch_size": 16}
    dsforge.gen("gpt2", on, work, strategy=engine, out=run, targets=targets)
    if expected is not None:
        assert keeper.start_script(run) == expected
        return
    with pytest.raises(DsforgeError, match="starts the ranks of one host, and the plan has 2"):
        keeper.start(run, 0)
    assert not (run / STATE).exists()
    monkeypatch.setenv("NODE_RANK", "0")
    assert keeper.start_script(run).endswith(("torchrun.sh", "pretrain.sh"))
