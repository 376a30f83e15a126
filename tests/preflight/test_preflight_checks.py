"""Each check of preflight on facts: silent on healthy hosts, right about the one that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import preflight_case as make
import pytest
from preflight_case import CARD, CONFIG, ETHERNET, FIRST, JOB, PORT, SECOND

from dsforge.preflight.case import Case, Clock, Job
from dsforge.preflight.checks.network import port_taken
from dsforge.preflight.checks.ops import needed_ops
from dsforge.preflight.host_facts import Listening, Stream
from dsforge.preflight.registry import CHECKS
from dsforge.units import GIB

NVME = {"device": "nvme", "nvme_path": "/local_nvme"}
ON_HOST = {**CONFIG, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
ON_DISK = {**CONFIG, "zero_optimization": {"stage": 3, "offload_optimizer": NVME}}
CPU_JOB = JOB._replace(plan=None, env_lines=("DS_ACCELERATOR=cpu",))
LOCK = {"op": "fused_adam", "path": "/cache/fused_adam/lock", "age_s": 900.0, "is_held": False}


def second(**changed: Any) -> Case:
    """The healthy case with another second host."""
    return make.healthy(**changed)


def job(**changed: Any) -> Job:
    """The healthy job, changed."""
    return JOB._replace(**changed)


def lost(said: str) -> Case:
    """The healthy case without its second host."""
    case = make.healthy()
    return case._replace(hosts={FIRST: case.hosts[FIRST]}, lost={SECOND: said})


def calling(**changed: Any) -> Case:
    """The healthy case in which the first host's call ends otherwise."""
    case = make.healthy()
    return case._replace(calls={**case.calls, FIRST: (make.call(SECOND, **changed),)})


def env(*lines: str, **changed: Any) -> Case:
    """The healthy case with these lines in `.deepspeed_env`."""
    return make.healthy(job(env_lines=lines, **changed))


def packages(**changed: str) -> dict[str, Any]:
    """Packages of which some have another version."""
    return {
        name: {**package, "version": changed.get(name, package["version"])}
        for name, package in make.PACKAGES.items()
    }


def slow() -> Case:
    """100 Gbit/s Ethernet that gives 50 Mbit/s one way."""
    case = make.healthy(job(plan=ETHERNET))
    stream = Stream(peer=SECOND, error="", bytes=6_250_000, seconds=1.0)
    return case._replace(streams={**case.streams, FIRST: stream})


# rule, the case, whom it must name, words of the fix
CASES: tuple[tuple[str, Callable[[], Case], tuple[str, ...], str], ...] = (
    ("ssh-key", lambda: lost("me@10.0.0.2: Permission denied (publickey)."), (SECOND,), "ssh-copy"),
    ("ssh-host-key", lambda: lost("Host key verification failed."), (SECOND,), "ssh-keygen -R"),
    ("host-unknown", lambda: lost("ssh: Could not resolve hostname b"), (SECOND,), "IP address"),
    ("ssh-refused", lambda: lost("connect to host b: Connection refused"), (SECOND,), "ssh_port"),
    ("no-python", lambda: lost("sh: 1: python3: not found"), (SECOND,), "install python3"),
    ("bad-answer", lambda: lost("its answer to facts is not one: junk"), (SECOND,), "--local"),
    ("loud-login", lambda: lost("prints too much output"), (SECOND,), "silent"),
    ("host-down", lambda: lost("No route to host"), (SECOND,), "remove it"),
    (
        "host-same",
        lambda: second(interfaces=[{**make.FACTS["interfaces"][0], "mac": "02:01"}]),
        (FIRST, SECOND),
        "remove one",
    ),
    (
        "clock-skew",
        lambda: make.healthy()._replace(clocks={FIRST: Clock(0, 0), SECOND: Clock(-5, 0.1)}),
        (SECOND,),
        "NTP",
    ),
    ("interpreter-missing", lambda: second(interpreter__exists=False), (SECOND,), make.PYTHON),
    ("interpreter-missing", lambda: second(interpreter__error="bad ELF"), (SECOND,), make.PYTHON),
    ("python-differs", lambda: second(interpreter__version="3.12.1"), (SECOND,), "Python 3.11.9"),
    ("package-missing", lambda: second(interpreter__packages={}), (SECOND,), "torch==2.8.0"),
    (
        "package-differs",
        lambda: second(interpreter__packages=packages(torch="2.7.1")),
        (SECOND,),
        "torch==2.8.0",
    ),
    (
        "package-namesake",
        lambda: second(
            interpreter__packages={
                **make.PACKAGES,
                "dsforge": {**make.PACKAGES["dsforge"], "namesake": "0.1.2"},
            }
        ),
        (SECOND,),
        "pip uninstall dsforge",
    ),
    (
        "package-elsewhere",
        lambda: second(
            interpreter__packages={
                **make.PACKAGES,
                "deepspeed": {"version": "0.18.2", "origin": "/home/me/deepspeed/__init__.py"},
            }
        ),
        (SECOND,),
        "PYTHONPATH",
    ),
    ("cuda-differs", lambda: second(interpreter__cuda="12.6"), (SECOND,), "12.8"),
    ("cuda-differs", lambda: second(interpreter__nccl="2.21.5"), (SECOND,), "2.27.3"),
    ("folder-missing", lambda: second(folder__exists=False), (SECOND,), "rsync"),
    ("folder-missing", lambda: second(folder__is_writable=False), (SECOND,), "write permission"),
    ("files-differ", lambda: second(folder__files={"train.yaml": "b2"}), (SECOND,), "rsync"),
    ("slots-missing", lambda: second(gpus=[CARD] * 4), (SECOND,), "10.0.0.2 slots=4"),
    (
        "slots-unplanned",
        lambda: make.healthy(job(entries=(JOB.entries[0]._replace(slots=4), JOB.entries[1]))),
        (FIRST,),
        "10.0.0.1 slots=8",
    ),
    ("slots-unplanned", lambda: make.healthy(job(entries=JOB.entries[:1])), (FIRST,), "gen"),
    ("cards-differ", lambda: second(gpus=[{**CARD, "name": "V100"}] * 8), (SECOND,), "one kind"),
    ("driver-old", lambda: second(gpus=[{**CARD, "driver": "470.57.02"}] * 8), (SECOND,), "525.60"),
    (
        "ecc-errors",
        lambda: second(gpus=[CARD, {**CARD, "ecc_errors": 2}] + [CARD] * 6),
        (SECOND,),
        "--gpu-reset -i 1",
    ),
    ("throttled", lambda: second(gpus=[{**CARD, "throttle": 0x44}] * 8), (SECOND,), "cooling"),
    (
        "port-taken",
        lambda: make.healthy()._replace(
            listening={FIRST: Listening(error="Address already in use", holder="python (pid 7)")}
        ),
        (FIRST,),
        "MASTER_PORT=29501",
    ),
    ("port-blocked", lambda: calling(error="timed out"), (SECOND,), "let TCP"),
    ("mtu-path", lambda: calling(mtu_passes=False), (FIRST, SECOND), "mtu 1500"),
    (
        "mtu-differs",
        lambda: second(interfaces=[{**make.FACTS["interfaces"][0], "mac": "x", "mtu": 9000}]),
        (FIRST, SECOND),
        "mtu 1500",
    ),
    (
        "first-address",
        lambda: make.healthy()._replace(
            hosts={FIRST: make.host(FIRST, addresses=["172.17.0.1", FIRST])},
            calls={
                FIRST: (make.call(SECOND),),
                SECOND: (make.call(FIRST), make.call("172.17.0.1", error="timed out")),
            },
        ),
        (FIRST,),
        "--master_addr 10.0.0.1",
    ),
    (
        "name-loopback",
        lambda: make.healthy(CPU_JOB, name_address="127.0.1.1", gpus=[]),
        (SECOND,),
        "GLOO_SOCKET_IFNAME=eth0",
    ),
    ("interface-missing", lambda: env("NCCL_SOCKET_IFNAME=ib0"), (FIRST, SECOND), "IFNAME=eth0"),
    (
        "interface-wrong",
        lambda: make.healthy(
            job(env_lines=("NCCL_SOCKET_IFNAME=^eth0",)),
            interfaces=[
                *make.FACTS["interfaces"],
                {**make.FACTS["interfaces"][0], "name": "docker0", "mac": "02:42"},
            ],
        ),
        (SECOND,),
        "IFNAME=eth0",
    ),
    ("rdma-absent", lambda: second(infiniband=[]), (SECOND,), "driver"),
    (
        "rdma-absent",
        lambda: second(infiniband=[{**PORT, "is_active": False}]),
        (SECOND,),
        "ibstat",
    ),
    (
        "rdma-down",
        lambda: second(infiniband=[PORT, {**PORT, "name": "mlx5_1", "is_active": False}]),
        (SECOND,),
        "ibstat",
    ),
    ("rdma-unused", lambda: env("NCCL_IB_DISABLE=1"), (FIRST, SECOND), "NCCL_IB_DISABLE"),
    ("rdma-unknown", lambda: env("NCCL_IB_HCA=mlx4_0:1"), (FIRST, SECOND), "adapters"),
    ("memlock", lambda: second(memlock_bytes=8 << 20), (SECOND,), "memlock unlimited"),
    ("bandwidth", slow, (FIRST, SECOND), "inter_node"),
    (
        "stream-failed",
        lambda: make.healthy()._replace(streams={FIRST: Stream(peer=SECOND, error="timed out")}),
        (FIRST, SECOND),
        "MTU",
    ),
    (
        "env-stays",
        lambda: make.healthy(job(environment={"HF_HOME": "/data/hf"})),
        (FIRST, SECOND),
        "HF_HOME=/data/hf",
    ),
    (
        "env-stays",
        lambda: make.healthy(job(environment={"WANDB_API_KEY": "s3cret"})),
        (FIRST, SECOND),
        "on each host",
    ),
    ("env-home", lambda: make.healthy(job(home_lines=("FI_PROVIDER=efa",))), (FIRST,), "remove it"),
    ("open-files", lambda: second(open_files=256), (SECOND,), "LimitNOFILE"),
    ("memory-limit", lambda: second(memory_bytes=16 * GIB), (SECOND,), "memory limit"),
    ("shm-small", lambda: second(shm_free_bytes=64 << 20), (SECOND,), "--shm-size"),
    ("disk-full", lambda: second(folder__free_bytes=GIB), (SECOND,), "`output`"),
    ("tmp-full", lambda: second(tmp_free_bytes=1 << 20), (SECOND,), "TMPDIR"),
    (
        "nvme-direct",
        lambda: make.healthy(
            job(ds_config=ON_DISK),
            nvme={
                "path": "/local_nvme",
                "exists": True,
                "free_bytes": 1,
                "error": "Invalid argument",
            },
        ),
        (SECOND,),
        "nvme: path",
    ),
    ("op-unbuildable", lambda: second(tools__ninja_beside=""), (SECOND,), "pip install ninja"),
    (
        "op-unbuildable",
        lambda: second(builds__ops=[], tools__nvcc="", tools__nvcc_release=""),
        (SECOND,),
        "CUDA 12.8 toolkit",
    ),
    (
        "op-unbuildable",
        lambda: second(builds__ops=[], tools__nvcc_release="11.8"),
        (SECOND,),
        "CUDA 12.8 toolkit",
    ),
    (
        "op-unbuildable",
        lambda: second(builds__ops=[], interpreter__cuda=""),
        (SECOND,),
        "install a CUDA build of torch",
    ),
    ("op-unbuilt", lambda: second(builds__ops=[]), (SECOND,), "first start"),
    ("op-lock", lambda: second(builds__locks=[LOCK]), (SECOND,), "rm /cache/fused_adam/lock"),
    ("op-building", lambda: second(builds__locks=[{**LOCK, "is_held": True}]), (SECOND,), "finish"),
)


def test_healthy_hosts_have_no_findings() -> None:
    """Two good GPU hosts with InfiniBand: no check says anything."""
    assert make.found(make.healthy()) == {}


@pytest.mark.parametrize(
    ("rule", "case", "hosts", "fix"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_check_names_host_and_fix(
    rule: str, case: Callable[[], Case], hosts: tuple[str, ...], fix: str
) -> None:
    """What is wrong is found on the host where it is wrong, with the way out."""
    finding = make.found(case())[rule]

    assert set(hosts) <= set(finding.hosts)
    assert fix in finding.fix


def test_every_check_has_a_case() -> None:
    """No check stands here without a case that triggers it, `nvme-full` beside its own test."""
    assert {check.id for check in CHECKS} - {case[0] for case in CASES} == {"nvme-full"}
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_disk_for_offload_needs_the_planned_room() -> None:
    """The free bytes of the disk are held against what the plan puts there."""
    on_disk = make.PLAN.choice.memory.model_copy(update={"nvme_bytes": 500 * GIB})
    choice = make.PLAN.choice.model_copy(update={"memory": on_disk})
    plan = make.PLAN.model_copy(update={"choice": choice})
    disk = {"path": "/local_nvme", "exists": True, "free_bytes": 100 * GIB, "error": ""}

    case = make.healthy(job(ds_config=ON_DISK, plan=plan), nvme=disk, tools__has_libaio=False)

    assert "100 GiB free; the plan puts 500 GiB there" in make.found(case)["nvme-full"].message
    assert "libaio" in make.found(case)["op-unbuildable"].message


def test_slow_network_is_priced() -> None:
    """A slow path is named with the measured and the needed rate, and what a step then takes."""
    message = make.found(slow())["bandwidth"].message

    assert "50 Mbit/s from 10.0.0.1 to 10.0.0.2, measured; the plan assumes 100 Gbit/s" in message
    assert "needs 8 Gbit/s" in message
    assert "a step then takes" in message
    assert message.endswith("1 of 2 paths are too slow")


def test_secret_is_never_shown() -> None:
    """The value of a key stays out of message and fix."""
    finding = make.found(make.healthy(job(environment={"WANDB_API_KEY": "s3cret"})))["env-stays"]

    assert "s3cret" not in finding.message + finding.fix


def test_a_removed_lock_is_no_error() -> None:
    """With `--fix` a lock that is gone is told, not counted."""
    case = second(builds__locks=[LOCK])._replace(left={SECOND: ()})

    assert make.found(case)["op-lock"].severity == "info"


@pytest.mark.parametrize(
    ("config", "on_cpu", "names"),
    [
        (CONFIG, False, ["fused_adam"]),
        (CONFIG, True, ["deepspeed_shm_comm", "fused_adam"]),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, False, []),
        (
            {**CONFIG, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            False,
            ["cpu_adam"],
        ),
        (ON_DISK, False, ["cpu_adam", "async_io"]),
        ({"optimizer": {"type": "Lion"}}, False, ["fused_lion"]),
        ({"optimizer": [], "zero_optimization": "no"}, False, []),
    ],
    ids=["gpu", "cpu", "torch-adam", "offload", "nvme", "lion", "malformed"],
)
def test_exactly_the_needed_ops_are_looked_at(
    config: dict[str, Any], on_cpu: bool, names: list[str]
) -> None:
    """The ops follow from optimizer, offload and accelerator as in the engine."""
    asked = (CPU_JOB if on_cpu else JOB)._replace(ds_config=config)

    assert [op.name for op in needed_ops(asked)] == names


def test_launcher_exports_what_travels_and_the_file() -> None:
    """NCCL* and PYTHON* of the shell, then `.deepspeed_env` over them; nothing else."""
    shell = {"NCCL_DEBUG": "INFO", "PYTHONPATH": "/x", "OMP_NUM_THREADS": "4", "HF_HOME": "/y"}
    lines = ("NCCL_DEBUG=WARN", "OMP_NUM_THREADS=8")

    assert job(environment=shell, env_lines=lines).exported == {
        "NCCL_DEBUG": "WARN",
        "PYTHONPATH": "/x",
        "OMP_NUM_THREADS": "8",
    }


def test_ops_are_not_judged_where_torch_is_missing() -> None:
    """That torch is missing is one finding; what follows from it is none, and no empty words."""
    missing = {n: p for n, p in second().hosts[SECOND].interpreter.packages.items() if n != "torch"}
    found = make.found(second(builds__ops=[], interpreter__packages=missing, interpreter__cuda=""))

    assert SECOND not in {
        host for rule, f in found.items() if rule[:3] == "op-" for host in f.hosts
    }
    assert any("torch" in f.message for f in found.values())
    for finding in found.values():
        assert "  " not in f"{finding.message} {finding.fix}"


@pytest.mark.parametrize(
    ("changed", "severity", "fix"),
    [
        ({}, "warning", "take a free port"),
        ({"keeps_port": True}, None, "MASTER_PORT=29501"),
        ({"names_master": False}, None, "MASTER_PORT=29501"),
    ],
    ids=["launch script", "port asked for", "no launch script"],
)
def test_a_port_in_use_stops_only_launches_that_keep_it(
    changed: dict[str, Any], severity: str | None, fix: str
) -> None:
    """The scripts of a run folder take a free one where all ranks are on one host."""
    used = {FIRST: Listening(error="Address already in use", holder="python (pid 7)")}
    alone = JOB._replace(entries=JOB.entries[:1], **changed)
    (hit,) = port_taken.find(make.healthy()._replace(job=alone, listening=used))

    assert hit.severity == severity
    assert fix in hit.fix
    assert "python (pid 7)" in hit.message
