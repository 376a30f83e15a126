"""The reading of any JSON at all: a config of legal values, and what is wrong with the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsforge.ds_config import PARTITIONS, DsConfig, batch_of, read, unpriced
from dsforge.ds_config.keys import TABLE
from dsforge.train.parallel.modes import mode_of

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
WORDS = st.sampled_from(["auto", "cpu", "nvme", "none", "fp32", "bf16", "adam", "best"])
COUNTS = st.integers(-1, 9)
JSON = st.recursive(
    SCALARS | WORDS | COUNTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
PATHS = st.sampled_from([path.removesuffix(".*") for path in TABLE])
WRITTEN = st.dictionaries(PATHS, JSON, max_size=8)


def nested(written: dict[str, Any]) -> dict[str, Any]:
    """Values by dotted path as blocks; a value that stands where a block should be stays."""
    config: dict[str, Any] = {}
    for path, value in sorted(written.items(), key=lambda pair: pair[0].count(".")):
        *above, key = path.split(".")
        block: Any = config
        for name in above:
            block = block.setdefault(name, {}) if isinstance(block, dict) else block
        if isinstance(block, dict):
            block[key] = value
    return config


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WRITTEN, st.booleans())
def test_any_json_is_read(written: dict[str, Any], filled_in: bool) -> None:
    """Nothing raises, and what is read is legal whatever was written."""
    values = nested(written)
    config, problems = read(values, filled_in=filled_in)

    assert config.zero_stage in (None, 0, 1, 2, 3)
    assert {config.offload_optimizer, config.offload_parameters} <= {None, "none", "cpu", "nvme"}
    assert min(config.tensor_parallel_size, config.pipeline_stages) >= 1
    assert config.sequence_parallel_size >= 1
    assert 0 <= config.offload_ratio <= 1
    assert isinstance(config.partition, tuple) or config.partition in PARTITIONS
    assert all(problem.message for problem in (*problems, *unpriced(values, config)))
    batch = batch_of(config, replicas=4)
    assert batch is None or min(batch) >= 1
    mode_of(config, world_size=8)


def test_an_empty_config_is_the_engines_default() -> None:
    """ZeRO off, fp32, everything data parallel."""
    assert read({}) == (DsConfig(), ())


AUTO = [
    "train_batch_size",
    "bf16.enabled",
    "zero_optimization.stage",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.offload_optimizer.device",
]


@pytest.mark.parametrize("path", AUTO)
def test_auto_is_a_wrong_value_where_nobody_fills_it_in(path: str) -> None:
    """Transformers replaces it; `dsforge train` hands the file to DeepSpeed as it is."""
    values = nested({path: "auto"})

    assert read(values).problems == ()
    (problem,) = read(values, filled_in=False).problems
    assert path in problem.message


OLD = {
    "zero_optimization": ({"zero_optimization": True}, {"zero_stage": 1}),
    "bfloat16": ({"bfloat16": {"enabled": True}}, {"precision": "bf16"}),
    "both spellings": ({"bf16": {}, "bfloat16": {"enabled": True}}, {"precision": "fp32"}),
    "cpu_offload": (
        {"zero_optimization": {"cpu_offload": True}},
        {"offload_optimizer": "cpu"},
    ),
    "cpu_offload_param": (
        {"zero_optimization": {"cpu_offload_param": True}},
        {"offload_parameters": "cpu"},
    ),
    "null blocks": ({"bf16": None, "zero_optimization": {"offload_param": None}}, {}),
    "5e8": ({"train_batch_size": 5e2}, {"train_batch_size": 500}),
}


@pytest.mark.parametrize("name", OLD)
def test_old_spellings_mean_what_they_meant(name: str) -> None:
    """As DeepSpeed takes them: read_zero_config_deprecated, get_bfloat16_config."""
    values, wanted = OLD[name]

    assert read(values) == (DsConfig()._replace(**wanted), ())


def test_a_deep_block_is_judged() -> None:
    """Blocks of a switch are searched to any depth."""
    block: dict[str, Any] = {"enabled": True}
    for _ in range(5000):
        block = {"inner": block}
    values = {"compression_training": block}

    assert len(unpriced(values, read(values).config)) == 1
