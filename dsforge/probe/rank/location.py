"""Place: which node a rank stands on, what that node is, and the way to the first node.

A rank that was not told an interface takes the one that the kernel routes the first node's address
over, before any library guesses: the first interface by name is often a container bridge.
"""

from __future__ import annotations

import os
import platform
import socket
from importlib.metadata import version
from typing import NamedTuple

from dsforge.preflight.remote.machine import ROOT, cpu_cores, memory_bytes
from dsforge.probe.messages import World
from dsforge.probe.node import infiniband_facts, interface_facts, ipv4_address
from dsforge.train.parallel.ranks import Place

INTERFACE_NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SHOWN_INTERFACES = 16
LONGEST_NAME = 60


class Standing(NamedTuple):
    """Where this rank stands among nodes of equally many ranks."""

    place: Place
    per_node: int
    interface: str | None  # on the way to the first node

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.place.world_size // self.per_node

    @property
    def node(self) -> int:
        """Number of this rank's node."""
        return self.place.rank // self.per_node

    @property
    def name(self) -> str:
        """Host and rank, for people."""
        return f"{platform.node()[:LONGEST_NAME]} rank {self.place.rank}"


def standing_of(place: Place) -> Standing:
    """Where the launcher has put this rank; names the interface where nobody has."""
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    per_node = int(local) if local.isdecimal() and int(local) > 0 else 1
    if place.world_size % per_node:
        per_node = 1  # unequal nodes: every rank counts as its own
    interface = _interface_to(os.environ.get("MASTER_ADDR", ""))
    if interface is not None and place.world_size > per_node:
        for name in INTERFACE_NAMES:
            os.environ.setdefault(name, interface)
    return Standing(place, per_node, interface)


def world(standing: Standing, device: str) -> World | None:
    """The job and its weakest node, on the first rank. All ranks must call it."""
    import torch.distributed

    active = len(infiniband_facts(ROOT))
    own = (memory_bytes(), cpu_cores(), standing.interface, active)
    every: list[tuple[int, int, str | None, int]] = [own] * standing.place.world_size
    torch.distributed.all_gather_object(every, own)
    if not standing.place.is_first:
        return None
    names = sorted({name for _, _, name, _ in every if name})
    return World(
        ranks=standing.place.world_size,
        nodes=standing.nodes,
        device=device,
        back_end=str(torch.distributed.get_backend()),
        versions={name: version(name) for name in ("torch", "deepspeed")},
        memory_bytes=min(found[0] for found in every),
        cpu_cores=min(found[1] for found in every),
        interfaces=tuple(names[:SHOWN_INTERFACES]),
        rdma_ports=min(found[3] for found in every),
        most_rdma_ports=max(found[3] for found in every),
    )


def _interface_to(address: str) -> str | None:
    """The interface that the kernel sends packets to an address through; none for this machine."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing:
            probing.connect((address, 9))  # of a datagram socket: nothing is sent
            own = probing.getsockname()[0]
    except OSError:
        return None
    for found in interface_facts(ROOT, ipv4_address):
        if found.address == own:
            return found.name
    return None
