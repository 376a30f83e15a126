"""Plan -> contexts of the hostfile and of the scripts that start the run.

Scripts read the hosts from the hostfile and the environment from `.deepspeed_env` when they run, so
each fact stands in one file. What the plan depends on (nodes, slots) is checked, not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from typing import NamedTuple

from dsforge.errors import RenderError
from dsforge.hostfile import selected_devices
from dsforge.plan import Plan
from dsforge.render.bundles import Bundle
from dsforge.render.job import weights
from dsforge.render.megatron import needs_one_connection
from dsforge.specs import ClusterSpec, Host, SlurmSpec

PRETRAIN = "megatron/pretrain.sh"  # starts Megatron-LM's ranks of one node

# Addresses that belong to nobody: documentation (RFC 5737), then benchmarking (RFC 2544).
EXAMPLE_PREFIXES = ("192.0.2", "198.51.100", "203.0.113")
EXAMPLES_PER_PREFIX = 254
SSH_PORT = 22  # of ssh where nothing else is said


class HostfileContext(NamedTuple):
    """Fields of env/hostfile.j2."""

    hosts: tuple[Host, ...]
    placeholders: bool


class Batch(NamedTuple):
    """What a script for sbatch asks of Slurm."""

    path: str  # of the script, which must be called in the run folder
    tasks: int  # of a node
    cores: int  # of a task
    signal: str
    options: tuple[str, ...]
    how: str  # what the tasks do


class Script(NamedTuple):
    """What every launch script knows: the cluster, and what the script starts."""

    batch: Batch
    job: str
    nodes: int
    slots: int
    gpus: int | None
    ssh_port: int
    ssh_user: str | None
    slurm: SlurmSpec
    selected: str  # of each host the devices that the job may use; empty: the first ones

    @property
    def multi_node(self) -> bool:
        """Whether the ranks live on more than one host."""
        return self.nodes > 1

    @property
    def ranks(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.slots

    @property
    def ssh_login(self) -> str:
        """The argument that makes pdsh log in as `ssh_user`."""
        return f"-l {self.ssh_user}"

    @property
    def ssh_words(self) -> str:
        """Options of ssh where port or user are not its defaults; empty otherwise."""
        port = "" if self.ssh_port == SSH_PORT else f"-p {self.ssh_port}"
        login = self.ssh_login if self.ssh_user else ""
        return f"{port} {login}".strip()


class ScriptContext(NamedTuple):
    """Fields of the scripts of launch/, and of megatron/slurm.sbatch.j2."""

    script: Script


class PretrainContext(NamedTuple):
    """Fields of megatron/pretrain.sh.j2."""

    script: Script
    one_connection: bool
    needs_train_iters: bool
    data: str | None  # the samples of the plan, which Megatron-LM reads in a format of its own
    tokenizer: str | None  # none: nothing says which one, so the script asks for it
    vocab_size: int


def has_placeholders(cluster: ClusterSpec) -> bool:
    """Whether the hostfile holds example addresses that a person must replace."""
    return not cluster.hosts and cluster.nodes > 1


def hostfile_context(cluster: ClusterSpec) -> HostfileContext:
    """The hosts with the slots that the plan uses; examples where the plan knows none."""
    if cluster.hosts:
        hosts = tuple(host.narrowed(cluster.gpus_per_node) for host in cluster.hosts)
        return HostfileContext(
            tuple(Host(address=host.address, slots=host.listed_slots) for host in hosts),
            placeholders=False,
        )
    addresses: Iterable[str] = ("localhost",)
    if cluster.nodes > 1:
        addresses = islice(_example_addresses(), cluster.nodes)
    hosts = tuple(Host(address=a, slots=cluster.gpus_per_node) for a in addresses)
    return HostfileContext(hosts, has_placeholders(cluster))


def _example_addresses() -> Iterator[str]:
    """Endless distinct addresses that reach nothing."""
    for prefix in chain(EXAMPLE_PREFIXES, (f"198.18.{third}" for third in count())):
        for last in range(1, EXAMPLES_PER_PREFIX + 1):
            yield f"{prefix}.{last}"


def script_context(cluster: ClusterSpec, bundle: Bundle) -> ScriptContext:
    """Context of the scripts that start a bundle."""
    return ScriptContext(_script(cluster, bundle))


def pretrain_context(plan: Plan, bundle: Bundle) -> PretrainContext:
    """Context of megatron/pretrain.sh.j2."""
    return PretrainContext(
        script=_script(plan.cluster, bundle),
        one_connection=needs_one_connection(plan, bundle.strategy),
        needs_train_iters=plan.workload.steps is None,
        data=plan.workload.data.train if plan.workload.data else None,
        tokenizer=weights(plan.model),
        vocab_size=plan.model.vocab_size,
    )


def _script(cluster: ClusterSpec, bundle: Bundle) -> Script:
    return Script(
        batch=Batch(
            path=bundle.script("slurm.sbatch"),
            tasks=1,
            cores=cluster.cpu_cores,
            signal="TERM@300",
            options=(),
            how="One task on each node starts the ranks there.",
        ),
        job=bundle.train,
        nodes=cluster.nodes,
        slots=cluster.gpus_per_node,
        gpus=None if cluster.gpu.is_cpu else cluster.gpus_per_node,
        ssh_port=cluster.ssh_port,
        ssh_user=cluster.ssh_user,
        slurm=cluster.slurm or SlurmSpec(),
        selected=_selected(cluster),
    )


def _selected(cluster: ClusterSpec) -> str:
    """`0,1 2,3`: the devices of each host, where one of them does not give its first ones.

    Raises RenderError for Gaudi: DeepSpeed 0.19.8 narrows the devices of ranks there by a variable
    that Gaudi does not read (accelerator/hpu_accelerator.py, `visible_devices_envs`).
    """
    devices = selected_devices(cluster)
    if devices and cluster.gpu.is_gaudi:
        message = f"DeepSpeed cannot select slots of {cluster.gpu.name}"
        raise RenderError(message, "include or exclude whole hosts, or the last slots of each")
    return " ".join(",".join(map(str, numbers)) for numbers in devices)
