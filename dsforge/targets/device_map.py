"""`device_map`: memory that a model may take on each device of one node when it is loaded whole.

For inference and for looking at weights: transformers fills the devices in order, then RAM.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.activations import element_bytes
from dsforge.plan import Plan
from dsforge.planner.pricing import HOST_SHARE
from dsforge.render.job import weights
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup

WORKING_SHARE = 0.1  # of a device: accelerate keeps as much free (utils/modeling.py)
GIB = 2**30


class DeviceMapContext(NamedTuple):
    """Fields of for/device-map: bytes as accelerate writes them."""

    model: str
    max_memory: dict[str, str]
    weights_gib: str
    fits: bool  # on the devices of one node
    dtype: str


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """Memory of each device, and a script that loads with it."""
    context = _context(plan)
    return (TargetFile("max_memory.json", context), TargetFile("load.py", context))


def _context(plan: Plan) -> DeviceMapContext:
    cluster, gpu = plan.cluster, plan.cluster.gpu
    devices = 0 if gpu.is_cpu else cluster.gpus_per_node
    room = int(gpu.memory_bytes * (1 - WORKING_SHARE)) // GIB
    ram = int(cluster.host_memory_bytes * HOST_SHARE) // GIB
    size = plan.parameters * element_bytes(plan.workload)
    each = {str(device): f"{room}GiB" for device in range(devices)}
    kinds = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16", "fp32": "float32"}
    return DeviceMapContext(
        model=weights(plan.model) or plan.model.path or plan.model.name,
        max_memory={**each, "cpu": f"{ram}GiB"},
        weights_gib=f"{size / GIB:.1f}",
        fits=size <= devices * room * GIB,
        dtype=kinds[plan.workload.precision],
    )


def lost(setup: TrainingSetup) -> tuple[str, ...]:
    """It loads a model and trains nothing: layers on devices one after another, one at work."""
    ranks = setup.world_size or 1
    if ranks == 1:
        return ()
    return (f"the training on {ranks} ranks: only one device at a time computes under device_map",)


TARGET = Target(
    name="device-map",
    label="device_map of transformers",
    kind="launcher",
    summary="memory of each device of a node, for loading a model whole",
    files=files,
    lost=lost,
    source="accelerate utils/modeling.py, infer_auto_device_map, get_max_memory",
)
