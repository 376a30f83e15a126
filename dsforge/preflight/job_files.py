"""The job to be launched, read from the run folder and the calling shell; nothing is judged here.

A run folder of `dsforge gen` says most; for any other folder the hostfile, `ds_config.json` and
`.deepspeed_env` are enough. Inside a Slurm or MPI job the scheduler names the hosts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsforge.errors import DsforgeError, Problem, SpecError
from dsforge.findings import Finding
from dsforge.hostfile import Entry, entry_problems, hostfile_entries
from dsforge.lint.files import Against, checked, read_document, release_named
from dsforge.origin import MODULE, install_elsewhere
from dsforge.outside import UnreadableError, json_value, read_bytes
from dsforge.plan import Plan
from dsforge.preflight.case import EXPORTED_PREFIXES, Job
from dsforge.preflight.checks.environment import RANK_VARIABLES
from dsforge.specs import ClusterSpec

MASTER_PORT = 29500  # deepspeed.constants.TORCH_DISTRIBUTED_DEFAULT_PORT
PORTS = range(1, 65536)
ENGINE, TRAINER = ("torch", "deepspeed"), (MODULE, "transformers")
CONFIG, TRAIN = "ds_config.json", "train.yaml"
SCRIPTS = ("launch/deepspeed.sh", "launch/torchrun.sh", "megatron/pretrain.sh")  # name the master
MAX_BYTES = 4 << 20
MAX_HOSTS = 4096
MAX_LIST = 10_000
LOCAL = "localhost"
UNLISTED = ("--local", "this machine", "SLURM_JOB_NODELIST")  # places of hosts without a hostfile
# `node[01-03,07],gpu5`: a prefix, and one list of numbers and ranges.
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_GROUP = re.compile(
    rf"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[({_RANGE.pattern}(?:,{_RANGE.pattern})*)\])?"
)
_SPLIT = re.compile(r",(?![^\[]*\])")  # commas outside of brackets
_SHEBANG = re.compile(rb"#!\s*(/\S*python\S*)")


def read_job(folder: Path, *, hostfile: Path | None = None, local: bool = False) -> Job:
    """The job in a run folder. Raises DsforgeError where it holds nothing to launch."""
    folder = folder.resolve()
    plan = _plan(folder)
    config, trains = _config(folder), (folder / TRAIN).is_file()
    given = hostfile or folder / "hostfile"
    if not (plan or trains or (folder / config).is_file() or given.is_file() or local):
        message = f"{folder} contains neither a run of `dsforge gen` nor a hostfile nor {CONFIG}"
        raise DsforgeError(message, "give the run folder: dsforge preflight RUN")
    environment = dict(os.environ)
    slurm = not local and not given.is_file() and bool(scheduled(environment))
    if slurm and shutil.which("srun") is None:
        message = "SLURM_JOB_NODELIST is set, but `srun` is not on the PATH"
        raise DsforgeError(
            message, "run on a node with srun, write a hostfile for ssh, or use --local"
        )
    return Job(
        folder=folder,
        interpreter=launcher_interpreter(),
        packages=_packages(plan, trains=trains),
        files=tuple(name for name in (config, TRAIN) if (folder / name).is_file()),
        entries=_entries(given, plan, environment, local=local),
        plan=plan,
        ds_config=_json(folder / config),
        env_lines=_lines(folder / ".deepspeed_env"),
        environment={
            n: v
            for n, v in environment.items()
            if n.startswith((*RANK_VARIABLES, *EXPORTED_PREFIXES))
        },
        master_port=_port(environment.get("MASTER_PORT", "")),
        ssh=ssh_options(plan.cluster if plan else None, environment),
        trains_here=trains,
        names_master=any((folder / script).is_file() for script in SCRIPTS),
        home_lines=_lines(Path.home() / ".deepspeed_env"),
        local=local,
        slurm=slurm,
        own_install=install_elsewhere(launcher_interpreter()),
        keeps_port=bool(environment.get("MASTER_PORT")),
    )


def _packages(plan: Plan | None, *, trains: bool) -> tuple[str, ...]:
    """What every host must have installed; Megatron-LM is a checkout, and needs torch alone."""
    if plan is not None and plan.strategy.back_end == "megatron":
        return ENGINE[:1]
    return (*ENGINE, *(TRAINER if trains else ()))


def file_findings(folder: Path, hostfile: Path | None) -> tuple[Finding, ...]:
    """The errors that `dsforge lint` finds in the files that will be launched."""
    folder = folder.resolve()
    names = [folder / name for name in (_config(folder), TRAIN, ".deepspeed_env")]
    paths = [path for path in (*names, hostfile or folder / "hostfile") if path.is_file()]
    against = Against(*release_named(None))
    return tuple(
        Finding(
            finding.rule,
            "error",
            f"{Path(finding.file).name}:{finding.line}: {finding.message}",
            finding.fix,
        )
        for path in paths
        for finding in checked(read_document(path, KINDS.get(path.name)), against)
        if finding.severity == "error"
    )


def launcher_interpreter() -> str:
    """The interpreter of the `deepspeed` on PATH, which it calls on every host; else this one."""
    found = shutil.which("deepspeed")
    if found:
        with Path(found).open("rb") as script:
            shebang = _SHEBANG.match(script.read(4096))
        if shebang:
            return shebang[1].decode(errors="replace")
    return sys.executable


def ssh_options(cluster: ClusterSpec | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Options of ssh as the launch script and pdsh give them: port, user, and what is appended."""
    appended = environment.get("PDSH_SSH_ARGS_APPEND", "")
    try:
        options = shlex.split(appended)
    except ValueError as error:
        message = f"PDSH_SSH_ARGS_APPEND (={appended[:60]!a}) cannot be split into words: {error}"
        raise DsforgeError(message, "close its quotes") from error
    if cluster is not None:
        options += ["-l", cluster.ssh_user] if cluster.ssh_user else []
        options += ["-p", str(cluster.ssh_port)]
    return tuple(options)


def scheduled(environment: Mapping[str, str]) -> tuple[Entry, ...]:
    """The hosts that Slurm gave to this job; none outside of one. Raises SpecError."""
    listed = environment.get("SLURM_JOB_NODELIST", "")
    if not listed:
        return ()
    slots = re.match(r"\d+", environment.get("SLURM_GPUS_ON_NODE", ""))
    entries = [
        Entry(name, int(slots[0]) if slots else 1, "SLURM_JOB_NODELIST") for name in nodes(listed)
    ]
    problems = entry_problems(entries)
    if problems:
        raise SpecError(tuple(problems))
    return tuple(entries)


def nodes(text: str) -> list[str]:
    """The names in a node list of Slurm: `n[01-03],m1` is n01, n02, n03, m1. Raises SpecError."""
    found: list[str] = []
    for group in _SPLIT.split(text[:MAX_LIST]) if text else []:
        match = _GROUP.fullmatch(group) if len(text) <= MAX_LIST else None
        if match is None:
            message = f"node list of Slurm (={text[:60]!a}) cannot be read"
            raise SpecError((Problem("slurm-nodes", message, "write a hostfile"),))
        prefix, ranges = match[1], match[2]
        for first, last in _RANGE.findall(ranges or ""):
            numbers = range(int(first), min(int(last or first), int(first) + MAX_HOSTS) + 1)
            found += [f"{prefix}{number:0{len(first)}d}" for number in numbers]
        found += [] if ranges else [prefix]
    return found[:MAX_HOSTS]


def _entries(
    hostfile: Path, plan: Plan | None, environment: Mapping[str, str], *, local: bool
) -> tuple[Entry, ...]:
    """Hosts by the hostfile, else by the scheduler, else this machine.

    None where the hostfile is wrong: what is wrong is among the findings then.
    """
    slots = plan.cluster.gpus_per_node if plan else 1
    if local:
        return (Entry(LOCAL, slots, "--local"),)
    mpi = environment.get("OMPI_MCA_orte_default_hostfile", "")  # Kubeflow's MPI operator
    for path in (hostfile, Path(mpi or "/nonexistent")):
        if path.is_file():
            try:
                return tuple(hostfile_entries(_text(path), str(path)))
            except SpecError:
                return ()
    return scheduled(environment) or (Entry(LOCAL, slots, "this machine"),)


def _plan(folder: Path) -> Plan | None:
    """The plan of the folder, where it has one. Raises DsforgeError where it cannot be read."""
    from dsforge.reading.stored import read_plan

    path = folder / "plan.json"
    return read_plan(path) if path.is_file() else None


def _config(folder: Path) -> str:
    """The name of the ds_config that train.yaml names, else the usual one."""
    path = folder / TRAIN
    named = read_document(path, "train").root.get("deepspeed_config") if path.is_file() else None
    inside = isinstance(named, str) and not named.startswith("/") and "\0" not in named
    return str(named) if inside else CONFIG


def _json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none, which lint reports."""
    try:
        value = json_value(_text(path))
    except UnreadableError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(path: Path) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return read_bytes(path, MAX_BYTES).decode("utf-8", errors="replace")
    except UnreadableError:
        return ""


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(_text(path).splitlines())


def _port(text: str) -> int:
    """The master port. Raises DsforgeError."""
    if not text:
        return MASTER_PORT
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) not in PORTS:
        raise DsforgeError(f"MASTER_PORT (={text[:40]!a}) is not a port", "a number up to 65535")
    return int(text)


KINDS: dict[str, Any] = {CONFIG: "ds_config", TRAIN: "train"}
