"""Strategy of plain torch -> the `torch` block of its train.yaml."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.job import Sharding, TorchSettings, TorchStrategy
from dsforge.render.deepspeed import ADAM_BETAS, ADAM_EPSILON, MOMENTUM
from dsforge.specs import Workload
from dsforge.strategy import Strategy
from dsforge.zero_stages import ZeroStage


class _Named(NamedTuple):
    """What a train.yaml calls a way of sharding."""

    strategy: TorchStrategy
    sharding: Sharding = "full"


# By who holds what (`Engine.states`) and the ZeRO stage that shards the same.
NAMES: dict[tuple[str, ZeroStage], _Named] = {
    ("fp32_replicas", 0): _Named("ddp"),
    ("fp32_replicas", 1): _Named("zero1"),
    ("fp32_shards", 2): _Named("fsdp2", "gradients"),
    ("fp32_shards", 3): _Named("fsdp2"),
}


def torch_settings(workload: Workload, strategy: Strategy) -> TorchSettings:
    """How `dsforge train` runs a strategy on plain torch."""
    named, layout = NAMES[strategy.engine.states, strategy.zero_stage], strategy.layout
    group = strategy.runs_as.shard_group
    return TorchSettings.model_validate(
        {
            "strategy": named.strategy,
            "sharding": "hybrid" if group else named.sharding,
            "shard_size": group,
            "no_sync": strategy.runs_as.no_sync,
            "cpu_offload": strategy.offload_parameters == "cpu",
            "tensor_parallel_size": layout.tensor_parallel_size,
            "pipeline_parallel_size": layout.pipeline_parallel_size,
            "precision": workload.precision,
            "micro_batch_size": strategy.micro_batch_size,
            "global_batch_size": strategy.global_batch_size,
            "optimizer": workload.optimizer,
            "betas": ADAM_BETAS,
            "eps": ADAM_EPSILON,
            "momentum": MOMENTUM.get(workload.optimizer, 0.0),
            "learning_rate": workload.learning_rate,
            "weight_decay": workload.weight_decay,
            "gradient_clipping": workload.gradient_clipping,
        }
    )
