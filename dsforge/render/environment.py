"""Plan -> environment variables of the ranks: only what this cluster needs, each with its reason.

DeepSpeed carries NCCL_*, PYTHON*, MLFLOW*, UCX* and MV2* of the launching shell to other hosts and
nothing else; whatever stands in `.deepspeed_env` is exported on every host. Its reader has no
comments and its quoting is weak: a value outside `SAFE_VALUE` would be evaluated by the remote
shell inside double quotes, so such a value is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from dsforge.errors import RenderError
from dsforge.masking import is_secret
from dsforge.plan import Plan
from dsforge.specs import ClusterSpec, LinkSpec

SAFE_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
SAFE_VALUE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")  # what DeepSpeed's launcher does not quote


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable of every rank, and why the cluster needs it."""

    name: str
    value: str
    reason: str

    def __post_init__(self) -> None:
        """Refuse secrets, and whatever DeepSpeed's launcher would not carry unchanged."""
        if is_secret(self.name):
            raise RenderError(
                f"environment variable {self.name} looks like a secret",
                "secrets are not written to files; export it on each host instead",
            )
        if not SAFE_NAME.fullmatch(self.name) or not SAFE_VALUE.fullmatch(self.value):
            raise RenderError(
                f"variable {self.name} (={self.value!r}) cannot be passed through the launcher",
                "use only letters, digits and _@%+=:,./- in values of the cluster description",
            )


class DeepspeedEnvContext(NamedTuple):
    """Fields of env/deepspeed_env.j2."""

    variables: tuple[Variable, ...]


def environment_variables(plan: Plan) -> tuple[Variable, ...]:
    """The variables of `.deepspeed_env`, in a fixed order."""
    cluster = plan.cluster
    network = _network(cluster) if cluster.nodes > 1 else ()
    return (*network, *_device(cluster), _threads(cluster))


def _network(cluster: ClusterSpec) -> tuple[Variable, ...]:
    """What lets ranks on several nodes find each other.

    Gaudi has HCCL in place of NCCL, which finds its network by itself (docs.habana.ai, "Scale-out
    via Host NIC").
    """
    gloo, nccl = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
    without_nccl = cluster.gpu.is_cpu or cluster.gpu.is_gaudi
    names = (gloo,) if without_nccl else (nccl, gloo)
    why = "without it the first interface is used, often a container bridge"
    if cluster.inter_node.measured is not None:
        why = "the ranks that measured the cluster card used it; " + why
    found = tuple(Variable(n, cluster.interface, why) for n in names if cluster.interface)
    return found if without_nccl else (*found, *_without_rdma(cluster.inter_node))


def _without_rdma(link: LinkSpec) -> tuple[Variable, ...]:
    """The variable that keeps NCCL on sockets, where it might try an adapter in vain.

    A cluster card knows: where RDMA was used it stays allowed, and where no port is active NCCL
    finds none by itself.
    """
    name, card = "NCCL_IB_DISABLE", link.measured
    if card is not None and card.transport is not None and card.rdma_ports is not None:
        if card.transport == "rdma" or card.rdma_ports == 0:
            return ()
        why = (
            f"the cluster card was measured over sockets, although {card.rdma_ports} RDMA "
            "ports are active"
        )
        return (Variable(name, "1", why),)
    if link.kind != "ethernet":
        return ()
    why = "the plan assumes Ethernet without RDMA; remove it if the adapters support RoCE"
    return (Variable(name, "1", why),)


def _device(cluster: ClusterSpec) -> tuple[Variable, ...]:
    """What the accelerator needs."""
    if cluster.gpu.is_cpu:
        why = "ranks run on the CPU even if DeepSpeed finds an accelerator"
        return (Variable("DS_ACCELERATOR", "cpu", why),)
    if cluster.gpu.is_gaudi:
        why = (
            "DeepSpeed then runs on Gaudi or reports at once what is missing (real_accelerator.py)"
        )
        return (Variable("DS_ACCELERATOR", "hpu", why),)
    if cluster.gpu.collectives == "RCCL":
        return ()
    why = "reduces fragmentation of the memory of the caching allocator"
    return (Variable("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", why),)


def _threads(cluster: ClusterSpec) -> Variable:
    """The share of the node's cores that one rank may use, for CPU optimizers and data."""
    why = "otherwise each rank starts one thread per core of the node"
    return Variable("OMP_NUM_THREADS", str(cluster.cpu_cores_per_rank), why)
