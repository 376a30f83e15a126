"""A ds_config of the user's as constraints: what it sets, what it leaves open, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import SpecError
from dsforge.plan import Request
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import Setting
from dsforge.strategy import Buckets

CLUSTER = (
    Setting(("model",), "llama-2-7b", "--model"),
    Setting(("cluster", "gpu"), "a100-80gb", "--gpu"),
    Setting(("cluster", "nodes"), 2, "--nodes"),
    Setting(("cluster", "gpus_per_node"), 8, "--gpus-per-node"),
)


def read(folder: Path, config: Any, *flags: Setting) -> Request:
    """The request that a ds_config makes on sixteen GPUs."""
    path = folder / "ds.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return read_request(Asked(ds_config=path, settings=(*CLUSTER, *flags)))


def test_stage_offload_and_precision_are_those_of_the_file(tmp_path: Path) -> None:
    """DeepSpeed without other axes, each state where the file puts it."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
    request = read(tmp_path, {"fp16": {"enabled": True}, "zero_optimization": zero})
    fixed = request.constraints

    assert (fixed.back_end, fixed.zero_stage, fixed.tensor_parallel_size) == ("deepspeed", 3, 1)
    assert (fixed.offload_optimizer, fixed.offload_parameters) == ("cpu", "nvme")
    assert request.workload.precision == "fp16"


def test_parameter_offload_below_stage_3_is_ignored_as_the_engine_ignores_it(
    tmp_path: Path,
) -> None:
    """ZeRO 2 trains on with its parameters on the device."""
    zero = {"stage": 2, "offload_param": {"device": "cpu"}}

    assert read(tmp_path, {"zero_optimization": zero}).constraints.offload_parameters == "none"


def test_zero_plus_plus_is_read(tmp_path: Path) -> None:
    """A second copy of the weights, and fewer bits on the wire, under stage 3."""
    zero = {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True}
    fixed = read(tmp_path, {"zero_optimization": zero}).constraints

    assert (fixed.hpz_partition_size, fixed.quantized_weights) == (8, True)
    assert fixed.quantized_gradients is None


@pytest.mark.parametrize(("stage", "overlaps"), [(1, False), (2, False), (3, True)])
def test_buffers_left_out_have_the_engines_size(tmp_path: Path, stage: int, overlaps: bool) -> None:
    """5e8 elements; a second bucket only under ZeRO 3."""
    zero = {"stage": stage, "allgather_bucket_size": 2e8}
    buckets = read(tmp_path, {"zero_optimization": zero}).constraints.buckets

    assert isinstance(buckets, Buckets)
    assert buckets.reduce_bucket_size == 500_000_000
    assert buckets.allgather_bucket_size == 200_000_000
    assert buckets.overlap_comm == overlaps


BATCHES = {
    "micro and steps": ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, 2),
    "micro and total": ({"train_micro_batch_size_per_gpu": 2, "train_batch_size": 128}, 2),
    "steps and total": ({"gradient_accumulation_steps": 4, "train_batch_size": 128}, 2),
    "total alone": ({"train_batch_size": 128}, 8),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batch_sizes_follow_from_each_other(tmp_path: Path, name: str) -> None:
    """Global batch = micro batch x accumulation x sixteen ranks."""
    sizes, micro = BATCHES[name]
    request = read(tmp_path, sizes)

    assert request.workload.global_batch_size == 128
    assert request.constraints.micro_batch_size == micro


def test_auto_is_left_open_and_flags_win(tmp_path: Path) -> None:
    """The trainer fills `auto` in; what the command line says comes last."""
    config = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}, "optimizer": "auto"}
    flag = Setting(("strategy", "zero_stage"), 3, "--zero-stage")
    request = read(tmp_path, config, flag)

    assert request.constraints.zero_stage == 3
    assert request.workload.precision == "bf16"  # chosen for the card


def test_a_parallel_size_of_the_command_line_counts_in_the_batch(tmp_path: Path) -> None:
    """Flags win over the file, so ranks are counted with them."""
    flag = Setting(("strategy", "tensor_parallel_size"), 2, "--tp")
    request = read(tmp_path, {"train_micro_batch_size_per_gpu": 2}, flag)

    assert request.workload.global_batch_size == 16


def test_pipeline_stages_leave_fewer_replicas(tmp_path: Path) -> None:
    """The batch is micro batch x accumulation x data-parallel ranks alone."""
    sizes = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
    request = read(tmp_path, {**sizes, "pipeline": {"stages": 2}, "train_batch_size": 64})

    assert request.constraints.pipeline_parallel_size == 2
    (reason,) = (r for r in request.reasons if r.rule == "ds-config-partition")
    assert "[16, 16]" in reason.message


def test_a_key_that_the_engine_ignores_is_shown(tmp_path: Path) -> None:
    """At the top level DeepSpeed asks for the keys that it knows, and for no other."""
    request = read(tmp_path, {"train_batch_sizes": 64})
    (reason,) = (r for r in request.reasons if r.rule == "ds-config-ignored")

    assert "did you mean `train_batch_size`?" in reason.message


def test_accumulation_alone_keeps_the_usual_batch(tmp_path: Path) -> None:
    """64 samples on 16 ranks in two steps: two at once."""
    request = read(tmp_path, {"gradient_accumulation_steps": 2})

    assert (request.constraints.micro_batch_size, request.workload.global_batch_size) == (2, 64)


REFUSED = {
    "stage 4": ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
    "negative bucket": ({"zero_optimization": {"reduce_bucket_size": -1}}, "at least 1"),
    "fraction": ({"zero_optimization": {"sub_group_size": 0.5}}, "whole number"),
    "block as a list": ({"zero_optimization": [2]}, "zero_optimization"),
    "batch as text": ({"train_batch_size": "x"}, "train_batch_size"),
    "product": (
        {"train_batch_size": 100, "train_micro_batch_size_per_gpu": 2},
        "data-parallel size (16)",
    ),
    "optimizer": ({"optimizer": {"type": "OneBitAdam"}}, "OneBitAdam"),
    "sequence parallel": (
        {"sequence_parallel_size": 4, "seq_parallel_communication_data_type": "bf16"},
        "seq_parallel_communication_data_type",
    ),
    "unknown key": ({"zero_optimization": {"stages": 2}}, "zero_optimization.stages"),
    "no price": ({"compile": {"deepcompile": True}}, "compile"),
    "partition": ({"pipeline": {"stages": 2, "partition": [30, 2]}}, "[30, 2]"),
    "sums without ZeRO": (
        {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
        "grad_accum_dtype",
    ),
    "not a number": ('{"train_batch_size": NaN}', "NaN"),
    "no JSON": ("{", "JSON"),
    "list": ("[]", "JSON object"),
    "deep": ("[" * 100_000, "JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """Each problem names the file and the key."""
    config, word = REFUSED[name]

    with pytest.raises(SpecError) as caught:
        read(tmp_path, config)
    (problem,) = caught.value.problems
    assert word in problem.message
    assert "ds.json" in problem.place
