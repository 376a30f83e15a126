"""NVLink domain: how many nodes the link inside a node joins, as written or as usual for the card.

Vendors name the size in accelerators (NVL72), launchers start nodes of a few each, so the plan
counts nodes. A domain ends at the node unless somebody says otherwise: a cluster file, a flag, or
the catalog of cards that are sold in racks of one domain.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge import catalog
from dsforge.plan import Reason
from dsforge.reading.refusals import refusal
from dsforge.reading.source import Source
from dsforge.specs import GpuSpec, LinkSpec

KEY = "nvlink_domain_size"


class Machines(NamedTuple):
    """What a domain may join."""

    gpu: GpuSpec
    intra_node: LinkSpec
    nodes: int
    gpus_each: int


class Joined(NamedTuple):
    """How many nodes are one domain, and why."""

    nodes: int
    reasons: tuple[Reason, ...]


def joined(size: int | None, source: Source, machines: Machines) -> Joined:
    """Nodes of one NVLink domain. Raises SpecError where the size does not suit the nodes."""
    if size is not None:
        return Joined(_asked(size, source, machines), ())
    usual = catalog.nvlink_domain(machines.gpu)
    if usual is None or machines.nodes == 1 or machines.intra_node.kind != "nvlink":
        return Joined(1, ())
    each = machines.gpus_each
    count = min(usual.nodes, usual.nodes * usual.gpus_per_node // each)
    if count <= 1:
        return Joined(1, ())
    message = (
        f"`{KEY}` is {count * each}: {machines.gpu.name} is usually installed in racks in "
        f"which NVLink connects {count} nodes of {each} (it needs the IMEX service on each of "
        f"them); list hosts rack by rack; `--nvlink-domain {each}` counts every node alone"
    )
    return Joined(count, (Reason(rule="default-nvlink-domain", message=message),))


def _asked(size: int, source: Source, machines: Machines) -> int:
    """The nodes of a domain of so many accelerators. Raises SpecError."""
    count, rest = divmod(size, machines.gpus_each)
    place = source.place((KEY,))
    if rest or not count:
        message = f"`{KEY}` (={size}) must be a multiple of `gpus_per_node` (={machines.gpus_each})"
        hint = (
            f"use {max(1, count) * machines.gpus_each}; {machines.gpus_each} limits it to one node"
        )
        raise refusal("nvlink-domain-nodes", place, message, hint)
    if count > 1 and machines.intra_node.kind != "nvlink":
        message = (
            f"`{KEY}` (={size}) requires NVLink, and `intra_node` is {machines.intra_node.name}"
        )
        hint = "name the NVLink as `intra_node`, or leave the domain out"
        raise refusal("nvlink-domain-link", place, message, hint)
    return count
