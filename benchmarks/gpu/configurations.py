"""What is measured: one line for each configuration, and its case in dsforge's own types.

The order is that of a run that may end early: every beginning of the list covers sizes, ZeRO
stages, lengths, recomputation, LoRA and offload. Deep models are cut to fewer layers of full width:
that keeps the shapes of their matrix products, which is what time depends on.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from dsforge import catalog
from dsforge.estimate.params import parameters
from dsforge.huggingface import tiny
from dsforge.layout import Layout
from dsforge.plan import Plan, Priced
from dsforge.planner import price
from dsforge.specs import ClusterSpec, LoraSpec, ModelSpec, Workload
from dsforge.strategy import EXECUTIONS, Strategy, ZeroStage

# The measured step computes the loss of the Hugging Face model itself.
WHOLE_LOGITS = EXECUTIONS["deepspeed"].model_copy(update={"loss": "plain"})

Moved = Literal["none", "optimizer", "everything"]


class Configuration(NamedTuple):
    """One run. `layers` keeps so many of the model's; `shrunk` makes everything tiny."""

    model: str
    zero_stage: ZeroStage
    sequence_length: int
    micro_batch_size: int = 1
    accumulation: int = 1
    layers: int | None = None
    recompute: bool = False
    offload: Moved = "none"
    lora_rank: int | None = None
    shrunk: bool = False

    @property
    def name(self) -> str:
        """The configuration in words, without blanks; records are found again by it."""
        parts = [self.model if self.layers is None else f"{self.model}[{self.layers}L]"]
        parts[0] = f"tiny-{parts[0]}" if self.shrunk else parts[0]
        parts += [f"zero{self.zero_stage}", f"s{self.sequence_length}"]
        parts.append(f"mbs{self.micro_batch_size}x{self.accumulation}")
        parts += ["recompute"] if self.recompute else []
        parts += [f"lora{self.lora_rank}"] if self.lora_rank else []
        parts += [f"offload-{self.offload}"] if self.offload != "none" else []
        return "/".join(parts)


class Case(NamedTuple):
    """A configuration on a cluster, with what dsforge predicts for exactly that strategy."""

    configuration: Configuration
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    priced: Priced

    @property
    def plan(self) -> Plan:
        """What dsforge renders the ds_config from."""
        return Plan(
            model=self.model,
            parameters=parameters(self.model),
            cluster=self.cluster,
            workload=self.workload,
            choice=self.priced,
        )


def case_of(configuration: Configuration, cluster: ClusterSpec) -> Case:
    """The case of a configuration on all accelerators of a cluster, priced."""
    model = _model(configuration)
    strategy = _strategy(configuration, cluster)
    lora = configuration.lora_rank
    workload = Workload(
        sequence_length=configuration.sequence_length,
        global_batch_size=strategy.global_batch_size,
        precision="bf16" if "bf16" in cluster.gpu.peak_flops else "fp16",
        learning_rate=1e-4,
        method="full" if lora is None else "lora",
        lora=None if lora is None else LoraSpec(rank=lora),
    )
    priced = price(model, cluster, workload, strategy)
    return Case(configuration, model, cluster, workload, priced)


def _model(configuration: Configuration) -> ModelSpec:
    """The catalog's model, cut or shrunk, with positions for the whole sequence."""
    model = catalog.model(configuration.model)
    if configuration.shrunk:
        model = tiny(model)
    changed: dict[str, Any] = {"name": configuration.name.split("/")[0]}
    if configuration.layers is not None:
        changed["layers"] = configuration.layers
    if model.position == "rope":
        length = max(model.max_position_embeddings, configuration.sequence_length)
        changed["max_position_embeddings"] = length
    return model.model_copy(update=changed)


def _strategy(configuration: Configuration, cluster: ClusterSpec) -> Strategy:
    """Data parallelism over the whole cluster."""
    moved = configuration.offload
    return Strategy(
        layout=Layout(data_parallel_size=cluster.gpus),
        micro_batch_size=configuration.micro_batch_size,
        gradient_accumulation_steps=configuration.accumulation,
        zero_stage=configuration.zero_stage,
        offload_optimizer="none" if moved == "none" else "cpu",
        offload_parameters="cpu" if moved == "everything" else "none",
        recompute="full" if configuration.recompute else "none",
        execution=WHOLE_LOGITS,
    )


def ordered(cases: list[Case]) -> list[Case]:
    """Cases in the order of a run: those that should not fit come last, whatever they ask for."""
    return sorted(cases, key=lambda case: not fits_device(case))


def fits_device(case: Case) -> bool:
    """Whether the prediction is below what one card has."""
    return case.priced.memory.device_bytes.likely <= case.cluster.gpu.memory_bytes


_of = Configuration

# The list for a GPU. Two of them are meant to run out of memory on most single cards.
_FULL = (
    _of("llama-2-7b", 1, 4096, 2, layers=10),
    _of("llama-3.2-1b", 0, 4096),
    _of("llama-3-8b", 0, 4096, lora_rank=16),
    _of("qwen2.5-0.5b", 2, 2048, 4),
    _of("llama-3.2-1b", 3, 4096),
    _of("smollm2-360m", 0, 1024, 8),
    _of("tinyllama-1.1b", 1, 16384, recompute=True),
    _of("llama-3-8b", 1, 4096, layers=8),
    _of("smollm2-1.7b", 2, 4096, 2, recompute=True),
    _of("tinyllama-1.1b", 2, 2048, 4, offload="optimizer"),
    _of("llama-3-8b", 3, 4096, recompute=True, lora_rank=16),
    _of("llama-3-70b", 0, 4096, layers=8, lora_rank=16),
    _of("smollm2-135m", 1, 1024, 16),
    _of("llama-3.2-1b", 2, 4096, 2, 4),
    _of("tinyllama-1.1b", 0, 32768, recompute=True),
    _of("gpt2-medium", 1, 1024, 8),
    _of("llama-3-8b", 2, 8192, layers=4, recompute=True),
    _of("llama-2-7b", 2, 4096, 4, layers=10, recompute=True),
    _of("qwen2.5-1.5b", 3, 2048, 2, recompute=True),
    _of("llama-3.2-1b", 1, 1024, 8),
    _of("mistral-7b-v0.3", 1, 8192, recompute=True, lora_rank=16),
    _of("smollm2-360m", 3, 4096, 4),
    _of("llama-3-8b", 0, 4096, 2, layers=2),
    _of("qwen2.5-0.5b", 1, 8192),
    _of("tinyllama-1.1b", 3, 4096, 2, recompute=True, offload="everything"),
    _of("smollm2-1.7b", 1, 2048, 4),
    _of("smollm2-135m", 3, 32768, recompute=True),
    _of("llama-2-7b", 3, 4096, 2, layers=4),
    _of("llama-3-8b", 3, 2048, 1, 4, layers=6),
    _of("smollm2-135m", 0, 2048, 16),
    _of("qwen3-0.6b", 2, 4096, 2),
    _of("gpt2-xl", 2, 1024, 4, recompute=True),
    _of("llama-3.2-1b", 2, 2048, 4, lora_rank=64),
    _of("llama-3.2-3b", 1, 16384, recompute=True, lora_rank=16),
    _of("llama-3.2-3b", 2, 2048, recompute=True),
    _of("smollm2-360m", 2, 1024, 8, offload="optimizer"),
    _of("tinyllama-1.1b", 1, 1024, 16),
    _of("llama-3-70b", 1, 4096, layers=1, recompute=True),
    _of("qwen2.5-7b", 0, 1024, 4, lora_rank=16),
    _of("llama-2-7b", 3, 32768, recompute=True, lora_rank=16),
    _of("llama-3-8b", 2, 4096, recompute=True),
    _of("llama-3.2-3b", 0, 8192, 8),
)
# More for cards of 16 to 24 GB; elsewhere they come after the others, as time allows.
_SMALL = (
    _of("smollm2-135m", 0, 1024, 2),
    _of("smollm2-360m", 1, 2048, 1),
    _of("smollm2-135m", 2, 4096, 1),
    _of("llama-3.2-1b", 0, 1024, 1, recompute=True, lora_rank=16),
    _of("smollm2-135m", 3, 1024, 4),
    _of("gpt2-medium", 2, 1024, 2),
    _of("tinyllama-1.1b", 2, 1024, 1, offload="optimizer"),
    _of("qwen2.5-0.5b", 3, 1024, 1, recompute=True),
    _of("smollm2-135m", 1, 8192, 1, recompute=True),
    _of("tinyllama-1.1b", 0, 4096, 1, recompute=True, lora_rank=16),
    _of("smollm2-360m", 0, 1024, 2, recompute=True),
    _of("gpt2-small", 0, 1024, 8),
    _of("llama-2-7b", 1, 1024, 1, layers=2),
    _of("smollm2-360m", 3, 2048, 1, 4),
    _of("tinyllama-1.1b", 3, 2048, 1, recompute=True, offload="everything"),
    _of("qwen2.5-0.5b", 1, 1024, 1),
    _of("smollm2-135m", 2, 1024, 8, 2),
    _of("tinyllama-1.1b", 1, 2048, 2, lora_rank=64),
    _of("smollm2-360m", 2, 2048, 2, offload="optimizer"),
    _of("pythia-410m", 0, 2048, 1),
)
CONFIGURATIONS = (*_FULL, *_SMALL)

# A handful for CPU ranks, seconds each; the last one is meant to run out of memory.
DRY_RUN = (
    _of("llama-3-8b", 2, 64, 2, shrunk=True),
    _of("llama-3-8b", 3, 64, 1, 2, recompute=True, shrunk=True),
    _of("qwen2.5-0.5b", 0, 64, lora_rank=4, shrunk=True),
    _of("llama-2-7b", 1, 64, offload="optimizer", shrunk=True),
    _of("gpt2-medium", 1, 64, 2, shrunk=True),
    _of("llama-3-8b", 3, 64, 2, offload="everything", shrunk=True),
    _of("llama-2-7b", 0, 4096, 2048, shrunk=True),
)
