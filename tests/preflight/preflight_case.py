"""A healthy job on two GPU hosts with InfiniBand, as data, for tests to spoil."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plans

from dsforge import catalog
from dsforge.findings import Finding
from dsforge.hostfile import Entry
from dsforge.preflight.case import Case, Clock, Job
from dsforge.preflight.host_facts import Call, HostFacts, Listening, Stream
from dsforge.preflight.registry import findings
from dsforge.units import GIB

FIRST, SECOND = "10.0.0.1", "10.0.0.2"
PYTHON = "/opt/env/bin/python"
CARD = {
    "name": "NVIDIA A100-SXM4-80GB",
    "memory_bytes": 80 * GIB,
    "driver": "560.35.03",
    "ecc_errors": 0,
    "throttle": 0,
}
PORT = {"name": "mlx5_0", "is_active": True, "is_ethernet": False, "gbit_per_s": 400.0}
PACKAGES = {
    name: {"version": version, "origin": f"/opt/env/lib/{name}/__init__.py"}
    for name, version in (
        ("torch", "2.8.0"),
        ("deepspeed", "0.18.2"),
        ("dsforge", "0.1.0"),
        ("transformers", "5.1.0"),
    )
}
FACTS: dict[str, Any] = {
    "host_name": "node1",
    "name_address": FIRST,
    "addresses": [FIRST],
    "interfaces": [
        {"name": "eth0", "addresses": [FIRST], "mtu": 1500, "mac": "02:01", "is_default": True}
    ],
    "infiniband": [PORT],
    "gpus": [CARD] * 8,
    "gpu_note": "",
    "cpu_cores": 64,
    "memory_bytes": 1000 * GIB,
    "shm_free_bytes": 500 * GIB,
    "tmp_free_bytes": 100 * GIB,
    "memlock_bytes": -1,
    "open_files": 65536,
    "interpreter": {
        "path": PYTHON,
        "exists": True,
        "error": "",
        "version": "3.11.9",
        "packages": PACKAGES,
        "nccl": "2.27.3",
        "cuda": "12.8",
        "tag": "py311",
        "headers": "/usr/include/python3.11",
    },
    "folder": {
        "exists": True,
        "is_writable": True,
        "free_bytes": 1000 * GIB,
        "files": {"ds_config.json": "a1", "train.yaml": "b2"},
    },
    "environment": {},
    "tools": {
        "compiler": "/usr/bin/c++",
        "compiler_works": True,
        "ninja": "",
        "ninja_beside": "/opt/env/bin/ninja",
        "nvcc": "/usr/local/cuda/bin/nvcc",
        "nvcc_release": "12.8",
        "has_python_headers": True,
        "has_libaio": True,
    },
    "builds": {
        "root": "/root/.cache/torch_extensions/py311_cu128",
        "ops": ["fused_adam"],
        "locks": [],
        "free_bytes": 100 * GIB,
    },
    "nvme": None,
}
CONFIG = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2},
}
PLAN = plans.plan(
    on=plans.cluster(inter_node=catalog.link("infiniband-400"), hosts=plans.HOSTS, interface="eth0")
)
ETHERNET = plans.plan(on=plans.CLUSTERS["two-nodes"])
JOB = Job(
    folder=Path("/data/run"),
    interpreter=PYTHON,
    packages=("torch", "deepspeed", "dsforge", "transformers"),
    files=("ds_config.json", "train.yaml"),
    entries=(Entry(FIRST, 8, "hostfile:1"), Entry(SECOND, 8, "hostfile:2")),
    plan=PLAN,
    ds_config=CONFIG,
    env_lines=("NCCL_SOCKET_IFNAME=eth0",),
    environment={},
    master_port=29500,
    ssh=("-p", "22"),
    trains_here=True,
    names_master=True,
    own_install="`/opt/env/bin/python -m pip install '/opt/dsforge[train]'`",
)


def host(address: str = FIRST, **changed: Any) -> HostFacts:
    """One healthy host; a dotted name such as `tools.nvcc` changes a field inside."""
    number = address.rpartition(".")[2]
    values = {
        **FACTS,
        "host_name": f"node{number}",
        "addresses": [address],
        "interfaces": [{**FACTS["interfaces"][0], "addresses": [address], "mac": f"02:0{number}"}],
    }
    for name, value in changed.items():
        outer, _, inner = name.partition("__")
        values[outer] = {**values[outer], inner: value} if inner else value
    return HostFacts.model_validate(values)


def call(peer: str, **changed: Any) -> Call:
    """A call that was answered."""
    other = FIRST if peer == SECOND else SECOND
    values = {"error": "", "interface": "eth0", "source": other, "mtu": 1500, "mtu_passes": True}
    return Call(**{"peer": peer, **values, **changed})


def healthy(job: Job = JOB, **of_second: Any) -> Case:
    """Two healthy hosts; what is named differs on the second."""
    return Case(
        job=job,
        hosts={FIRST: host(FIRST), SECOND: host(SECOND, **of_second)},
        clocks={FIRST: Clock(0.0, 0.01), SECOND: Clock(0.02, 0.01)},
        listening={h: Listening(error="", holder="") for h in (FIRST, SECOND)},
        calls={FIRST: (call(SECOND),), SECOND: (call(FIRST),)},
        streams={
            FIRST: Stream(peer=SECOND, error="", bytes=2 * 10**9, seconds=1.0),
            SECOND: Stream(peer=FIRST, error="", bytes=2 * 10**9, seconds=1.0),
        },
    )


def found(case: Case) -> dict[str, Finding]:
    """The findings of a case by rule."""
    return {finding.rule: finding for finding in findings(case)}
