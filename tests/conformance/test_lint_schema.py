"""The extracted schema against DeepSpeed's own pydantic models and its own reading."""

from __future__ import annotations

import json
from importlib import import_module, metadata
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

from dsforge.lint.files import Against, checked, read_document, release_named
from dsforge.lint.reading.kind import document_of
from dsforge.lint.schemas.releases import frozen

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MODELS = {
    "zero_optimization": "runtime.zero.config.DeepSpeedZeroConfig",
    "zero_optimization.offload_param": (
        "runtime.zero.offload_config.DeepSpeedZeroOffloadParamConfig"
    ),
    "zero_optimization.offload_optimizer": (
        "runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig"
    ),
    "zero_optimization.leaf_module": (
        "runtime.zero.leaf_module_config.DeepSpeedZeroLeafModuleConfig"
    ),
    "zero_optimization.zenflow": "runtime.zenflow.zenflow_config.ZenFlowConfig",
    "fp16": "runtime.precision_config.DeepSpeedFP16Config",
    "bf16": "runtime.precision_config.DeepSpeedBF16Config",
    "tensor_parallel": "runtime.tensor_parallel.config.TPTrainingConfig",
    "compile": "compile.config.CompileConfig",
    "comms_logger": "comm.config.CommsLoggerConfig",
    "hybrid_engine": "runtime.config.HybridEngineConfig",
    "tensorboard": "monitor.config.TensorBoardConfig",
    "wandb": "monitor.config.WandbConfig",
    "comet": "monitor.config.CometConfig",
    "csv_monitor": "monitor.config.CSVConfig",
}
# Each is refused by DeepSpeed when the config is read; lint must say so too, and the other way.
REFUSED: dict[str, dict[str, Any]] = {
    "fraction": {"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 0.5}},
    "unknown": {"zero_optimization": {"stage": 1, "nonsense": 1}},
    "limit": {"zero_optimization": {"stage": 1, "reduce_bucket_size": 0}},
    "stage": {"zero_optimization": {"stage": 4}},
    "text": {"zero_optimization": {"stage": 1, "reduce_bucket_size": "5e8"}},
    "ratio": {"zero_optimization": {"stage": 2, "offload_optimizer": {"ratio": 0.5}}},
    "both": {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
    "scaler": {"bf16": {"enabled": True, "loss_scale": 0}},
    "floor": {"fp16": {"enabled": True, "min_loss_scale": 0}},
    "removed": {"nebula": {"enabled": True}},
    "removed-inside": {"zero_optimization": {"stage": 3, "mics_shard_size": 2}},
    "product": {"train_batch_size": 3, "train_micro_batch_size_per_gpu": 2},
    "tag": {"checkpoint": {"tag_validation": "Error"}},
    "type": {"communication_data_type": "half"},
    "sum": {"zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum"},
    "states": {"bf16": {"enabled": True, "bf16_optimizer_states": True}},
    "norm": {"zero_optimization": {"stage": 3, "compute_grad_norm": False}},
    "block": {"fp16": False},
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "exponent": {"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}},
    "both-names": {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 5}},
    "old-offload": {"zero_optimization": {"stage": 2, "cpu_offload": True}},
    "auto": {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}},
    "tensor": {"tensor_parallel": {"autotp_size": 1, "tp": {"tp_size": 1}}},
    "null": {"zero_optimization": {"stage": 3, "overlap_comm": None, "offload_param": None}},
    "quoted": {"zero_optimization": {"stage": 1, "reduce_bucket_size": "500000"}},
    "monitors": {"wandb": {"enabled": False}, "tensorboard": {"output_path": "x"}},
}


@pytest.mark.parametrize(("block", "name"), MODELS.items(), ids=MODELS)
def test_extracted_keys_are_the_fields_of_the_model(block: str, name: str) -> None:
    """Name and alias of every field, and nothing else."""
    module, _, kind = name.rpartition(".")
    model = getattr(import_module(f"deepspeed.{module}"), kind)
    fields = model.model_fields.items()
    spellings = {field for field, _ in fields} | {info.alias or field for field, info in fields}
    known = release_named("installed")[0].blocks[block]
    living = {key for key, life in known.keys.items() if "until" not in life}

    assert living == spellings


def test_the_frozen_data_is_that_of_the_installed_release() -> None:
    """What was written down for this version is what its source says."""
    version = metadata.version("deepspeed").partition("+")[0]
    if version not in frozen().names:
        pytest.skip(f"DeepSpeed {version} is not among the frozen releases")
    installed, release = release_named("installed")
    for path, block in installed.blocks.items():
        known = frozen().blocks[path].keys
        now = {key for key, life in block.keys.items() if "until" not in life}

        assert now == {k for k, life in known.items() if "until" not in life}, (path, release)


def is_refused(config: dict[str, Any]) -> bool:
    """Whether DeepSpeed itself refuses the config, as one rank reads it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    whole = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 1, **config}
    try:
        DeepSpeedConfig(json.loads(json.dumps(whole)))
    except Exception:
        return True
    return False


def has_errors(config: dict[str, Any], folder: Path) -> bool:
    """Whether lint finds an error."""
    whole = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 1, **config}
    path = folder / "ds_config.json"
    path.write_text(json.dumps(whole))
    found = checked(read_document(path), Against(*release_named("installed")))
    return any(finding.severity == "error" for finding in found)


@pytest.mark.parametrize("config", REFUSED.values(), ids=REFUSED)
def test_what_deepspeed_refuses_is_an_error(config: dict[str, Any], tmp_path: Path) -> None:
    """DeepSpeed stops at it, and lint has said so."""
    assert is_refused(config)
    assert has_errors(config, tmp_path)


@pytest.mark.parametrize("config", ACCEPTED.values(), ids=ACCEPTED)
def test_what_deepspeed_accepts_is_no_error(config: dict[str, Any], tmp_path: Path) -> None:
    """DeepSpeed takes it, and lint does not object."""
    assert not is_refused(config)
    assert not has_errors(config, tmp_path)


VALUES = (-1, 0, 1, 0.5, 7, "x", "5", "0.5", "true", True, None, [], {}, "auto", 1e30)
SILENT = {  # what DeepSpeed accepts and ignores, on which lint is right to be stricter
    *("offload-optimizer", "offload-parameters", "zeropp-below-stage3", "hpz-stage"),
    *("superoffload-stage", "key-unknown", "secret-in-config"),
}
UNCHECKED = {  # objects, tuples, unions and texts that only validators of their own look at
    *("dtype", "mpu", "tp_group", "injection_policy_tuple", "partition_config", "passes"),
    *("select_interval", "update_interval", "select_strategy", "prof_ops", "tp", "ratio"),
    *("tensor_parallel", "fp16_master_weights_and_grads", "bf16_master_weights_and_grads"),
    *("bf16_optimizer_states", "compute_grad_norm"),
}


@pytest.mark.slow
@pytest.mark.parametrize("block", MODELS)
def test_every_key_with_every_kind_of_value(block: str) -> None:
    """Lint refuses exactly what DeepSpeed refuses, key by key and type by type."""
    against = Against(*release_named("installed"))
    keys = [k for k, life in against.releases.blocks[block].keys.items() if "until" not in life]
    different = []
    for key, value in product([*keys, "nonsense"], VALUES):
        written: Any = {key: value}
        for name in reversed(block.split(".")):
            written = {name: written}
        text = json.dumps({"train_micro_batch_size_per_gpu": 1, "train_batch_size": 1, **written})
        found = checked(document_of("ds_config.json", text, "ds_config"), against)
        rules = {finding.rule for finding in found if finding.severity == "error"}
        if is_refused(written) != bool(rules) and not rules & SILENT and key not in UNCHECKED:
            different.append((key, value, rules))

    assert different == []
