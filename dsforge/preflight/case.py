"""The input of a check (`Case`), and the decorator that registers it.

A check is a pure function from a `Case` to `Hit`s. The decorator `check` puts its id, severity,
column of the table and reason above it. `error`: the job will not start, or it will hang or stop.
`warning`: it runs, but slower than it could, or only by luck. `info`: worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from dsforge.ds_config import DsConfig, read
from dsforge.findings import Find, Rule, Severity, rule
from dsforge.hostfile import Entry
from dsforge.plan import Plan
from dsforge.preflight.host_facts import Call, HostFacts, Listening, Stream

Column = Literal[
    "ssh",
    "config",
    "python",
    "folder",
    "devices",
    "clock",
    "network",
    "env",
    "memory",
    "disk",
    "ops",
]
COLUMNS: tuple[Column, ...] = get_args(Column)


class Job(NamedTuple):
    """What will be launched, according to the run folder and the calling shell."""

    folder: Path
    interpreter: str
    packages: tuple[str, ...]
    files: tuple[str, ...]
    entries: tuple[Entry, ...]
    plan: Plan | None
    ds_config: dict[str, Any]
    env_lines: tuple[str, ...]
    environment: dict[str, str]
    master_port: int
    ssh: tuple[str, ...]  # options of the launcher's ssh
    trains_here: bool  # with `dsforge train`, which finds ninja beside the interpreter
    names_master: bool  # the run folder has the launch script, which passes --master_addr
    home_lines: tuple[str, ...] = ()  # of ~/.deepspeed_env
    local: bool = False  # one host of the job looks at itself
    slurm: bool = False  # the hosts are Slurm's, and reached with srun
    own_install: str = ""  # how dsforge itself is installed on a host
    keeps_port: bool = False  # MASTER_PORT is set, and no launch takes another port

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks are CPU ranks."""
        if self.plan is not None:
            return self.plan.cluster.gpu.is_cpu
        alone = self.environment if len(self.entries) == 1 else {}  # and read by the ranks there
        return {**self.file_variables, **alone}.get("DS_ACCELERATOR") == "cpu"

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return sum(entry.slots for entry in self.entries)

    @property
    def file_variables(self) -> dict[str, str]:
        """Variables of `.deepspeed_env`, split as the launcher splits them."""
        pairs = (line.partition("=") for line in self.env_lines if "=" in line)
        return {name: value for name, _, value in pairs if not name.lstrip().startswith("#")}

    @property
    def exported(self) -> dict[str, str]:
        """Variables that the launcher exports on hosts; `.deepspeed_env` overrides the shell."""
        names = EXPORTED_PREFIXES if self.on_cpu else (*EXPORTED_PREFIXES, "NCCL")
        shell = {n: v for n, v in self.environment.items() if n.startswith(names)}
        return {**shell, **self.file_variables}

    @property
    def config(self) -> DsConfig:
        """The ds_config as far as it can be read; `lint` reports what is wrong with it."""
        return read(self.ds_config).config


# EXPORT_ENVS of DeepSpeed's launcher/runner.py; its CUDA accelerator adds NCCL.
EXPORTED_PREFIXES = ("MLFLOW", "PYTHON", "MV2", "UCX")


class Clock(NamedTuple):
    """Offset of a host's clock from this one's, and its uncertainty, in seconds."""

    ahead_s: float
    error_s: float


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Case(NamedTuple):
    """The job, and what was collected from each host and each pair of hosts, by address."""

    job: Job
    hosts: Mapping[str, HostFacts]
    lost: Mapping[str, str] = NOTHING  # hosts without facts, and what ssh said
    clocks: Mapping[str, Clock] = NOTHING
    listening: Mapping[str, Listening] = NOTHING
    calls: Mapping[str, tuple[Call, ...]] = NOTHING
    streams: Mapping[str, Stream] = NOTHING
    left: Mapping[str, tuple[str, ...]] = NOTHING  # build locks, where stale ones were removed

    @property
    def first(self) -> str:
        """The address of the host with rank 0."""
        return self.job.entries[0].address if self.job.entries else ""


def check(
    name: str, column: Column, severity: Severity, *, why: str
) -> Callable[[Find[Case]], Rule[Case]]:
    """Decorator that registers a function as a check; `column` is its column in the table."""
    return rule(name, severity, column, why=why)


def by_value(values: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Hosts grouped by value, the most common value first; ties keep the order of hosts."""
    groups: dict[str, tuple[str, ...]] = {}
    for host, value in values.items():
        groups[value] = (*groups.get(value, ()), host)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
