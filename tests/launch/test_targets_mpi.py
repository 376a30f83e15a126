"""MPI launchers and `deepspeed --no_ssh`, started for real: two ranks of `dsforge train`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import hosts
import pytest
import runs
from target_runs import ENGINES, generated, is_whole, slow

pytestmark = [pytest.mark.launch, pytest.mark.engine]

PROGRAMS = {"openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich", "intel-mpi": "mpirun.mpich"}


def named_mpirun(folder: Path, program: str) -> str:
    """A PATH on which this MPI's mpirun is `mpirun`; skips where it is not installed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (apt-get install openmpi-bin mpich)")
    folder.mkdir()
    script = folder / "mpirun"  # not a link: Hydra looks for its proxy beside itself
    script.write_text(f'#!/bin/sh\nexec {found} "$@"\n')
    script.chmod(0o755)
    return f"{folder}:{runs.environment()['PATH']}"


CASES = [(name, engine) for name in ("openmpi", "mpich") for engine in ENGINES]
TELLING = {("openmpi", "fsdp2"), ("mpich", "deepspeed"), ("intel-mpi", "deepspeed")}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(*case, marks=[] if case in TELLING else pytest.mark.slow)
        for case in (*CASES, ("intel-mpi", "deepspeed"))
    ],
)
def test_mpirun_starts_the_ranks_of_the_plan(
    name: str, engine: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """Both ranks meet as one job: world size, steps and losses are the plan's."""
    path = named_mpirun(tmp_path / "bin", PROGRAMS[name])
    run = generated(tmp_path, tiny_llama, name, engine=engine)
    variables = {"PATH": path, "MASTER_PORT": str(runs.free_port())}
    runs.succeeded([f"for/{name}/launch.sh"], run, **variables)

    is_whole(run, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rank_that_fails_is_a_failed_launch(name: str, tiny_llama: Path, tmp_path: Path) -> None:
    """The launch does not end with code 0 where its ranks could not train."""
    path = named_mpirun(tmp_path / "bin", PROGRAMS[name])
    run = generated(tmp_path, tiny_llama, name)
    (tmp_path / "data.jsonl").write_text("[]\n")
    variables = {"PATH": path, "MASTER_PORT": str(runs.free_port())}
    done = runs.finished([f"for/{name}/launch.sh"], run, **variables)

    assert done.returncode != 0, done.stdout[-2000:]
    assert "data.jsonl" in done.stdout + done.stderr


def test_ranks_without_a_meeting_place_refuse(tiny_llama: Path, tmp_path: Path) -> None:
    """`mpirun python -m dsforge.train` says what is missing, and nobody trains alone."""
    program = shutil.which("mpirun.openmpi")
    if program is None:
        pytest.skip("mpirun.openmpi is not installed (apt-get install openmpi-bin)")
    run = generated(tmp_path, tiny_llama)
    words = [
        program,
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        *runs.alone("train.yaml"),
    ]
    done = runs.finished(words, run)

    assert done.returncode == 1
    assert "Open MPI started 2 ranks without MASTER_ADDR and MASTER_PORT" in done.stderr
    assert not (run / "output/metrics.jsonl").exists()


@pytest.mark.hosts
def test_two_hosts_without_ssh(two_hosts: hosts.Hosts, tiny_llama: Path, tmp_path: Path) -> None:
    """Each host starts its own rank; nothing logs in anywhere."""
    listed = [{"address": address, "slots": 1} for address in two_hosts.addresses]
    on = {"nodes": 2, "gpus_per_node": 1, "hosts": listed, "interface": hosts.INTERFACE}
    run = generated(tmp_path, tiny_llama, "deepspeed-no-ssh", **on)
    nodes = []
    try:
        for rank, host in enumerate(two_hosts.hosts):
            inside = ["ip", "netns", "exec", host.namespace, "for/deepspeed-no-ssh/launch.sh"]
            variables = runs.environment(NODE_RANK=str(rank))
            nodes.append(subprocess.Popen(inside, cwd=run, env=variables))
        codes = [node.wait(timeout=240) for node in nodes]
    finally:
        two_hosts.end_jobs()

    assert codes == [0, 0]
    is_whole(run, 2)


@pytest.mark.hosts
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"), [("openmpi", "deepspeed"), ("openmpi", "fsdp2"), ("mpich", "deepspeed")]
)
def test_mpirun_reaches_two_hosts(
    name: str, engine: str, two_hosts: hosts.Hosts, tiny_llama: Path, tmp_path: Path
) -> None:
    """Mpirun logs in over ssh on another port, and the ranks of both hosts are one job."""
    path = named_mpirun(tmp_path / "bin", PROGRAMS[name])
    listed = [{"address": address, "slots": 1} for address in two_hosts.addresses]
    on = {"nodes": 2, "gpus_per_node": 1, "hosts": listed, "interface": hosts.INTERFACE}
    run = generated(tmp_path, tiny_llama, name, engine=engine, ssh_port=hosts.SSH_PORT, **on)
    variables = {"PATH": f"{two_hosts.bin}:{path}", "OMP_NUM_THREADS": "1"}
    words = (f"for/{name}/launch.sh",)
    done = two_hosts.run(words, timeout_s=240, cwd=run, environment=variables)

    assert done.code == 0, done.tail
    is_whole(run, 2)


@pytest.mark.parametrize("engine", ["fsdp2", *slow("deepspeed", "ddp")])
def test_accelerate_launch(engine: str, tiny_llama: Path, tmp_path: Path) -> None:
    """`accelerate launch` starts the ranks of the plan with its config."""
    run = generated(tmp_path, tiny_llama, "accelerate", engine=engine)
    config = run / "for/accelerate/accelerate.yaml"
    port = f"main_process_port: {runs.free_port()}"
    config.write_text(config.read_text().replace("main_process_port: 29500", port))
    words = [str(runs.BIN / "accelerate"), "launch", "--config_file", str(config)]
    runs.succeeded([*words, "-m", "dsforge.train", "train.yaml"], run, ACCELERATE_USE_CPU="1")

    is_whole(run, 2)
