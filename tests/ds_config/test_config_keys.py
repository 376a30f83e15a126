"""Every key of every release of DeepSpeed is priced, irrelevant to memory and time, or refused."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from planning import ask, cluster, workload

from dsforge.ds_config import DsConfig, read, treatment, unknown, unpriced
from dsforge.ds_config.keys import BLOCKS, CLOSED, ENTRIES, TABLE
from dsforge.ds_config.unpriced import WHEN
from dsforge.errors import SpecError
from dsforge.estimate.buckets import ENGINE
from dsforge.lint.schemas.releases import frozen, number
from dsforge.planner import appraise
from dsforge.reading.ds_config_strategy import buckets_of
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import Setting

RELEASES = frozen()
LEAVES = sorted(
    f"{path}.{key}".strip(".")
    for path, block in RELEASES.blocks.items()
    for key in block.keys
    if f"{path}.{key}".strip(".") not in RELEASES.blocks
)


def test_no_key_of_any_release_is_without_a_treatment() -> None:
    """477 keys of 47 releases, and those of `pipeline`, which DeepSpeed reads without a list."""
    assert [path for path in LEAVES if treatment(path) is None and path not in BLOCKS] == []


def test_removed_keys_have_one_too() -> None:
    """A file of an old release may hold them still."""
    removed = [f"{p}.{key}".strip(".") for p, b in RELEASES.blocks.items() for key in b.removed]

    assert [path for path in removed if not any(name.startswith(path) for name in TABLE)] == []


def test_the_page_of_all_keys_is_that_of_the_table() -> None:
    """`python scripts/ds_config_keys.py` writes it anew."""
    root = Path(__file__).resolve().parents[2]
    script = runpy.run_path(str(root / "scripts/ds_config_keys.py"))

    assert (root / "docs/ds-config-keys.md").read_text() == script["page"]()


def test_the_table_has_no_other_keys() -> None:
    """A row for a key that no release has is a slip of the pen."""
    known = {*LEAVES, *RELEASES.blocks}
    wrong = [
        path
        for path in TABLE
        if path.removesuffix(".*") not in known and not path.startswith("pipeline.")
    ]

    assert wrong == []


def test_every_row_stands_once() -> None:
    """A key that stands in two entries would be in the last of them without a word."""
    keys = [key for line in ENTRIES.splitlines() if line.startswith(" ") for key in line.split()]

    assert len(keys) == len(TABLE)
    assert {row.when for row in TABLE.values()} == set(WHEN)


def test_blocks_that_refuse_unknown_keys_are_those_of_the_releases() -> None:
    """Among the blocks whose keys stand in the table one by one."""
    last = number(RELEASES.last)
    closed = {p for p, b in RELEASES.blocks.items() if b.closed is not None and b.closed <= last}

    assert closed & BLOCKS == set(CLOSED)


def test_a_key_that_no_release_has_is_found() -> None:
    """At the top, where the engine ignores it, and in a block, where it stops."""
    settings = {"train_batch_sizes": 8, "zero_optimization": {"stages": 3}, "wandb": {"x": 1}}

    assert unknown(settings) == ("train_batch_sizes", "zero_optimization.stages")


# A model, a cluster and a config in which each priced key matters, and its other value.
BASE: dict[str, Any] = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW"},
    "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 10**8},
}
STAGE_1: dict[str, Any] = {**BASE, "zero_optimization": {"stage": 1}}
PIPELINE: dict[str, Any] = {**STAGE_1, "pipeline": {"stages": 2}}
OFFLOADED: dict[str, Any] = {
    **BASE,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}
TILED = {
    **BASE,
    "zero_optimization": {
        "stage": 3,
        "sub_group_size": 10**7,
        "offload_optimizer": {"device": "cpu"},
    },
}
OTHER: dict[str, tuple[dict[str, Any], Any]] = {
    "train_batch_size": (BASE, 512),
    "train_micro_batch_size_per_gpu": (BASE, 4),
    "gradient_accumulation_steps": ({"train_batch_size": 256}, 2),
    "bf16.enabled": (BASE, False),
    "bfloat16.enabled": ({"train_batch_size": 256}, True),
    "fp16.enabled": ({"train_batch_size": 256}, True),
    "data_types.grad_accum_dtype": (STAGE_1, "fp32"),
    "communication_data_type": (BASE, "fp32"),
    "optimizer.type": (BASE, "SGD"),
    "tensor_parallel.autotp_size": (STAGE_1, 2),
    "pipeline.stages": (STAGE_1, 2),
    "pipeline.activation_checkpoint_interval": (PIPELINE, 1),
    "zero_optimization.stage": (BASE, 2),
    "zero_optimization.overlap_comm": (BASE, False),
    "zero_optimization.reduce_bucket_size": (BASE, 10**7),
    "zero_optimization.sub_group_size": (OFFLOADED, 3 * 10**7),
    "zero_optimization.prefetch_bucket_size": (BASE, 10**6),
    "zero_optimization.stage3_prefetch_bucket_size": (BASE, 10**6),
    "zero_optimization.max_live_parameters": ({**BASE, "zero_optimization": {"stage": 3}}, 10**6),
    "zero_optimization.stage3_max_live_parameters": (BASE, 10**6),
    "zero_optimization.zero_hpz_partition_size": (BASE, 8),
    "zero_optimization.zero_quantized_weights": (BASE, True),
    "zero_optimization.zero_quantized_gradients": (BASE, True),
    "zero_optimization.cpu_offload": (BASE, True),
    "zero_optimization.cpu_offload_param": (BASE, True),
    "zero_optimization.offload_optimizer.device": (BASE, "cpu"),
    "zero_optimization.offload_param.device": (BASE, "cpu"),
    "zero_optimization.offload_optimizer.ratio": (TILED, 0.5),
}
OLD_NAME = {**BASE, "bf16": None, "bfloat16": {"enabled": True}}
HALF_STATES = ("bf16_master_weights_and_grads", "bf16_optimizer_states")
CHECKED_VALUES: dict[str, tuple[dict[str, Any], Any]] = {  # none of the two keys without the other
    "pipeline.partition": (PIPELINE, [1, 15]),
    **{f"bf16.{key}": (BASE, True) for key in HALF_STATES},
    **{f"bfloat16.{key}": (OLD_NAME, True) for key in HALF_STATES},
}
GPUS = 16


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A config with another value at a dotted path."""
    key, _, rest = path.partition(".")
    return {**config, key: changed(config.get(key, {}), rest, value) if rest else value}


def figures(folder: Path, config: dict[str, Any]) -> Any:
    """Memory and time under a config."""
    path = folder / "ds.json"
    path.write_text(json.dumps(config))
    flags = {
        ("model",): "llama-3.2-1b",
        ("cluster", "gpu"): "a100-80gb",
        ("cluster", "nodes"): 2,
        ("cluster", "gpus_per_node"): GPUS // 2,
        ("workload", "sequence_length"): 1024,
    }
    settings = tuple(Setting(loc, value, "--flag") for loc, value in flags.items())
    choice = appraise(read_request(Asked(ds_config=path, settings=settings))).choice
    return choice.memory, choice.time


def test_each_priced_key_has_an_example() -> None:
    """A key is priced only if another value of it is shown to change the price."""
    priced = {path for path, row in TABLE.items() if row.kind == "priced"}

    assert {*OTHER, *CHECKED_VALUES, "sequence_parallel_size"} == priced


@pytest.mark.parametrize("path", OTHER)
def test_a_priced_key_changes_the_price(path: str, tmp_path: Path) -> None:
    """Another value of it, other figures."""
    config, value = OTHER[path]

    assert figures(tmp_path, changed(config, path, value)) != figures(tmp_path, config)


SAMPLES: tuple[object, ...] = (True, 1, "fp32", {"enabled": True, "topk_ratio": 0.1})


def irrelevant() -> Iterator[str]:
    """Keys of the releases that no price depends on."""
    for path in LEAVES:
        found = treatment(path)
        if found is not None and found.kind == "irrelevant":
            yield path


@pytest.mark.parametrize("path", sorted(irrelevant()))
def test_an_irrelevant_key_changes_no_strategy(path: str) -> None:
    """Whatever is written there, the strategy is the same; sizes of buffers may be others."""
    for value in SAMPLES:
        settings = changed({}, path, value)
        found = read(settings).config._replace(
            bucket_keys=DsConfig().bucket_keys, optimizer_parameters={}, any_cpu_optimizer=False
        )
        assert found == DsConfig()
        assert unpriced(settings, found) == ()


REFUSED = {
    "zero_optimization": {
        "stage": 3,
        "zenflow": {"topk_ratio": 0.1},
        "memory_efficient_linear": False,
        "mics_shard_size": 4,
        "leaf_module": {"classes": ["Experts"]},
        "offload_optimizer": {"device": "cpu", "super_offload": True},
    },
    "torch_autocast": {"enabled": True},
    "compile": {"deepcompile": True},
    "weight_quantization": {"num_bits": 8},
    "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}},
    "sparse_gradients": True,
}
OFF: dict[str, Any] = {
    "zero_optimization": {
        "stage": 1,
        "zenflow": None,
        "memory_efficient_linear": False,  # read by stage 3
        "mics_shard_size": -1,
        "mics_hierarchical_params_gather": False,
        "leaf_module": {"classes": []},
        "reduce_scatter": False,
        "offload_optimizer": {"device": "none", "super_offload": True},
    },
    "torch_autocast": {"enabled": False, "dtype": "bfloat16"},
    "compile": {"debug_log": True},
    "weight_quantization": {"enabled": False, "num_bits": 8},
    "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": False}}},
    "sparse_gradients": False,
}


def test_what_has_no_price_is_refused_where_it_is_on() -> None:
    """One problem for each, with its path."""
    found = [p.message.split("`")[1] for p in unpriced(REFUSED, read(REFUSED).config)]

    assert found == [
        *(f"zero_optimization.{key}" for key in ("zenflow", "memory_efficient_linear")),
        "zero_optimization.mics_shard_size",
        "zero_optimization.leaf_module",
        "zero_optimization.offload_optimizer.super_offload",
        "torch_autocast",
        "compile",
        "weight_quantization",
        "compression_training",
        "sparse_gradients",
    ]


def test_what_is_off_or_not_read_is_let_through() -> None:
    """Defaults, `false`, and settings of another stage."""
    assert unpriced(OFF, read(OFF).config) == ()
    at_stage_3 = changed(OFF, "zero_optimization.stage", 3)
    found = [p.message.split("`")[1] for p in unpriced(at_stage_3, read(at_stage_3).config)]
    assert found == [
        f"zero_optimization.{k}" for k in ("memory_efficient_linear", "reduce_scatter")
    ]


@pytest.mark.parametrize("path", CHECKED_VALUES)
def test_a_value_without_a_price_is_refused(path: str, tmp_path: Path) -> None:
    """Never priced as if it were not there."""
    config = changed(CHECKED_VALUES[path][0], path, CHECKED_VALUES[path][1])

    with pytest.raises(SpecError) as caught:
        figures(tmp_path, config)
    assert path.rpartition(".")[2] in str(caught.value.problems[0])


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("block", ["bf16", "bfloat16"])
def test_states_in_bf16_are_read_and_priced(block: str, stage: int, tmp_path: Path) -> None:
    """Master weights and moments take half."""
    half = dict.fromkeys(HALF_STATES, True)
    config = {**BASE, "bf16": None, block: {"enabled": True}, "zero_optimization": {"stage": stage}}
    usual, _ = figures(tmp_path, config)
    narrow, _ = figures(tmp_path, {**config, block: {"enabled": True, **half}})

    saved = usual.terms.optimizer_state - narrow.terms.optimizer_state
    assert saved == pytest.approx(usual.terms.optimizer_state / 2)
    assert usual.allocated_bytes.likely > narrow.allocated_bytes.likely


def test_transformers_fills_buckets_in_by_the_models_width() -> None:
    """`auto`: hidden^2, 0.9 of it, 10 x hidden (`trainer_config_finalize`)."""
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size")
    names += ("stage3_param_persistence_threshold",)
    config = read({"zero_optimization": {"stage": 3, **dict.fromkeys(names, "auto")}}).config
    buckets = buckets_of(config, hidden_size=2048)

    assert buckets.reduce_bucket_size == 2048 * 2048
    assert buckets.prefetch_bucket_size == int(0.9 * 2048 * 2048)
    assert buckets.persistence_threshold == 20480
    assert buckets.max_live_parameters == 1_000_000_000


def test_float32_sums_are_where_the_engine_keeps_them() -> None:
    """As measured on the real engine (rehearse, smollm2-135m on 8 ranks): bytes of an element.

    ZeRO-1: 2 of backward + 4 of the sums on every rank, none made at the step (BF16_Optimizer).
    ZeRO-2 and 3: 4 of the shard.
    """
    on, work = cluster(1, 8), workload(128, 32, precision="bf16")
    asked = {"back_end": "deepspeed", "micro_batch_size": 1, "gradient_type": "fp32"}
    per_element = []
    for stage in (1, 2, 3):
        choice = appraise(ask("smollm2-135m", on, work, zero_stage=stage, **asked)).choice
        per_element.append(choice.memory.terms.gradients / 134_515_008 * (8 if stage > 1 else 1))

    assert per_element[0] == pytest.approx(6, rel=0.01)
    assert per_element[1:] == [pytest.approx(n, rel=0.01) for n in (4, 4)]


def test_a_rank_with_one_sub_group_offloads_it_whatever_the_ratio(tmp_path: Path) -> None:
    """Stage 3 keeps `int((1 - ratio) * sub-groups)` on the device, and 1e9 elements are one."""
    half = changed(OFFLOADED, "zero_optimization.offload_optimizer.ratio", 0.5)

    assert figures(tmp_path, half) == figures(tmp_path, OFFLOADED)


def test_what_is_not_offloaded_is_on_the_device() -> None:
    """As rehearsed (smollm2-135m, 8 ranks): states and float32 gradients, 16 bytes an element."""
    on, work = cluster(1, 8), workload(128, 32, precision="bf16")
    fixed = {"back_end": "deepspeed", "zero_stage": 3, "micro_batch_size": 1}
    sizes = ENGINE.model_copy(update={"sub_group_size": 2_000_000})
    both = [
        appraise(
            ask(
                "smollm2-135m",
                on,
                work,
                offload_optimizer="cpu",
                offload_parameters="none",
                offload_ratio=ratio,
                buckets=sizes,
                **fixed,
            )
        ).choice.memory
        for ratio in (1.0, 0.5)
    ]
    shard, kept = 134_515_008 / 8, 4 / 9  # int(0.5 x 9 sub-groups)
    more = [memory.terms.optimizer_state + memory.terms.gradients for memory in both]

    assert more[0] == 0
    assert more[1] == pytest.approx(16 * shard * kept, rel=0.01)


def test_ranks_that_share_a_sequence_are_no_data_parallelism(tmp_path: Path) -> None:
    """4 of 8 ranks a sequence: two replicas, whatever the rules say of such a plan."""
    path = tmp_path / "ds.json"
    sizes = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5}
    path.write_text(json.dumps({**sizes, "sequence_parallel_size": 4}))
    flags = {("model",): "llama-3.2-1b", ("cluster", "gpu"): "a100-80gb"}
    flags[("cluster", "nodes")], flags[("cluster", "gpus_per_node")] = 1, 8
    settings = tuple(Setting(loc, value, "--flag") for loc, value in flags.items())
    request = read_request(Asked(ds_config=path, settings=settings))

    assert request.constraints.context_parallel_size == 4
    assert request.workload.global_batch_size == 3 * 5 * 2
