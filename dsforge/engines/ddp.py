"""PyTorch DDP: every rank holds the model in float32; ZeroRedundancyOptimizer shards the states.

Operations compute in the type of autocast, which keeps a copy of each weight in it from forward to
backward (torch/amp, `autocast`: the cache of casts). In runs of dsforge gradients are views of the
buckets that are reduced (`gradient_as_bucket_view`), so buckets take nothing more; in scripts of
others they mostly are copies (`estimate/replicas.py`).
"""

from __future__ import annotations

from dsforge.engines import deepspeed, fsdp
from dsforge.engines.engine import OF_MODULES, Engine
from dsforge.execution import Execution

SHARDINGS = ("ddp", "zero-redundancy-optimizer")


ENGINE = Engine(
    name="ddp",
    label="PyTorch DDP",
    short_label="DDP",
    execution=Execution.model_construct(trainer="ddp", gradients="fp32"),
    back_end="deepspeed",
    words=OF_MODULES | {"bf16_states"},
    states="fp32_replicas",
    loss_bytes=fsdp.loss_bytes,
    logit_traffic_bytes=fsdp.LOGIT_TRAFFIC_BYTES,
    overlaps_gradients=fsdp.overlaps_gradients,
    layer_host_s=lambda cluster, workload, sharding: deepspeed.launches_s(workload),
    step_ends=fsdp.ENGINE.step_ends,
    memory_errors=fsdp.ENGINE.memory_errors,
    runs_row=lambda framework, sharding: framework == "pytorch" and sharding in SHARDINGS,
)
