"""What launchers share: each starts the plan's own script on every node, or one rank each.

`launch/torchrun.sh` takes the number of its node and the address of the first one from the
environment. A launcher that sets other variables has a `node.sh`, which hands them over.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from dsforge.errors import RenderError
from dsforge.hostfile import selected_devices
from dsforge.plan import Plan
from dsforge.render.bundles import CHOSEN, Bundle
from dsforge.render.launch import Script, hostfile_context, script_context
from dsforge.units import GIB

LONGEST_NAME = 40  # pods add an index; the names of hosts have at most 63 letters (RFC 1123)


class ScriptOnNodes(NamedTuple):
    """Fields of a script that is started on the first host, or on each."""

    script: Script
    interface: str | None


class NodeContext(NamedTuple):
    """Fields of a node.sh that needs no values."""


def on_nodes(plan: Plan, label: str) -> ScriptOnNodes:
    """The context of scripts. Raises RenderError where the job may use chosen devices only."""
    refuse_selected(plan, label)
    return ScriptOnNodes(
        script=script_context(plan.cluster, Bundle(plan.choice, CHOSEN)).script,
        interface=plan.cluster.interface,
    )


def addresses(plan: Plan) -> tuple[str, ...]:
    """The hosts as the hostfile of the run folder has them."""
    return tuple(host.address for host in hostfile_context(plan.cluster).hosts)


def refuse_selected(plan: Plan, label: str) -> None:
    """Raise RenderError where hosts have devices that the job must leave alone."""
    if selected_devices(plan.cluster):
        message = f"{label} cannot be limited to certain devices of a host"
        raise RenderError(message, "use launch/deepspeed.sh, or the first slots of each host")


def job_name(plan: Plan) -> str:
    """`dsforge-llama-2-7b`: a name that DNS takes, of the model."""
    word = re.sub(r"[^a-z0-9]+", "-", plan.model.name.lower())
    return f"dsforge-{word}"[:LONGEST_NAME].strip("-")


def host_memory_gib(plan: Plan) -> int:
    """RAM of one node at its fullest moment, in whole GiB."""
    held = plan.choice.memory.host_bytes
    return math.ceil(max(held.load, held.init, held.step, held.save) / GIB)


def shared_memory_gib(plan: Plan) -> int:
    """Shared memory of one node: 1 GiB a rank.

    NCCL's user guide ("Troubleshooting", shared memory) asks for `--shm-size=1g` and more with more
    ranks; DeepSpeed's CPU collectives map 66 MiB a rank (`shm.cpp`).
    """
    return plan.cluster.gpus_per_node
