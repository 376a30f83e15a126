"""Words: one line for people for each answer of the ranks."""

from __future__ import annotations

from dsforge.probe.messages import Answer, Rate, Skipped, Timed, World
from dsforge.units import MIB, count, gb_per_s, seconds, tflops

KIB = 1024
WHERE = {"intra_node": "in a node", "inter_node": "between nodes"}
NAMES = {
    "memory": "memory, copied",
    "to_device": "host to device",
    "to_host": "device to host",
    "disk_read": "disk, read",
    "disk_write": "disk, written",
}


def line(answer: Answer) -> str:
    """What an answer says, without its unit's details."""
    if isinstance(answer, World):
        return f"{ranks_of(answer)}, {answer.device}, {answer.back_end}"
    if isinstance(answer, Timed):
        return _timed(answer)
    if isinstance(answer, Rate):
        return _rate(answer)
    if isinstance(answer, Skipped):
        return f"not measured: {answer.what} ({answer.why})"
    return f"the ranks are done after {seconds(answer.seconds)}"


def ranks_of(world: World) -> str:
    """`2 ranks on 1 node`."""
    ranks, nodes = world.ranks, world.nodes
    return f"{ranks} rank{'s' * (ranks > 1)} on {nodes} node{'s' * (nodes > 1)}"


def _timed(timed: Timed) -> str:
    name, where = timed.collective.replace("_", "-"), WHERE[timed.scope]
    size = timed.payload_bytes
    shown = f"{size / MIB:.4g} MiB" if size >= MIB else f"{size / KIB:.4g} KiB"
    bus = gb_per_s(timed.bus_bytes / timed.seconds)
    return f"{name} {where}, {shown}: {seconds(timed.seconds)}, {bus}"


def _rate(rate: Rate) -> str:
    if rate.what == "product":
        return f"products in {rate.precision}: {tflops(rate.per_s)}"
    if rate.what == "adam":
        return f"CPU Adam ({rate.how}): {count(rate.per_s)} parameters/s of a node"
    return f"{NAMES[rate.what]}: {gb_per_s(rate.per_s)}"
