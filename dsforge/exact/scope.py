"""What the simulator knows: the models and strategies for which the engine has confirmed it."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.errors import Problem
from dsforge.estimate.loss import loss_of
from dsforge.exact.residency import FLOAT_BYTES
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import FULLY_SHARDED, Strategy

KINDS = ("llama", "mistral", "qwen2")  # `model_type`s; a size without a kind counts as a Llama
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": FLOAT_BYTES}
PLACES = ("none", "cpu")  # of the optimizer
KNOWN = (
    f"dense decoders ({', '.join(KINDS)}) on DeepSpeed's data parallelism: ZeRO 0 to 3, AdamW on "
    "the GPU or the CPU, full fine-tuning or LoRA, bf16, fp16 or fp32, plain loss"
)
REHEARSE = "`dsforge rehearse` measures it in the engine itself"


def problems(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> tuple[Problem, ...]:
    """Why the simulator does not know a case; empty where it does."""
    found = [*_of_model(model), *_of_run(cluster, workload), *_of_layout(strategy)]
    if strategy.engine.has_zero_stages:  # settings of another engine are another matter
        found += [*_of_states(strategy), *_of_layers(model, workload, strategy)]
    return tuple(found)


def _of_model(model: ModelSpec) -> Iterator[Problem]:
    """Kinds whose every operation the simulator has."""
    if is_known(model):
        return
    kind = model.model_type or "no known kind"
    yield Problem(
        "exact-model",
        f"`model` (={model.name}, {kind}) must be a dense decoder of kind {', '.join(KINDS)}",
        f"leave out --exact; {REHEARSE}",
    )


def is_known(model: ModelSpec) -> bool:
    """Whether a model is built like Llama: a size without a kind is, unless its shape says else."""
    plain = model.moe is None and model.mla is None and model.qk_norm is None and model.gated_mlp
    plain = plain and model.tower is None and model.recurrent is None
    norms = (model.norm, model.norms_per_layer, model.position) == ("rmsnorm", 2, "rope")
    return plain and norms and model.model_type in (None, *KINDS)


def _of_run(cluster: ClusterSpec, workload: Workload) -> Iterator[Problem]:
    """The accelerator and the job."""
    if cluster.gpu.is_cpu:
        message = f"`gpu` (={cluster.gpu.name}) must be a GPU: torch allocates otherwise on a CPU"
        yield Problem("exact-device", message, "choose a GPU, or leave out --exact")
    if workload.precision not in ELEMENT_BYTES:
        message = f"`precision` (={workload.precision}) must be {', '.join(ELEMENT_BYTES)}"
        yield Problem("exact-precision", message, "use --precision bf16, or leave out --exact")
    if workload.optimizer != "adamw":
        message = f"`optimizer` (={workload.optimizer}) must be adamw"
        yield Problem("exact-optimizer", message, "use --optimizer adamw, or leave out --exact")
    if workload.is_quantised:
        message = "`method` (=qlora) must be full or lora: weights in 4 bits are not simulated"
        yield Problem("exact-method", message, "use --method lora, or leave out --exact")
    if workload.preference is not None:
        message = f"`preference` (={workload.preference}) is not simulated"
        yield Problem("exact-preference", message, "leave it out, or leave out --exact")
    lora = workload.lora
    if lora is not None and (lora.modules_to_save or not lora.is_on_all):
        message = "`lora.targets` and `lora.modules_to_save` are not simulated"
        yield Problem("exact-adapters", message, "leave them out, or leave out --exact")


def _of_layout(strategy: Strategy) -> Iterator[Problem]:
    """Who trains, on which ranks."""
    layout, engine = strategy.layout, strategy.engine
    if not engine.has_zero_stages:
        message = f"the strategy ({strategy.label()}) must run on DeepSpeed, not {engine.label}"
        yield Problem("exact-engine", message, "use --for deepspeed, or leave out --exact")
    if layout.world_size != layout.data_parallel_size or layout.expert_parallel_size > 1:
        message = f"the layout ({layout.label()}) must be data parallel alone"
        hint = f"use --tp 1 --pp 1 --cp 1; {REHEARSE}"
        yield Problem("exact-layout", message, hint)


def _of_states(strategy: Strategy) -> Iterator[Problem]:
    """Where states are, and in which types they travel."""
    run = strategy.runs_as
    if strategy.offload_optimizer not in PLACES or strategy.offload_parameters != "none":
        places = f"optimizer={strategy.offload_optimizer}, parameters={strategy.offload_parameters}"
        message = f"offload ({places}) must be of the optimizer alone, to the CPU"
        hint = "use --offload-optimizer cpu --offload-params none, or leave out --exact"
        yield Problem("exact-offload", message, hint)
    fields = {
        "offload_ratio": (run.offload_ratio, 1.0, "offload the whole optimizer"),
        "grad_accum_dtype": (run.gradients, "compute", "sum in the compute precision"),
        "communication_data_type": (run.reduced, "compute", "send in the compute precision"),
        "zero_quantized_weights": (run.quantized_weights, False, "gather in 16 bits"),
        "zero_quantized_gradients": (run.quantized_gradients, False, "scatter in 16 bits"),
        "hpz_partition_size": (strategy.hpz_partition_size, 1, "use --hpz 1"),
    }
    for name, (value, known, way_out) in fields.items():
        if value != known:
            message = f"`{name}` (={value}) must be {known}"
            yield Problem("exact-engine-setting", message, f"{way_out}, or leave out --exact")


def _of_layers(model: ModelSpec, workload: Workload, strategy: Strategy) -> Iterator[Problem]:
    """The loss, and what is computed again.

    Recomputing adapted layers under ZeRO-3 leaves weights gathered that are not simulated: measured
    with `dsforge rehearse` on a tiny Llama, peaks are 4 to 9 % higher.
    """
    loss, again = loss_of(model, strategy), strategy.recompute
    if loss != "plain":
        message = f"`loss` (={loss}) must be plain: the simulated one has full logits"
        yield Problem("exact-loss", message, "use --loss plain, or leave out --exact")
    if again == "selective":
        message = "`recompute` (=selective) must be none or full"
        yield Problem("exact-recompute", message, "use --recompute full, or leave out --exact")
    adapted = workload.method == "lora" and strategy.zero_stage == FULLY_SHARDED
    if again == "full" and adapted:
        message = "`recompute` (=full) must be none for LoRA under ZeRO-3"
        yield Problem("exact-recompute", message, f"use --zero-stage 2; {REHEARSE}")
