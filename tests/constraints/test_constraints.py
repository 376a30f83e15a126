"""Every rule refuses what its engine refuses, names the value and offers a way out."""

from __future__ import annotations

from typing import Any

import pytest
from planning import DISK, cluster, lora_workload, qlora_workload, strategy, workload
from plans import cpu_cluster

from dsforge import catalog
from dsforge.constraints import CONSTRAINTS, check
from dsforge.huggingface import read_config
from dsforge.programs import BY_NAME as PROGRAMS
from dsforge.specs import ClusterSpec, LoraSpec, ModelSpec, Workload
from dsforge.specs.model import TowerSpec
from dsforge.strategy import EXECUTIONS, Strategy

MODEL = "llama-2-7b"  # 32 layers, 32 heads, 32 kv heads
MEGATRON: dict[str, Any] = {"back_end": "megatron", "zero_stage": 1}

CHUNKED = EXECUTIONS["deepspeed"].model_copy(update={"loss": "chunked"})
HALF = EXECUTIONS["deepspeed"].model_copy(update={"offload_ratio": 0.5})
HALF_ON_2 = strategy(zero_stage=2, offload_optimizer="cpu", execution=HALF)
WIDE = EXECUTIONS["deepspeed"].model_copy(update={"gradients": "fp32"})
HPZ = {"hpz_partition_size": 8}

HALF_STATES = EXECUTIONS["deepspeed"].model_copy(update={"master_weights": False})
IN_RAM = EXECUTIONS["deepspeed"].model_copy(update={"offload_activations": True})
COMPILED_IN_RAM = IN_RAM.model_copy(update={"kernels": "compiled"})
TILED = EXECUTIONS["deepspeed"].model_copy(update={"tiled_mlp": True})
IN_KERNEL = EXECUTIONS["deepspeed"].model_copy(update={"loss": "fused_cross_entropy"})
APART = EXECUTIONS["fsdp"].model_copy(update={"expert_modules": True, "software": "others"})
SUMMED = HALF_STATES.model_copy(update={"gradients": "fp32"})
HALF_ON_CPU = strategy(zero_stage=2, offload_optimizer="cpu", execution=HALF_STATES)
IN_BACKWARD = EXECUTIONS["torchtune"].model_copy(update={"fused_backward": True})
ROUNDED = strategy(
    zero_stage=3,
    execution=EXECUTIONS["deepspeed"].model_copy(update={"quantized_weights": True}),
)
NO_SYNC = EXECUTIONS["deepspeed"].model_copy(update={"no_sync": True})
REPLICAS = EXECUTIONS["ddp"]
NARROW = strategy(execution=REPLICAS.model_copy(update={"master_weights": False}))
LOADS_WHOLE = EXECUTIONS["deepspeed"].model_copy(update={"loads_whole": True})
TOWER = TowerSpec(
    kind="llava",
    layers=24,
    hidden_size=1024,
    parameters=303_507_456,
    projector_parameters=20_979_712,
    patches_per_token=1,
)
RECURRENT = read_config({"model_type": "qwen3_5_text"}, "qwen3.5")[0]
INDEXED = read_config({"model_type": "deepseek_v32"}, "deepseek-v3.2")[0]
SEEING = catalog.model(MODEL).model_copy(update={"tower": TOWER})


def of_program(program: str, dp: int = 8, tp: int = 1, **how: Any) -> Strategy:
    """A strategy of a program on its first engine, unless `trainer` names another."""
    way = PROGRAMS[program].ways[0]
    update = {"program": program, **how.pop("run", {})}
    return strategy(dp, tp, execution=way.execution.model_copy(update=update), **how)


TITAN, TUNE = {"program": "torchtitan", "zero_stage": 3}, {"program": "torchtune", "zero_stage": 3}
FSDP = {"program": "torch", "zero_stage": 3, "run": {"trainer": "fsdp"}}
SAVING = workload(method="lora", lora=LoraSpec(modules_to_save=("embedding", "head")))


def base_workload(**base: Any) -> Workload:
    """Adapters on a quantised base."""
    return workload(method="lora", lora=LoraSpec(**base))


# rule id, model, cluster, workload, strategy
BROKEN: list[tuple[str, str | ModelSpec, ClusterSpec, Workload, Strategy]] = [
    ("vision-tower", SEEING, cluster(), workload(), strategy()),
    ("vision-tower", SEEING, cluster(), workload(), strategy(**MEGATRON)),
    ("encoder-decoder", "flan-t5-xl", cluster(), workload(512), strategy(4, 2)),
    ("encoder-decoder", "flan-t5-xl", cluster(), lora_workload(512), strategy()),
    ("encoder-decoder", "flan-t5-xl", cluster(), workload(512), of_program(**FSDP)),
    ("decoder-only", "bert-large", cluster(), workload(512), strategy()),
    ("sequence-length", MODEL, cluster(), workload(8192), strategy()),
    ("indexed-attention", INDEXED, cluster(), workload(), strategy()),
    ("recurrent-parallel", RECURRENT, cluster(), workload(), strategy(4, 2)),
    ("recurrent-parallel", RECURRENT, cluster(), workload(), strategy(4, pp=2)),
    ("megatron-model", RECURRENT, cluster(), workload(), strategy(4, 2, **MEGATRON)),
    ("precision", MODEL, cluster(gpu="v100-32gb"), workload(), strategy()),
    ("fp8-megatron", MODEL, cluster(gpu="h100-80gb"), workload(precision="fp8"), strategy()),
    ("optimizer", MODEL, cluster(), workload(optimizer="lion"), strategy(**MEGATRON)),
    ("bf16-states", MODEL, cluster(), workload(precision="fp16"), NARROW),
    ("fused-loss", MODEL, cluster(), workload(), strategy(execution=IN_KERNEL)),
    ("bf16-states-stage", MODEL, cluster(), workload(), strategy(execution=HALF_STATES)),
    ("bf16-states-sums", MODEL, cluster(), workload(), strategy(zero_stage=1, execution=SUMMED)),
    ("bf16-states-offload", MODEL, cluster(), workload(optimizer="lion"), HALF_ON_CPU),
    ("bf16-states-offload", MODEL, cpu_cluster(), workload(), HALF_ON_CPU),
    ("optimizer-in-backward", MODEL, cluster(), workload(), strategy(execution=IN_BACKWARD)),
    ("preference-training", MODEL, cluster(), workload(preference="dpo"), strategy()),
    (
        "preference-mode",
        MODEL,
        cluster(),
        workload(preference="dpo", reference="precomputed"),
        strategy(4, 2),
    ),
    ("preference-engine", MODEL, cluster(), workload(preference="dpo"), strategy(**MEGATRON)),
    ("engine-words", MODEL, cluster(), workload(), strategy(execution=NO_SYNC)),
    ("ddp-replicas", MODEL, cluster(), workload(), strategy(zero_stage=3, execution=REPLICAS)),
    ("loads-whole", MODEL, cluster(), workload(), strategy(execution=LOADS_WHOLE)),
    ("qlora-megatron", MODEL, cluster(), qlora_workload(), strategy(**MEGATRON)),
    ("lora-pipeline", MODEL, cluster(), lora_workload(), strategy(4, pp=2)),
    ("lora-tensor", MODEL, cluster(), lora_workload(), strategy(4, 2)),
    ("lora-tied-modules", "smollm2-135m", cluster(), SAVING, strategy()),
    ("qlora-zero3", MODEL, cluster(), base_workload(base="gptq"), strategy(zero_stage=3)),
    (
        "quantised-experts",
        "mixtral-8x7b",
        cluster(),
        qlora_workload(),
        strategy(8, expert_parallel_size=2, zero_stage=3, execution=APART),
    ),
    ("quant-storage", MODEL, cluster(), base_workload(bits=4, quant_storage="fp32"), strategy()),
    ("gptq-exllama", MODEL, cluster(), base_workload(base="gptq", kernel="exllama"), strategy()),
    ("qlora-quantized-weights", MODEL, cluster(), qlora_workload(), ROUNDED),
    ("world-size", MODEL, cluster(), workload(), strategy(4)),
    ("batch-product", MODEL, cluster(), workload(batch=100), strategy(batch=96)),
    ("tensor-heads", "gpt2-xl", cluster(), workload(1024), strategy(4, 2)),
    ("tensor-kv-heads", "qwen2.5-7b", cluster(), workload(), strategy(1, 8)),
    ("tensor-widths", MODEL, cluster(1, 3), workload(batch=9), strategy(1, 3, batch=9)),
    ("tensor-in-node", MODEL, cluster(2, 4), workload(), strategy(1, 8, zero_stage=1)),
    ("pipeline-layers", MODEL, cluster(1, 31), workload(), strategy(1, pp=31, **MEGATRON)),
    ("pipeline-size", "gpt2-small", cluster(2), workload(1024), strategy(1, pp=16)),
    ("virtual-stages", MODEL, cluster(), workload(), strategy(virtual_stages=2, **MEGATRON)),
    (
        "context-sequence",
        MODEL,
        cluster(),
        workload(2050),
        strategy(2, context_parallel_size=4, **MEGATRON),
    ),
    ("sequence-parallel", MODEL, cluster(), workload(), strategy(sequence_parallel=True)),
    (
        "expert-parallel",
        "mixtral-8x7b",
        cluster(),
        workload(),
        strategy(expert_parallel_size=3, **MEGATRON),
    ),
    ("deepspeed-axes", "mixtral-8x7b", cluster(), workload(), strategy(8, expert_parallel_size=2)),
    ("chunked-loss", MODEL, cluster(), workload(), strategy(execution=CHUNKED, **MEGATRON)),
    ("chunked-loss", "gemma-2-9b", cluster(), workload(), strategy(execution=CHUNKED)),
    ("chunked-loss", MODEL, cluster(), workload(), strategy(4, 2, execution=CHUNKED)),
    ("sequence-heads", "qwen2.5-7b", cluster(), workload(), strategy(1, context_parallel_size=8)),
    ("sequence-model", "pythia-1b", cluster(), workload(), strategy(4, context_parallel_size=2)),
    (
        "sequence-window",
        "phi-3-mini-4k",
        cluster(),
        workload(),
        strategy(4, context_parallel_size=2),
    ),
    ("sequence-model", "deepseek-v2", cluster(), workload(), strategy(4, context_parallel_size=2)),
    (
        "sequence-kv-heads",
        "llama-3.2-3b",
        cluster(1, 6),
        workload(batch=48),
        strategy(1, batch=48, context_parallel_size=6),
    ),
    (
        "sequence-hpz",
        MODEL,
        cluster(2),
        workload(),
        strategy(8, zero_stage=3, context_parallel_size=2, **HPZ),
    ),
    ("hpz-stage", MODEL, cluster(2), workload(), strategy(16, zero_stage=2, **HPZ)),
    (
        "hpz-partition",
        MODEL,
        cluster(1, 6),
        workload(batch=96),
        strategy(6, batch=96, zero_stage=3, hpz_partition_size=4),
    ),
    (
        "hpz-with-offload",
        MODEL,
        cluster(2),
        workload(),
        strategy(16, zero_stage=3, offload_parameters="cpu", **HPZ),
    ),
    ("offload-ratio", MODEL, cluster(), workload(), HALF_ON_2),
    ("grad-accum-dtype", MODEL, cluster(), workload(), strategy(execution=WIDE)),
    ("zero-pipeline", MODEL, cluster(), workload(), strategy(4, pp=2, zero_stage=2)),
    ("zero-tensor", MODEL, cluster(), workload(), strategy(4, 2, zero_stage=3)),
    (
        "deepspeed-3d",
        MODEL,
        cluster(),
        workload(),
        strategy(2, pp=2, zero_stage=1, context_parallel_size=2),
    ),
    ("deepspeed-3d", MODEL, cluster(), workload(), strategy(2, 2, context_parallel_size=2)),
    ("pipeline-model", "mixtral-8x7b", cluster(), workload(), strategy(4, pp=2, zero_stage=1)),
    ("tensor-model", "mixtral-8x7b", cluster(), workload(), strategy(4, 2, zero_stage=1)),
    ("megatron-zero", MODEL, cluster(), workload(), strategy(back_end="megatron", zero_stage=2)),
    (
        "megatron-offload",
        MODEL,
        cluster(),
        workload(),
        strategy(offload_optimizer="cpu", **MEGATRON),
    ),
    (
        "offload-parameters",
        MODEL,
        cluster(),
        workload(),
        strategy(zero_stage=2, offload_parameters="cpu"),
    ),
    ("offload-optimizer", MODEL, cluster(), workload(), strategy(offload_optimizer="cpu")),
    (
        "offload-kind",
        MODEL,
        cluster(),
        workload(optimizer="sgd"),
        strategy(zero_stage=2, offload_optimizer="cpu"),
    ),
    (
        "offload-pipeline",
        MODEL,
        cluster(),
        workload(),
        strategy(4, pp=2, zero_stage=1, offload_optimizer="cpu"),
    ),
    (
        "nvme-stage",
        MODEL,
        cluster(nvme=DISK),
        workload(),
        strategy(zero_stage=2, offload_optimizer="nvme"),
    ),
    (
        "nvme-disk",
        MODEL,
        cluster(),
        workload(),
        strategy(zero_stage=3, offload_optimizer="nvme"),
    ),
    ("recompute", MODEL, cluster(), workload(), strategy(recompute="selective")),
    ("offload-activations-recompute", MODEL, cluster(), workload(), strategy(execution=IN_RAM)),
    ("tiled-mlp-recompute", MODEL, cluster(), workload(), strategy(execution=TILED)),
    (
        "tiled-mlp-model",
        "mixtral-8x7b",
        cluster(),
        workload(),
        strategy(recompute="full", execution=TILED),
    ),
    (
        "compile-checkpoints",
        MODEL,
        cluster(),
        workload(),
        strategy(recompute="full", execution=COMPILED_IN_RAM),
    ),
    ("megatron-model", "bloom-176b", cluster(), workload(), strategy(1, 8, **MEGATRON)),
    ("megatron-gpu", MODEL, cluster(gpu="cpu"), workload(), strategy(**MEGATRON)),
    (
        "program-engine",
        MODEL,
        cluster(),
        workload(),
        of_program("torchtitan", zero_stage=3, run={"trainer": "torchtune"}),
    ),
    ("program-zero", MODEL, cluster(), workload(), of_program("torchtitan", zero_stage=1)),
    ("program-parallelism", MODEL, cluster(), workload(), of_program(**TUNE, dp=4, pp=2)),
    (
        "program-interleaving",
        MODEL,
        cluster(),
        workload(),
        of_program(**TITAN, dp=4, pp=2, virtual_stages=2),
    ),
    ("program-offload", MODEL, cluster(), workload(), of_program(**TUNE, offload_optimizer="cpu")),
    ("program-method", MODEL, cluster(), lora_workload(), of_program(**TITAN)),
    ("program-values", MODEL, cluster(), workload(precision="fp16"), of_program(**TITAN)),
    (
        "program-activations",
        MODEL,
        cluster(),
        workload(),
        of_program(**TITAN, recompute="full", run={"tiled_mlp": True}),
    ),
    (
        "program-zero-plus",
        MODEL,
        cluster(),
        workload(),
        of_program("lightning", zero_stage=3, hpz_partition_size=2),
    ),
    ("program-model", "bloom-3b", cluster(), workload(1024), of_program(**TUNE)),
    ("torch-clash", MODEL, cluster(), workload(precision="fp16"), of_program(**FSDP, dp=4, tp=2)),
    ("torch-tensor-plan", "bloom-3b", cluster(), workload(1024), of_program(**FSDP, dp=4, tp=2)),
    ("torch-stages", "llama-3.2-3b", cluster(), workload(), of_program(**FSDP, dp=4, pp=2)),
]


@pytest.mark.parametrize(
    ("rule", "model", "on", "work", "how"), BROKEN, ids=[row[0] for row in BROKEN]
)
def test_a_broken_rule_is_named_with_a_way_out(
    rule: str, model: str | ModelSpec, on: ClusterSpec, work: Workload, how: Strategy
) -> None:
    """The combination is refused under that rule, with the value and a hint."""
    shape = catalog.model(model) if isinstance(model, str) else model
    problems = {problem.rule: problem for problem in check(shape, on, work, how)}

    assert rule in problems
    assert len(problems[rule].message) > len("x requires y")
    assert problems[rule].hint


def test_every_rule_has_a_row_that_breaks_it() -> None:
    """No rule stands without an example of what it refuses."""
    asked_of_files = {"vocabulary-split", "sequence-attention", "sequence-packing"}
    asked_of_files |= {"low-bit-optimizer", "preference-packing", "recurrent-packing"}
    asked_of_files |= {
        "compile-stage",
        "compile-mode",
        "sequence-reduce-scatter",
        "pipeline-partition",
    }

    assert {row[0] for row in BROKEN} | asked_of_files == {each.id for each in CONSTRAINTS}


LEGAL: list[tuple[str, Strategy]] = [
    ("zero 0", strategy()),
    ("zero 3 offload", strategy(zero_stage=3, offload_optimizer="cpu", offload_parameters="cpu")),
    ("AutoTP zero 1", strategy(4, 2, zero_stage=1)),
    ("Ulysses zero 3", strategy(2, context_parallel_size=4, zero_stage=3)),
    ("pipeline zero 1", strategy(4, pp=2, zero_stage=1)),
    ("torchtitan 2D", of_program(**TITAN, dp=4, tp=2)),
    ("plain torch DDP", of_program("torch", zero_stage=0)),
    ("plain torch 3D", of_program(**FSDP, dp=2, tp=2, pp=2)),
    ("Trainer on ZeRO 3", of_program("transformers", zero_stage=3)),
    ("megatron 3D", strategy(2, 2, 2, sequence_parallel=True, virtual_stages=2, **MEGATRON)),
]


@pytest.mark.parametrize(("name", "how"), LEGAL, ids=[row[0] for row in LEGAL])
def test_a_legal_combination_breaks_nothing(name: str, how: Strategy) -> None:
    """What the engines accept passes every rule."""
    assert check(catalog.model(MODEL), cluster(), workload(), how) == ()


def test_all_problems_come_at_once() -> None:
    """Three mistakes are three problems, not one after another."""
    how = strategy(3, 3, zero_stage=3, recompute="selective")

    found = {problem.rule for problem in check(catalog.model(MODEL), cluster(), workload(), how)}

    assert {"world-size", "tensor-heads", "zero-tensor", "recompute"} <= found


def test_a_wrong_batch_names_its_nearest_legal_neighbours() -> None:
    """100 samples over 8 ranks: 96 and 104 are offered."""
    work = workload(batch=100)

    (problem,) = check(catalog.model(MODEL), cluster(), work, strategy(batch=96))

    assert "96 or 104" in problem.hint
