"""Texts for lint: a good config with changes, clusters, and pairs with and without a fault."""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

NVME = {"device": "nvme", "nvme_path": "/disk"}
AIO = {"block_size": 1048576, "queue_depth": 32}
STAGE3 = {"zero.stage": 3, "zero.stage3_gather_16bit_weights_on_model_save": True}
BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
ETHERNET = "nodes: 2\ngpus_per_node: 8\ngpu: a100-80gb\ninter_node: 100gbe\ninterface: ens5\n"
INFINIBAND = ETHERNET.replace("100gbe", "infiniband-200")
SMALL = ETHERNET + "host_memory_gib: 32\n"
VOLTA = ETHERNET.replace("a100-80gb", "v100-32gb")
DISK = ETHERNET + "nvme: {path: /disk, size_gib: SIZE, read_gb_s: 6, write_gb_s: 3}\n"


class Pair(NamedTuple):
    """A text with the fault and one without, and what they are checked against."""

    bad: str
    good: str
    name: str = "ds_config.json"
    model: str = ""
    cluster: str = ""
    release: str | None = None


def ds(changes: dict[str, Any]) -> str:
    """The base config with changes at dotted keys (`zero.` for its block); none removes a key."""
    config = copy.deepcopy(BASE)
    for path, value in changes.items():
        *blocks, key = path.replace("zero.", "zero_optimization.", 1).split(".")
        inner = config
        for block in blocks:
            inner = inner.setdefault(block, {})
        if value is REMOVED:
            inner.pop(key, None)
        else:
            inner[key] = value
    return json.dumps(config, indent=2)


REMOVED = object()


def config(bad: dict[str, Any], good: dict[str, Any], **against: Any) -> Pair:
    """A pair of configs, as changes of the base."""
    return Pair(ds(bad), ds(good), **against)


def lines(bad: str, good: str, name: str, **against: Any) -> Pair:
    """A pair of texts."""
    return Pair(bad, good, name, **against)


def offloaded(device: str = "cpu", stage: int = 3, **values: Any) -> dict[str, Any]:
    """Changes that offload the optimizer."""
    more = STAGE3 if stage == 3 else {"zero.stage": stage}
    return {**more, "zero.offload_optimizer": {"device": device, **values}}


def adam(**params: Any) -> dict[str, Any]:
    """Changes that add AdamW with these parameters."""
    return {"optimizer": {"type": "AdamW", "params": params}}


def scheduled(name: str, **params: Any) -> dict[str, Any]:
    """Changes that add a schedule, with an optimizer."""
    return {**adam(lr=1e-4), "scheduler": {"type": name, "params": params}}


FILLED = {"gradient_clipping": "auto"}  # as Hugging Face trainers have it
BF16_STATES = {"bf16.bf16_master_weights_and_grads": True, "bf16.bf16_optimizer_states": True}
FP16 = {"bf16": REMOVED, "fp16.enabled": True}
TP2 = {"tensor_parallel": {"autotp_size": 2}}
DIRTY = '{"fp16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1%s}'
