"""Each constraint is one function that planner, `dsforge train` and lint ask: the same id thrice.

A row has a strategy that breaks a constraint and the nearest one that does not. The planner judges
the strategy, `train` and lint the ds_config that says the same.
"""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from planning import DISK, cluster, lora_workload, strategy, workload

import dsforge
from dsforge import catalog
from dsforge.constraints import CONSTRAINTS, check
from dsforge.constraints.trainer import TENSOR_KINDS
from dsforge.errors import SpecError
from dsforge.lint.check import BY_ID
from dsforge.lint.files import Against, checked, read_document, release_named
from dsforge.lint.rules.constraints import FORMER_IDS
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import EXECUTIONS, Strategy
from dsforge.train.parallel.engine_config import read_engine_config
from dsforge.train.parallel.modes import check_model

PACKAGE = Path(dsforge.__file__).parent
PLANNER, TRAIN, LINT = "planner", "train", "lint"
ALL = (PLANNER, TRAIN, LINT)
OWN = (PLANNER, TRAIN)  # limits of `dsforge train`: another trainer may use the ds_config
RELEASE = "0.19.0"  # the newest that knows every constraint
HALF = EXECUTIONS["deepspeed"].model_copy(update={"offload_ratio": 0.5})
WIDE = EXECUTIONS["deepspeed"].model_copy(update={"gradients": "fp32"})
HALF_STATES = EXECUTIONS["deepspeed"].model_copy(update={"master_weights": False})
SUMMED = HALF_STATES.model_copy(update={"gradients": "fp32"})
HALF_ON_CPU = strategy(zero_stage=2, offload_optimizer="cpu", execution=HALF_STATES)
IN_BF16 = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
PARTITION = {"pipeline": {"stages": 2, "partition": [16, 15]}}


MODELS = ("llama-2-7b", "qwen2.5-7b", "mixtral-8x7b", "gpt2-xl", "phi-3-mini-4k")
WARNINGS = {rule.id for rule in BY_ID.values() if rule.severity != "error"}


class Row(NamedTuple):
    """A constraint, a strategy that breaks it, the nearest that does not, and who is asked."""

    id: str
    bad: Strategy
    good: Strategy
    askers: tuple[str, ...] = ALL
    model: str = "llama-2-7b"  # 32 layers, 32 heads, 32 key/value heads
    on: ClusterSpec = cluster()
    work: Workload = workload()
    good_work: Workload | None = None
    written: dict[str, Any] | None = None  # keys of the bad config that no strategy has


def ulysses(size: int, **more: Any) -> Strategy:
    """Ranks that share a sequence, of eight."""
    return strategy(8 // size, context_parallel_size=size, **more)


ROWS = (
    Row("zero-pipeline", strategy(4, pp=2, zero_stage=2), strategy(4, pp=2, zero_stage=1)),
    Row("zero-tensor", strategy(4, 2, zero_stage=3), strategy(4, 2, zero_stage=2)),
    Row("deepspeed-3d", strategy(2, 1, 2, context_parallel_size=2), strategy(2, 2, 2)),
    Row("deepspeed-3d", strategy(2, 2, context_parallel_size=2), ulysses(2)),
    Row(
        "offload-parameters",
        strategy(zero_stage=2, offload_parameters="cpu"),
        strategy(zero_stage=3, offload_parameters="cpu"),
    ),
    Row(
        "offload-optimizer",
        strategy(offload_optimizer="cpu"),
        strategy(zero_stage=1, offload_optimizer="cpu"),
    ),
    Row(
        "offload-ratio",
        strategy(zero_stage=2, offload_optimizer="cpu", execution=HALF),
        strategy(zero_stage=3, offload_optimizer="cpu", execution=HALF),
    ),
    Row(
        "offload-kind",
        strategy(zero_stage=2, offload_optimizer="cpu"),
        strategy(zero_stage=2, offload_optimizer="cpu"),
        work=workload(optimizer="sgd"),
        good_work=workload(),
    ),
    Row(
        "offload-pipeline",
        strategy(4, pp=2, zero_stage=1, offload_optimizer="cpu"),
        strategy(4, pp=2, zero_stage=1),
    ),
    Row(
        "nvme-stage",
        strategy(zero_stage=2, offload_optimizer="nvme"),
        strategy(zero_stage=3, offload_optimizer="nvme"),
        on=cluster(nvme=DISK),
    ),
    Row(
        "nvme-disk",
        strategy(zero_stage=3, offload_optimizer="nvme"),
        strategy(zero_stage=3, offload_optimizer="cpu"),
        (PLANNER, LINT),  # a rank of train has its own disk, which it opens
    ),
    Row(
        "bf16-states-stage",
        strategy(execution=HALF_STATES),
        strategy(zero_stage=1, execution=HALF_STATES),
        OWN,  # lint has one rule for the keys of bf16 and of fp16
    ),
    Row(
        "bf16-states-sums",
        strategy(zero_stage=1, execution=SUMMED),
        strategy(zero_stage=2, execution=SUMMED),
    ),
    Row(
        "bf16-states-offload",
        HALF_ON_CPU,
        HALF_ON_CPU,
        work=workload(optimizer="lion"),
        good_work=workload(),
    ),
    Row("grad-accum-dtype", strategy(execution=WIDE), strategy(zero_stage=1, execution=WIDE)),
    Row(
        "hpz-stage",
        strategy(zero_stage=2, hpz_partition_size=4),
        strategy(zero_stage=3, hpz_partition_size=4),
    ),
    Row(
        "hpz-partition",
        strategy(zero_stage=3, hpz_partition_size=3),
        strategy(zero_stage=3, hpz_partition_size=4),
    ),
    Row(
        "hpz-with-offload",
        strategy(zero_stage=3, hpz_partition_size=4, offload_parameters="cpu"),
        strategy(zero_stage=3, hpz_partition_size=4, offload_optimizer="cpu"),
    ),
    Row("sequence-hpz", ulysses(2, zero_stage=3, hpz_partition_size=2), ulysses(2, zero_stage=3)),
    Row(
        "batch-product",
        strategy(micro_batch_size=3, gradient_accumulation_steps=3),
        strategy(micro_batch_size=4, gradient_accumulation_steps=2),
    ),
    Row("world-size", strategy(2, 3), strategy(4, 2)),
    Row("tensor-heads", strategy(4, 2), strategy(8), model="gpt2-xl", work=workload(1024)),
    Row("tensor-kv-heads", strategy(1, 8), strategy(2, 4), model="qwen2.5-7b"),
    Row(
        "tensor-in-node",
        strategy(1, 8),
        strategy(2, 4),
        (PLANNER, LINT),  # ours, and it runs: a matter of time
        on=cluster(2, 4),
    ),
    Row(
        "pipeline-size",
        strategy(1, pp=16),
        strategy(2, pp=8),
        model="gpt2-small",
        on=cluster(2),
        work=workload(1024),
    ),
    Row(
        "pipeline-partition", strategy(4, pp=2), strategy(4, pp=2), (TRAIN, LINT), written=PARTITION
    ),
    Row(
        "precision",
        strategy(),
        strategy(),
        (PLANNER, LINT),
        on=cluster(gpu="v100-32gb"),
        good_work=workload(precision="fp16"),
    ),
    Row("pipeline-model", strategy(4, pp=2), strategy(8), OWN, model="mixtral-8x7b"),
    Row("tensor-model", strategy(4, 2), strategy(8), OWN, model="mixtral-8x7b"),
    Row("lora-pipeline", strategy(4, pp=2), strategy(8), OWN, work=lora_workload()),
    Row("lora-tensor", strategy(4, 2), strategy(8), OWN, work=lora_workload()),
    Row("sequence-heads", ulysses(8), ulysses(4), OWN, model="qwen2.5-7b"),
    Row("sequence-model", ulysses(2), strategy(8), OWN, model="pythia-1b"),
    Row("sequence-window", ulysses(2), strategy(8), OWN, model="phi-3-mini-4k"),
    Row(
        "sequence-kv-heads",
        strategy(1, batch=48, context_parallel_size=6),
        strategy(6, batch=48),
        OWN,
        "llama-3.2-3b",  # 24 heads, 8 key/value heads
        cluster(1, 6),
        workload(batch=48),
    ),
)

# Constraints that no row can have, and who asks them.
ELSEWHERE = {
    "encoder-decoder": "planner and train (tests/launch/test_two_sides.py)",
    "decoder-only": "planner: `dsforge train` loads a causal language model or fails",
    "indexed-attention": "planner and train (tests/unit/test_train_modes.py)",
    "recurrent-parallel": "planner and train (tests/launch/test_train_recurrent.py)",
    "recurrent-packing": "train (tests/launch/test_train_recurrent.py)",
    "sequence-length": "planner, and lint of train.yaml and of Megatron arguments",
    "fp8-megatron": "planner: a ds_config has no fp8",
    "optimizer": "planner: a ds_config may name any optimizer of torch",
    "recompute": "planner: a ds_config has no selective recomputation",
    "offload-activations-recompute": "planner: torch checkpoints, and a ds_config does not say so",
    "tiled-mlp-recompute": "planner and train: keys of train.yaml",
    "tiled-mlp-model": "planner and train: keys of train.yaml",
    "compile-checkpoints": "planner and train: keys of train.yaml",
    "deepspeed-axes": "planner: no ds_config of ours has experts",
    "tensor-widths": "planner: AutoTP pads what it cannot divide",
    "chunked-loss": "planner: `train` takes the loss from its job",
    **dict.fromkeys(
        (
            *("program-engine", "program-zero", "program-parallelism", "program-interleaving"),
            *("program-offload", "program-method", "program-values", "program-zero-plus"),
            *(
                "program-activations",
                "program-model",
                "torch-clash",
                "torch-tensor-plan",
                "torch-stages",
            ),
        ),
        "planner: plans for programs that train by themselves",
    ),
    "lora-tied-modules": "planner and train (tests/engine/test_train_adapters.py)",
    **dict.fromkeys(
        ("qlora-zero3", "quant-storage"), "planner and train (tests/engine/test_train_quantised.py)"
    ),
    "low-bit-optimizer": "train and lint: a key of train.yaml",
    "qlora-quantized-weights": "planner: the base is a key of train.yaml",
    **dict.fromkeys(
        (
            *("bf16-states", "optimizer-in-backward", "loads-whole"),
            *("engine-words", "ddp-replicas", "fused-loss", "quantised-experts"),
            *("preference-training", "preference-engine", "vision-tower"),
            "preference-mode",
        ),
        "planner: other trainers, which no file is for",
    ),
    "gptq-exllama": "planner: `dsforge train` has no GPTQ",
    **dict.fromkeys(
        ("vocabulary-split", "sequence-reduce-scatter"), "train: keys that no strategy has"
    ),
    **dict.fromkeys(
        (
            *("sequence-attention", "sequence-packing", "compile-stage", "compile-mode"),
            "preference-packing",
        ),
        "train: keys of train.yaml",
    ),
    **dict.fromkeys(
        ("qlora-megatron", "megatron-gpu", "megatron-zero", "megatron-offload", "megatron-model"),
        "planner: Megatron-LM",
    ),
    **dict.fromkeys(("pipeline-layers", "sequence-parallel"), "planner: Megatron-LM"),
    **dict.fromkeys(
        ("context-sequence", "expert-parallel", "virtual-stages"),
        "planner, lint of Megatron arguments",
    ),
}


def settings_of(how: Strategy, work: Workload) -> dict[str, Any]:
    """The ds_config that says what a strategy is, legal or not."""
    layout, zero = how.layout, {"stage": how.zero_stage}
    states = {} if how.runs_as.master_weights else IN_BF16
    settings: dict[str, Any] = {
        "train_batch_size": work.global_batch_size,
        "train_micro_batch_size_per_gpu": how.micro_batch_size,
        "gradient_accumulation_steps": how.gradient_accumulation_steps,
        "gradient_clipping": 1.0,
        work.precision: {"enabled": True, **states},
        "optimizer": {"type": work.optimizer, "params": {"lr": 1e-5}},
        "zero_optimization": zero,
    }
    disk = {"nvme_path": "/nvme"}
    ratio = {"ratio": how.runs_as.offload_ratio} if how.runs_as.offload_ratio < 1 else {}
    for key, device, more in (
        ("offload_optimizer", how.offload_optimizer, ratio),
        ("offload_param", how.offload_parameters, {}),
    ):
        if device != "none":
            zero[key] = {"device": device, **more, **(disk if device == "nvme" else {})}
    sizes = {
        "zero_optimization.zero_hpz_partition_size": how.hpz_partition_size,
        "tensor_parallel.autotp_size": layout.tensor_parallel_size,
        "pipeline.stages": layout.pipeline_parallel_size,
        ".sequence_parallel_size": layout.context_parallel_size,
    }
    for path, size in sizes.items():
        block, _, key = path.partition(".")
        if size > 1:
            (settings.setdefault(block, {}) if block else settings)[key] = size
    if how.runs_as.gradients == "fp32":
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def configuration_of(model: ModelSpec) -> Any:
    """What `train` reads of the transformers configuration of a model."""
    plan = {"layers": "colwise" if model.model_type in (None, *TENSOR_KINDS) else "moe_experts"}
    made = SimpleNamespace(
        model_type=model.model_type or "llama",
        num_attention_heads=model.attention_heads,
        num_key_value_heads=model.kv_heads,
        num_hidden_layers=model.layers,
        sliding_window=model.sliding_window,
        base_model_tp_plan=plan,
    )
    made.get_text_config = lambda: made
    return made


def told(row: Row, how: Strategy, work: Workload, settings: dict[str, Any], folder: Path) -> Any:
    """The ids that each asker names, errors and warnings."""
    model = catalog.model(row.model)
    path = folder / "ds_config.json"
    path.write_text(json.dumps(settings, indent=2))
    return {
        PLANNER: {problem.rule for problem in check(model, row.on, work, how)},
        TRAIN: trained(path, model, row.on.gpus, adapters=work.method == "lora"),
        LINT: {
            finding.rule
            for finding in checked(
                read_document(path), Against(*release_named(RELEASE), model, row.on)
            )
            if finding.severity == "error" or finding.rule == row.id
        },
    }


def trained(path: Path, model: ModelSpec, ranks: int, *, adapters: bool) -> set[str]:
    """The ids that the start of `dsforge train` names, before any rank is up."""
    try:
        mode = read_engine_config(path, ranks).mode
    except SpecError as error:
        return {problem.rule for problem in error.problems}
    return {
        problem.rule for problem in check_model(mode, configuration_of(model), adapters=adapters)
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_all_who_are_asked_refuse_the_same(row: Row, tmp_path: Path) -> None:
    """The strategy that breaks the constraint is refused under its id, by each asker."""
    found = told(
        row, row.bad, row.work, settings_of(row.bad, row.work) | (row.written or {}), tmp_path
    )

    assert [asker for asker in row.askers if row.id not in found[asker]] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_nearest_good_strategy_passes_everywhere(row: Row, tmp_path: Path) -> None:
    """Nobody has anything against it, under any id."""
    work = row.good_work or row.work
    found = told(row, row.good, work, settings_of(row.good, work), tmp_path)

    assert found == {PLANNER: set(), TRAIN: set(), LINT: set()}


def test_no_constraint_is_declared_twice() -> None:
    """One id, one function; each has a title and the place that enforces it."""
    ids = [each.id for each in CONSTRAINTS]

    assert len(ids) == len(set(ids))
    assert all(each.title.endswith(".") and len(each.source) > 10 for each in CONSTRAINTS)


def test_every_constraint_is_in_the_table() -> None:
    """Each has a row, or a reason why no row can show it; none has both."""
    shown = {row.id for row in ROWS}

    assert shown | set(ELSEWHERE) == {each.id for each in CONSTRAINTS}
    assert not shown & set(ELSEWHERE)


def test_lint_says_what_the_constraint_says() -> None:
    """A rule of lint with the id of a constraint has its title and its source."""
    shared = [each for each in CONSTRAINTS if each.id in BY_ID]

    assert {row.id for row in ROWS if LINT in row.askers} <= {each.id for each in shared}
    for each in shared:
        assert BY_ID[each.id].title == each.title
        assert each.source in BY_ID[each.id].evidence


def test_former_ids_lead_to_rules_of_today() -> None:
    """Who ignored a rule by its former id still does."""
    assert all(new in BY_ID for ids in FORMER_IDS.values() for new in ids)
    assert not set(FORMER_IDS) & set(BY_ID)


def drawn(draw: random.Random) -> Strategy:
    """Any strategy of eight ranks, legal or not."""
    sizes = draw.choice([(8, 1, 1, 1), (4, 2, 1, 1), (4, 1, 2, 1), (4, 1, 1, 2), (2, 2, 2, 1)])
    dp, tp, pp, cp = draw.choice([sizes, (2, 1, 2, 2), (1, 8, 1, 1), (1, 1, 1, 8), (1, 1, 8, 1)])
    execution = EXECUTIONS["deepspeed"].model_copy(
        update={
            "offload_ratio": draw.choice([1.0, 1.0, 0.5]),
            "gradients": draw.choice(["compute", "compute", "fp32"]),
        }
    )
    return strategy(
        dp,
        tp,
        pp,
        context_parallel_size=cp,
        zero_stage=draw.randrange(4),
        hpz_partition_size=draw.choice([1, 1, 2, 3]),
        offload_optimizer=draw.choice(["none", "none", "cpu", "nvme"]),
        offload_parameters=draw.choice(["none", "none", "cpu", "nvme"]),
        micro_batch_size=draw.choice([1, 2, 3]),
        execution=execution,
    )


@pytest.mark.parametrize("seed", range(300))
def test_planner_and_train_agree_on_any_strategy(seed: int, tmp_path: Path) -> None:
    """Of random strategies both refuse the same ones for the same reasons, and lint knows them."""
    draw = random.Random(seed)  # noqa: S311 - cases of a test
    how, work = drawn(draw), workload(optimizer=draw.choice(["adamw", "lion", "sgd"]))
    row = Row("", how, how, model=draw.choice(MODELS), on=cluster(nvme=DISK))
    found = told(row, how, work, settings_of(how, work), tmp_path)
    by_file = {row.id for row in ROWS if TRAIN in row.askers and PLANNER in row.askers}
    of_lint = {row.id for row in ROWS if row.askers == ALL}

    assert found[TRAIN] - by_file == set()
    if found[TRAIN]:
        assert found[PLANNER] & (by_file | {"nvme-disk"}) >= found[TRAIN]
    assert found[PLANNER] & of_lint <= found[LINT] | WARNINGS


def ids_given(path: Path) -> set[str]:
    """Ids that a module gives to problems, rules and rows of its own."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id in ({"Problem", "Row", "rule"} if "lint" in path.parts else {"Problem"})
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


def test_nobody_else_gives_the_id_of_a_constraint() -> None:
    """No module of the package states a constraint a second time under its id."""
    ids = {each.id for each in CONSTRAINTS}
    others = {
        str(path.relative_to(PACKAGE)): ids_given(path) & ids for path in PACKAGE.rglob("*.py")
    }

    assert {path: found for path, found in others.items() if found} == {}
