"""What lint says of accelerate's YAML is what accelerate itself does with it."""

from __future__ import annotations

import json
import os
import runpy
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from unittest import mock
from warnings import catch_warnings, simplefilter

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsforge.lint.files import Against, checked, release_named
from dsforge.lint.reading.kind import document_of
from dsforge.lint.schemas.accelerate_keys import ENUMS, FSDP, RELEASE, SCHEMA, WORDS

accelerate = pytest.importorskip("accelerate")
ROOT = Path(__file__).resolve().parents[2]
AGAINST = Against(*release_named(None))
SHARED = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 8,
    "main_process_port": 0,
}
KNOWN = sorted({word for name in WORDS if "FSDP" in name for word in WORDS[name]})
VALUES: tuple[Any, ...] = (
    *KNOWN,
    *(word.lower() for word in KNOWN[:4]),
    *("FULL_SHRD", "BACKWARDS", "", "true", "false", "no", "off", "yes please", "x"),
    *(None, True, False, 0, 1, 2, 3, 5, 6, 9, -1, 1.5, "1", "2", "8", "100000000"),
)
BLOCKS = st.dictionaries(st.sampled_from(sorted(FSDP)), st.sampled_from(VALUES), max_size=4)


@cache
def parser() -> Any:
    """The parser of `accelerate launch`."""
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()


def is_refused(config: dict[str, Any], folder: Path) -> bool:
    """Whether accelerate's launcher, or its plugin on the ranks, stops at a configuration."""
    from accelerate.commands.launch import _validate_launch_command
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    path = folder / "accelerate.yaml"
    path.write_text(yaml.safe_dump(config))
    arguments = parser().parse_args(["--config_file", str(path), "train.py"])
    try:
        arguments, _, _ = _validate_launch_command(arguments)
        environment = prepare_multi_gpu_env(arguments)
        device = mock.patch("accelerate.utils.dataclasses.is_cuda_available", return_value=True)
        number = mock.patch("torch.cuda.current_device", return_value=0)
        with mock.patch.dict(os.environ, environment), device, number, catch_warnings():
            simplefilter("ignore")
            if arguments.use_fsdp:
                FullyShardedDataParallelPlugin()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return True
    return False


def errors(config: dict[str, Any]) -> list[str]:
    """The errors of lint in a configuration."""
    found = checked(document_of("accelerate.yaml", yaml.safe_dump(config)), AGAINST)
    return [f"{f.rule}: {f.message}" for f in found if f.severity == "error"]


@given(block=BLOCKS)
@example(block={"fsdp_sync_module_states": False})
@example(block={"fsdp_version": 2, "fsdp_reshard_after_forward": "FULL_SHARD"})
@example(block={"fsdp_version": 2, "fsdp_state_dict_type": "LOCAL_STATE_DICT"})
@example(block={"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": "x"})
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_fsdp_block_is_an_error_where_accelerate_refuses_it(
    block: dict[str, Any], tmp_path: Path
) -> None:
    """Neither more nor less, whatever the words, booleans and numbers are.

    A version of FSDP that there is not is an error, although some words pass with it.
    """
    config = {**SHARED, "fsdp_config": block}
    unknown = str(block.get("fsdp_version", 1)) not in ("1", "2")

    assert bool(errors(config)) == (unknown or is_refused(config, tmp_path)), errors(config)


@pytest.mark.parametrize("word", [*ENUMS["DistributedType"], "deepspeed", "fsdp", "DDP", "TPU"])
@pytest.mark.parametrize("key", ["distributed_type", "compute_environment"])
def test_a_word_is_an_error_where_accelerate_refuses_it(key: str, word: str) -> None:
    """Capital letters count."""
    from accelerate.commands.config.config_args import ClusterConfig

    config = {**SHARED, "use_cpu": False, "debug": False, key: word}
    try:
        ClusterConfig(**config)
        refused = False
    except ValueError:
        refused = True

    assert any("accelerate-word" in error for error in errors(config)) == refused


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_processes", "eight"), ("num_processes", 0), ("main_process_port", 99999)],
)
def test_a_number_that_stops_the_launch_is_an_error(key: str, value: object) -> None:
    """Counts and ports; processes that the command line gives (-1) are none."""
    assert errors({**SHARED, key: value})
    assert not errors({**SHARED, "num_processes": -1})


@pytest.mark.parametrize("key", sorted(FSDP))
def test_a_misspelt_key_is_named(key: str) -> None:
    """A key that accelerate does not read, beside one letter of what it reads."""
    config = {**SHARED, "fsdp_config": {key[:-3] + key[-2:]: "true"}}
    found = checked(document_of("accelerate.yaml", yaml.safe_dump(config)), AGAINST)

    assert any(f.fix == f"did you mean `{key}`?" and f.severity == "error" for f in found)


def test_what_is_frozen_is_what_is_installed() -> None:
    """The script makes the same of the installed release, where it is the frozen one."""
    if accelerate.__version__ != RELEASE:
        pytest.skip(f"accelerate {accelerate.__version__} is installed, not {RELEASE}")
    script = runpy.run_path(str(ROOT / "scripts/accelerate_schema.py"))
    site = Path(str(distribution("accelerate").locate_file("")))

    assert json.loads(json.dumps(script["schema"](site))) == SCHEMA


@pytest.mark.parametrize("value", ["\u00b2", "9" * 5_000, "0x1", "1_0", "+1", " 1"])
def test_texts_of_digits_that_are_no_number_are_a_finding(value: str, tmp_path: Path) -> None:
    """Python calls some signs digits that `int` refuses, and refuses long numbers."""
    config = {**SHARED, "fsdp_config": {"fsdp_sharding_strategy": value}}

    assert is_refused(config, tmp_path)
    assert any("accelerate-fsdp-value" in error for error in errors(config))


@given(
    key=st.sampled_from(["fsdp_sharding_strategy", "fsdp_version", "fsdp_min_num_params"]),
    text=st.text("0123456789\u00b2\u0663\u2460 _+-", max_size=5),
)
def test_no_text_of_digits_stops_lint(key: str, text: str) -> None:
    """Signs that Python calls digits, in other scripts too, and signs around them."""
    policy = {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}
    errors({**SHARED, "num_processes": text, "fsdp_config": {**policy, key: text}})


@pytest.mark.parametrize("value", ["${N}", "{{ n }}", "<% n %>"])
def test_a_value_that_another_program_fills_in_is_none_yet(value: str) -> None:
    """Templates of job scripts hold placeholders, for words and numbers alike."""
    keys = ("num_processes", "main_process_port", "machine_rank", "distributed_type")
    block = {"fsdp_version": value, "fsdp_sharding_strategy": value, "fsdp_offload_params": value}

    assert errors({**SHARED, **dict.fromkeys(keys, value)}) == []
    assert errors({**SHARED, "fsdp_config": block}) == []
