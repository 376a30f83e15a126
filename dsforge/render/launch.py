"""Plan -> contexts of the hostfile and of the scripts that start the run.

Scripts read the hosts from the hostfile and the environment from `.deepspeed_env` when they run, so
each fact stands in one file. What the plan depends on (nodes, slots) is checked, not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice
from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.job import weights
from dsforge.render.megatron import needs_one_connection
from dsforge.specs import ClusterSpec, Host
from dsforge.strategy import Strategy

# Addresses that belong to nobody: documentation (RFC 5737), then benchmarking (RFC 2544).
EXAMPLE_PREFIXES = ("192.0.2", "198.51.100", "203.0.113")
EXAMPLES_PER_PREFIX = 254


class HostfileContext(NamedTuple):
    """Fields of env/hostfile.j2."""

    hosts: tuple[Host, ...]
    placeholders: bool


class Script(NamedTuple):
    """What every launch script knows about the cluster."""

    nodes: int
    slots: int
    gpus: int | None
    cpu_cores: int
    ssh_port: int
    ssh_user: str | None
    in_slurm: bool

    @property
    def multi_node(self) -> bool:
        """Whether the ranks live on more than one host."""
        return self.nodes > 1

    @property
    def ssh_login(self) -> str:
        """The argument that makes pdsh log in as `ssh_user`."""
        return f"-l {self.ssh_user}"


class ScriptContext(NamedTuple):
    """Fields of launch/deepspeed.sh.j2, launch/torchrun.sh.j2 and launch/slurm.sbatch.j2."""

    script: Script


class PretrainContext(NamedTuple):
    """Fields of megatron/pretrain.sh.j2."""

    script: Script
    one_connection: bool
    needs_train_iters: bool
    tokenizer: str
    vocab_size: int


def has_placeholders(cluster: ClusterSpec) -> bool:
    """Whether the hostfile holds example addresses that a person must replace."""
    return not cluster.hosts and cluster.nodes > 1


def hostfile_context(cluster: ClusterSpec) -> HostfileContext:
    """The hosts with the slots that the plan uses; examples where the plan knows none."""
    if cluster.hosts:
        addresses = tuple(host.address for host in cluster.hosts)
    elif cluster.nodes == 1:
        addresses = ("localhost",)
    else:
        addresses = tuple(islice(_example_addresses(), cluster.nodes))
    hosts = tuple(Host(address=a, slots=cluster.gpus_per_node) for a in addresses)
    return HostfileContext(hosts, has_placeholders(cluster))


def _example_addresses() -> Iterator[str]:
    """Endless distinct addresses that reach nothing."""
    for prefix in chain(EXAMPLE_PREFIXES, (f"198.18.{third}" for third in count())):
        for last in range(1, EXAMPLES_PER_PREFIX + 1):
            yield f"{prefix}.{last}"


def script_context(cluster: ClusterSpec, *, in_slurm: bool = False) -> ScriptContext:
    """Context of the launch scripts."""
    return ScriptContext(_script(cluster, in_slurm=in_slurm))


def pretrain_context(plan: Plan, strategy: Strategy) -> PretrainContext:
    """Context of megatron/pretrain.sh.j2."""
    return PretrainContext(
        script=_script(plan.cluster, in_slurm=False),
        one_connection=needs_one_connection(plan, strategy),
        needs_train_iters=plan.workload.steps is None,
        tokenizer=weights(plan.model) or plan.model.name,
        vocab_size=plan.model.vocab_size,
    )


def _script(cluster: ClusterSpec, *, in_slurm: bool) -> Script:
    return Script(
        nodes=cluster.nodes,
        slots=cluster.gpus_per_node,
        gpus=None if cluster.gpu.is_cpu else cluster.gpus_per_node,
        cpu_cores=cluster.cpu_cores,
        ssh_port=cluster.ssh_port,
        ssh_user=cluster.ssh_user,
        in_slurm=in_slurm,
    )
